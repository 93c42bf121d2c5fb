"""A cache cut where it must not be cut gives wrong answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, ChunkedKVCache, KVCache

from kvcache import KVPrefixCache, layers
from tests.support.layers import KV, Arrays, Chunked, List, Rotating
from tests.support.memory import active, charged
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV, held, nbytes

from .steps import get, put

if TYPE_CHECKING:
    from collections.abc import Callable

    import mlx.core as mx

WINDOWS: dict[str, Callable[[], PosKV]] = {
    "rotating": lambda: PosKV(KV(), Rotating(8)),
    "rotating keep": lambda: PosKV(KV(), Rotating(8, keep=2)),
    "rotating only": lambda: PosKV(Rotating(8), Rotating(6)),
    "chunked": lambda: PosKV(KV(), Chunked(8)),
    "in a list": lambda: PosKV(List(KV(), Rotating(8))),
    "two kinds": lambda: PosKV(Chunked(8), KV(), Rotating(6)),
}
windows = pytest.mark.parametrize("name", WINDOWS)


@windows
@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("length", [9, 20])
def test_a_window_that_rotated_is_no_prefix(name: str, length: int, chunk: int | None) -> None:
    """40. Of 20 tokens, or of 9, a window of 8 is left: it serves those, and nothing that is shorter."""
    model, cache = WINDOWS[name](), KVPrefixCache()
    cache.store(prompt(length), model.filled(prompt(length), chunk))
    for shared in range(2, length):
        hit = get(cache, model, [*prompt(shared), 999])
        assert (hit.length, hit.reason, hit.matched) == (0, "no_checkpoint", shared)
    assert get(cache, model, [*prompt(length), 999]).length == length


@windows
def test_a_window_serves_where_it_was_kept(name: str) -> None:
    """40. With checkpoints at 6 (not rotated: it serves what is shorter too) and at 12."""
    model, cache = WINDOWS[name](), KVPrefixCache()
    for end in (6, 12, 20):
        put(cache, model, prompt(end))
    found = [get(cache, model, [*prompt(shared), 999]).length for shared in range(1, 21)]
    assert found == [1, 2, 3, 4, 5] + 6 * [6] + 8 * [12] + [20]


def _behind(array: mx.array, length: int) -> bool:
    return bool(np.any(np.array(array[..., length:, :])))


@pytest.mark.parametrize("kind", SPANS)
@pytest.mark.parametrize("shared", [5, 300])
def test_room_to_grow_holds_nothing_of_others(kind: str, shared: int) -> None:
    """41. A shorter match holds no token of the longer entry, not even behind its offset."""
    model, cache = MODELS[kind](), KVPrefixCache()
    put(cache, model, prompt(2 * shared))
    hit = cache.fetch([*prompt(shared), 99_999])
    assert hit.length == shared
    assert model.read(hit.prompt_cache) == prompt(shared)
    assert not any(_behind(array, shared) for array in held(hit.prompt_cache))
    model.grow(hit.prompt_cache, [99_999])
    assert model.read(hit.prompt_cache) == [*prompt(shared), 99_999]


@pytest.mark.parametrize("kind", SPANS)
def test_a_cut_at_every_token(kind: str) -> None:
    """41. In the middle of a segment of four, at its end, and across several of them."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=4)
    put(cache, model, prompt(20))
    for shared in range(1, 20):
        assert get(cache, model, [*prompt(shared), 99_999]).length == shared


MIXED = ["list", "rotating", "rotating-keep", "chunked", "opaque", "list-state", "all"]


