"""Other pictures, other adapters, other tenants."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from mlx import nn

from kvcache import KVPrefixCache, MediaSpan, model_namespace
from tests.support.models import MODELS, SPANS, prompt

from .steps import get, put

if TYPE_CHECKING:
    from pathlib import Path

    from kvcache import Hit
    from tests.support.poskv import PosKV

PLACEHOLDER = 7
KINDS = ["kv", "quantized", "arrays", "rotating", "list-state"]
# The same 30 token ids in every case: text, then ten placeholders, then text.
IDS = prompt(10) + [PLACEHOLDER] * 10 + prompt(10, first=1)


def _seen(ids: list[int], media: list[MediaSpan]) -> list[int]:
    """What a model sees: at each token of a picture its own content."""
    seen = list(ids)
    for span in media:
        value = int.from_bytes(sha256(repr(span.digest).encode()).digest()[:2], "big")
        seen[span.start : span.start + span.length] = [value + at for at in range(span.length)]
    return seen


def _put(cache: KVPrefixCache, model: PosKV, ids: list[int], media: list[MediaSpan]) -> None:
    """A prefill that stores at the start of each picture and at the end."""
    seen = _seen(ids, media)
    for end in [*(span.start for span in media if span.start), len(ids)]:
        inside = [span for span in media if span.start + span.length <= end]
        stored = cache.store(ids[:end], model.filled(seen[:end]), media=inside)
        assert stored.reason in ("stored", "already")


def _get(cache: KVPrefixCache, model: PosKV, ids: list[int], media: list[MediaSpan]) -> Hit:
    return get(cache, model, ids, _seen(ids, media), media=media)


A, B = MediaSpan(10, 10, "a"), MediaSpan(10, 10, "b")
PICTURES: dict[str, tuple[list[MediaSpan], list[int], list[MediaSpan]]] = {
    "another picture": ([A], IDS, [B]),
    "no picture": ([A], IDS, []),
    "one token later": ([A], IDS, [MediaSpan(11, 10, "a")]),
    "one token shorter": ([A], IDS, [MediaSpan(10, 9, "a")]),
    "one token longer": ([A], IDS, [MediaSpan(10, 11, "a")]),
    "other bytes": ([A], IDS, [MediaSpan(10, 10, b"b")]),
    "ends inside": ([A], IDS[:20], [A]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PICTURES)
def test_text_before_another_picture_is_all_that_serves(kind: str, name: str) -> None:
    """77, 81. Placeholders are equal whatever they stand for; what counts is content and place."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=8)
    stored, ids, asked = PICTURES[name]
    _put(cache, model, IDS, stored)
    assert _get(cache, model, ids, asked).length == 10
    assert _get(cache, model, [*IDS, 1], stored).length == 30


@pytest.mark.parametrize("kind", SPANS)
def test_a_picture_where_text_was(kind: str) -> None:
    """77. The other way round: what was stored had no picture there."""
    model, cache = MODELS[kind](), KVPrefixCache()
    _put(cache, model, IDS, [])
    assert _get(cache, model, IDS, [B]).length == 10
    assert _get(cache, model, [*IDS, 1], []).length == 30


@pytest.mark.parametrize("kind", SPANS)
def test_pictures_side_by_side(kind: str) -> None:
    """81. Two pictures without a word between them are told apart from one of them twice."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=4)
    ids = prompt(4) + [PLACEHOLDER] * 12 + prompt(4, first=1)

    def pair(one: str, two: str, length: int = 6) -> list[MediaSpan]:
        return [MediaSpan(4, length, one), MediaSpan(4 + length, 12 - length, two)]

    _put(cache, model, ids, pair("a", "b"))
    found = [_get(cache, model, ids, pair(*asked)).length for asked in ("ab", "aa", "bb", "ba")]
    assert found == [19, 10, 4, 4]
    assert _get(cache, model, ids, pair("a", "b", 5)).length == 4
    assert _get(cache, model, ids, [MediaSpan(4, 12, "a")]).length == 4


def test_a_file_that_was_overwritten(tmp_path: Path) -> None:
    """79. A camera writes each picture to one path: the content's hash is the key, a name is none."""
    model, cache, frame = MODELS["kv"](), KVPrefixCache(), tmp_path / "frame.jpg"

    def media() -> list[MediaSpan]:
        return [MediaSpan(10, 10, sha256(frame.read_bytes()).digest())]

    frame.write_bytes(b"a door")
    _put(cache, model, IDS, media())
    assert _get(cache, model, [*IDS, 1], media()).length == 30
    frame.write_bytes(b"a window")
    assert _get(cache, model, [*IDS, 1], media()).length == 10
    frame.write_bytes(b"a door")
    assert _get(cache, model, [*IDS, 1], media()).length == 30


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_picture_late_in_a_chat(kind: str) -> None:
    """80. It costs what stands behind it, and none of the thousand tokens before."""
    model, cache = MODELS[kind](), KVPrefixCache()
    text, picture = prompt(1000), [PLACEHOLDER] * 50
    first, second = MediaSpan(1000, 50, "first"), MediaSpan(1000, 50, "second")
    _put(cache, model, text + picture + prompt(30, first=2), [first])
    assert _get(cache, model, text + picture + prompt(30, first=3), [second]).length == 1000
    # And a chat that goes on with one more picture reuses the one that it had.
    more = text + picture + prompt(30, first=2) + picture + [1]
    assert _get(cache, model, more, [first, MediaSpan(1080, 50, "second")]).length == 1080


class Adapted(nn.Module):
    """A linear layer with an adapter beside it."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.weight = mx.ones((8, 8))
        self.lora_a = mx.full((8, 2), fill)


SPACES = {
    "82-version": (
        model_namespace("llama@1", adapter="lora@v1"),
        model_namespace("llama@1", adapter="lora@v2"),
    ),
    "82-none": (model_namespace("llama@1", adapter="lora@v1"), model_namespace("llama@1")),
    "82-weights": (model_namespace(Adapted(1.0)), model_namespace(Adapted(1.0 + 1e-6))),
    "84-salt": (model_namespace("llama@1", salt="a"), model_namespace("llama@1", salt="b")),
    "84-no salt": (model_namespace("llama@1", salt="a"), model_namespace("llama@1")),
    "84-own words": ("tenant a", "tenant b"),
}


@pytest.mark.parametrize("kind", ["kv", "arrays"])
@pytest.mark.parametrize("name", SPACES)
def test_namespaces_never_mix(kind: str, name: str) -> None:
    """82, 84. Adapters of one name with other weights, tenants: equal tokens are not equal KV."""
    model, cache = MODELS[kind](), KVPrefixCache()
    one, two = SPACES[name]
    put(cache, model, prompt(20), namespace=one)
    missed = get(cache, model, [*prompt(20), 1], namespace=two)
    assert (missed.length, missed.matched, missed.reason) == (0, 0, "no_entry")
    put(cache, model, prompt(9), namespace=two)
    assert get(cache, model, [*prompt(20), 1], namespace=two).length == 9
    assert get(cache, model, [*prompt(20), 1], namespace=one).length == 20
    own = [(figures.stores, figures.hits, figures.ntokens) for figures in map(cache.stats, (one, two))]
    assert own == [(1, 2, 20), (1, 2, 9)]
    with cache.pin(prompt(20), namespace=one):
        dropped = cache.drop(one)
    assert dropped.tokens == 20
    assert cache.ntokens == 9
    assert get(cache, model, [*prompt(20), 1], namespace=one).reason == "no_entry"
    assert get(cache, model, [*prompt(20), 1], namespace=two).length == 9
