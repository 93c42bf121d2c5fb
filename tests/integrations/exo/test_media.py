"""Media regions: KV is reused only where both sides say that the same content stands there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from kvcache import ConfigError
from kvcache.integrations.exo import KVPrefixCache
from tests.support.models import MODELS, prompt

from .engine import Region, request

if TYPE_CHECKING:
    from tests.support.poskv import PosKV

TOKENS = prompt(30)
A = Region("a", 10, 20)


@pytest.fixture
def model() -> PosKV:
    return MODELS["kv"]()


@pytest.fixture
def prefixes() -> KVPrefixCache:
    return KVPrefixCache(None)


def _put(
    prefixes: KVPrefixCache, model: PosKV, regions: list[Region], tokens: list[int] = TOKENS
) -> int | None:
    return prefixes.add_kv_cache(mx.array(tokens), model.filled(tokens), None, regions)


def _got(
    prefixes: KVPrefixCache, model: PosKV, regions: list[Region], tokens: list[int] = TOKENS
) -> tuple[int, bool]:
    cache, rest, _, exact = prefixes.get_kv_cache(model, mx.array(tokens), regions)
    length = len(tokens) - len(rest)
    model.check(cache, tokens[:length])
    return length, exact


@pytest.mark.parametrize(
    ("cached", "asked", "found"),
    [
        ([A], [A], (29, True)),
        ([A], [Region("b", 10, 20)], (10, False)),
        ([A], [], (10, False)),
        ([], [A], (10, False)),
        ([A], [Region("a", 11, 20)], (10, False)),
        ([A], [Region("a", 10, 21)], (10, False)),
        ([A, Region("c", 22, 25)], [A, Region("d", 22, 25)], (22, False)),
        ([Region("c", 22, 25), A], [A, Region("c", 22, 25)], (29, True)),
        ([Region("", 10, 20)], [Region("", 10, 20)], (10, False)),
        ([A], [Region("", 10, 20)], (10, False)),
        ([Region("", 10, 20)], [A], (10, False)),
        ([Region("", 10, 20)], [], (10, False)),
        ([], [Region("", 10, 20)], (10, False)),
        ([A, A], [A, A], (10, False)),
        ([A, Region("c", 15, 25)], [A, Region("c", 15, 25)], (10, False)),
        ([Region("a", 10, 10)], [Region("a", 10, 10)], (10, False)),
        ([Region("a", 10, 99)], [Region("a", 10, 99)], (10, False)),
        ([Region("a", -1, 5)], [], (0, False)),
        ([Region("a", 30, 40)], [Region("b", 30, 40)], (29, True)),
    ],
    ids=str,
)
def test_only_what_both_sides_identify_is_reused(
    prefixes: KVPrefixCache, model: PosKV, cached: list[Region], asked: list[Region], found: tuple[int, bool]
) -> None:
    _put(prefixes, model, cached)
    assert _got(prefixes, model, asked) == found


def test_a_match_that_ends_inside_an_image_ends_before_it(prefixes: KVPrefixCache, model: PosKV) -> None:
    _put(prefixes, model, [A])
    assert _got(prefixes, model, [Region("a", 10, 16)], TOKENS[:16]) == (10, False)
    assert _got(prefixes, model, [A], TOKENS[:20]) == (10, True)
    assert _got(prefixes, model, [A], [*TOKENS[:20], 7, 8]) == (20, False)
    assert _got(prefixes, model, [A], [*TOKENS[:20], 7]) == (20, True)


def test_a_prompt_that_ends_inside_an_image_is_kept_up_to_it(prefixes: KVPrefixCache, model: PosKV) -> None:
    prefixes.add_kv_cache(mx.array(TOKENS[:20]), model.filled(TOKENS[:18]), None, [A])
    assert prefixes.cache.ntokens == 10
    assert _got(prefixes, model, [A]) == (10, False)
    assert _got(prefixes, model, []) == (10, False)


def test_text_before_a_new_image_stays_reusable(prefixes: KVPrefixCache, model: PosKV) -> None:
    text = prompt(1000)
    first, second = ([*text, *[5] * 50, *prompt(20, tail)] for tail in (1, 2))
    turns = [
        request(prefixes, model, tokens, [Region(content, 1000, 1050)])
        for tokens, content in ((first, "a"), (second, "b"), (first, "a"), (second, "b"))
    ]
    assert [(turn.hit, turn.exact) for turn in turns] == [
        (0, False),
        (1000, False),
        (1068, True),
        (1068, True),
    ]
    assert [each.tolist() for each in prefixes.prompts] == [first, second]


def test_the_same_placeholders_for_another_image_are_another_prompt(
    prefixes: KVPrefixCache, model: PosKV
) -> None:
    """exo#2272: the first image answered for all that followed."""
    tokens = [*prompt(10), *[5] * 10, *prompt(10, 3)]
    images = [Region(content, 10, 20) for content in "abc"]
    first = [request(prefixes, model, tokens, [image]) for image in images]
    again = [request(prefixes, model, tokens, [image]) for image in images]
    assert [turn.hit for turn in first] == [0, 10, 10]
    assert [(turn.hit, turn.index, turn.exact) for turn in again] == [
        (28, turn.saved, True) for turn in first
    ]
    assert len({turn.saved for turn in first}) == 3


def test_nothing_behind_an_unidentified_image_is_kept(prefixes: KVPrefixCache) -> None:
    model, tokens = MODELS["arrays"](), prompt(60)
    turn = request(prefixes, model, tokens, [Region("", 30, 35)])
    assert [snapshot.token_count for snapshot in turn.snapshots] == [0, 12, 24, 36, 48, 58]
    assert (prefixes.cache.stats().checkpoints, prefixes.cache.ntokens) == (2, 24)
    assert request(prefixes, model, tokens).hit == 24


def test_no_checkpoint_inside_an_image(prefixes: KVPrefixCache) -> None:
    model, tokens = MODELS["arrays"](), prompt(60)
    request(prefixes, model, tokens, [Region("a", 20, 40)])
    assert prefixes.cache.stats().checkpoints == 3
    assert request(prefixes, model, tokens, [Region("b", 20, 40)]).hit == 12
    assert request(prefixes, model, [*tokens[:50], 1, 2, 3], [Region("a", 20, 40)]).hit == 48


def test_a_hash_of_another_type(prefixes: KVPrefixCache, model: PosKV) -> None:
    with pytest.raises(ConfigError, match="digest"):
        _put(prefixes, model, [Region(7, 10, 20)])