@pytest.mark.parametrize("kind", MIXED)
def test_all_layers_are_at_one_offset_or_it_is_a_miss(kind: str) -> None:
    """42. Never a layer at 0 beside one at 3000, whatever prefix is asked for."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=7)
    for end in (6, 17, 30):
        put(cache, model, prompt(end))
    put(cache, model, prompt(11) + prompt(12, first=1))
    for shared in range(1, 31):
        for tokens in ([*prompt(shared), 999], prompt(11) + prompt(shared, first=1)):
            hit = cache.fetch(tokens)
            if hit:
                parts = zip(model.layers, hit.prompt_cache, strict=True)
                assert {layer.length(part) for layer, part in parts} == {hit.length}
            assert get(cache, model, tokens).length == hit.length


@pytest.mark.parametrize("end", [12, 14, 30])
def test_a_layer_that_could_be_cut_by_less_than_asked(end: int) -> None:
    """44. The first layer could be cut by any number, the slid one behind it by few: a miss."""
    model, cache = PosKV(KV(), Chunked(10)), KVPrefixCache()
    cache.store(prompt(end), model.filled(prompt(end), chunk=4))
    missed = get(cache, model, [*prompt(end - 5), 999])
    assert (missed.length, missed.reason) == (0, "no_checkpoint")
    assert len(cache) == 1
    assert get(cache, model, [*prompt(end), 999]).length == end


def test_a_chunked_cache_keeps_its_last_valid_rows() -> None:
    """45. The buffer has 512 rows, 300 of them valid: kept are the last 280 of those, no others."""
    model, cache, base = PosKV(Chunked(280), KV()), KVPrefixCache(), active()
    prompt_cache = model.filled(prompt(300))
    assert prompt_cache[0].keys.shape[2] == 512
    cache.store(prompt(300), prompt_cache)
    del prompt_cache
    assert active() - base == charged(cache)
    assert cache.nbytes == model.layers[0].nbytes(280) + model.layers[1].nbytes(300)
    hit = cache.fetch([*prompt(300), 1])
    chunked: ChunkedKVCache = hit.prompt_cache[0]
    assert (chunked.start_position, chunked.offset, chunked.keys.shape[2]) == (20, 300, 280)
    model.check(hit.prompt_cache, prompt(300))
    model.grow(hit.prompt_cache, prompt(300, first=1), chunk=50)
    model.check(hit.prompt_cache, prompt(300) + prompt(300, first=1))


class Wiping(ArraysCache):
    """A recurrent state whose ``trim`` throws everything away and calls it done."""

    trimmed = 0

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        type(self).trimmed += 1
        self.cache = [None] * len(self.cache)
        return n


class State(Arrays):
    """A layer with a class of its own."""

    def __init__(self, cls: type[ArraysCache]) -> None:
        super().__init__()
        self.cls = cls

    def fresh(self) -> Any:
        return self.cls(2)

    def check(self, cache: Any, tokens: Any) -> None:
        assert type(cache) is self.cls
        self.check_state(cache[0], cache[1], tokens)


@pytest.mark.parametrize("known", [False, True], ids=["48", "55"])
def test_a_trim_that_wipes_is_never_asked_for(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """48, 55. A class of its own, known or not, comes back from its checkpoint or not at all."""
    monkeypatch.setattr(layers.registry, "_registered", {})
    if known:
        layers.register(Wiping, "state")
    model, cache = PosKV(KV(), State(Wiping)), KVPrefixCache()
    for end in (10, 20):
        put(cache, model, prompt(end))
    assert get(cache, model, [*prompt(7), 999]).reason == "no_checkpoint"
    assert get(cache, model, [*prompt(15), 999]).length == 10
    assert get(cache, model, prompt(20)).length == 10
    assert get(cache, model, [*prompt(20), 999]).length == 20
    assert Wiping.trimmed == 0


def test_a_registered_span_class_is_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """55. What a class is registered as counts alike where it is looked up and where it is cut."""
    monkeypatch.setattr(layers.registry, "_registered", {})

    class Plain(KVCache):
        pass

    class Span(KV):
        cls = Plain

    model, cache = PosKV(Span(), KV()), KVPrefixCache()
    put(cache, model, prompt(20))
    assert get(cache, model, [*prompt(15), 999]).length == 0
    cache.clear()
    layers.register(Plain, "span")
    put(cache, model, prompt(20))
    assert get(cache, model, [*prompt(15), 999]).length == 15


@pytest.mark.parametrize("keep", [0, 3])
def test_the_window_counts_and_not_the_rows(keep: int) -> None:
    """56. A chunk of 100 leaves 107 rows for a window of 8: eight are stored, and fit a limit for eight."""
    model, base = PosKV(Rotating(8, keep)), active()
    cache = KVPrefixCache(max_bytes=model.nbytes(8))
    prompt_cache = model.filled(prompt(200), chunk=100)
    assert nbytes(prompt_cache) > model.nbytes(8) * 10
    stored = cache.store(prompt(200), prompt_cache)
    del prompt_cache
    assert (stored.reason, stored.nbytes) == ("stored", model.nbytes(8))
    assert active() - base == charged(cache)
    assert cache.nbytes == model.nbytes(8)
    hit = cache.fetch([*prompt(200), 1])
    assert nbytes(hit.prompt_cache) == model.nbytes(8)
    model.check(hit.prompt_cache, prompt(200))
