"""Which entry goes when one must."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvcache import KVPrefixCache
from tests.support.layers import KV, Arrays, Rotating
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV

from .steps import get, put

kinds = pytest.mark.parametrize("kind", MODELS)
spans = pytest.mark.parametrize("kind", SPANS)


@kinds
def test_a_fetch_counts_as_use(kind: str) -> None:
    """20. Room for two: A, B, A again, then C pushes B out and not A."""
    model = MODELS[kind]()
    cache = KVPrefixCache(max_bytes=2 * model.nbytes(40))
    put(cache, model, prompt(40, first=1))
    put(cache, model, prompt(40, first=2))
    assert cache.fetch(prompt(41, first=1)).length == 40
    put(cache, model, prompt(40, first=3))
    assert [cache.peek(prompt(41, first=first)).length for first in (1, 2, 3)] == [40, 0, 40]


@kinds
def test_a_look_does_not_count_as_use(kind: str) -> None:
    """20. ``peek`` leaves the order alone, so that a scheduler may ask about every prompt."""
    model = MODELS[kind]()
    cache = KVPrefixCache(max_bytes=2 * model.nbytes(40))
    put(cache, model, prompt(40, first=1))
    put(cache, model, prompt(40, first=2))
    assert cache.peek(prompt(41, first=1)).length == 40
    put(cache, model, prompt(40, first=3))
    assert [cache.peek(prompt(41, first=first)).length for first in (1, 2, 3)] == [0, 40, 40]


@kinds
def test_a_prefix_of_one_token(kind: str) -> None:
    """21. The shortest prefix there is serves like any other."""
    model, cache = MODELS[kind](), KVPrefixCache()
    put(cache, model, [1])
    assert get(cache, model, [1, 2]).length == 1
    assert get(cache, model, [1]).reason == "too_short"


@pytest.mark.parametrize("kind", ["kv", "quantized", "arrays", "rotating"])
def test_two_chats_on_one_system_prompt(kind: str) -> None:
    """28. The second chat takes nothing from the first, and both hold the system prompt once."""
    model, cache = MODELS[kind](), KVPrefixCache()
    system = prompt(2000)
    one, two = system + prompt(3000, first=7), system + prompt(1000, first=8)
    put(cache, model, one)
    put(cache, model, two)
    assert get(cache, model, [*one, 1]).length == 5000
    assert get(cache, model, [*two, 1]).length == 3000
    assert cache.ntokens == 6000


@pytest.mark.parametrize(
    ("max_checkpoints", "room"), [(5, None), (100, 5)], ids=["by number", "by the chat's own bytes"]
)
def test_a_lone_chat_gives_up_its_own_old_checkpoints(max_checkpoints: int, room: int | None) -> None:
    """32. Fifty turns, a checkpoint each: the newest five stay at most, and every turn is stored."""
    model = PosKV(KV(heads=1), Rotating(8, heads=8))
    state = model.layers[1].nbytes(200)
    limit = None if room is None else model.layers[0].nbytes(200) + room * state
    cache, tokens = KVPrefixCache(max_bytes=limit, max_checkpoints=max_checkpoints), []
    for turn in range(50):
        tokens += prompt(4, first=turn)
        assert put(cache, model, tokens).reason == "stored"
        assert cache.peek([*tokens, 1]).length == len(tokens)
    assert cache.stats().checkpoints == 5
    assert cache.ntokens == 200
    assert cache.nbytes == model.layers[0].nbytes(200) + 5 * state
    assert get(cache, model, [*tokens, 1]).length == 200


@spans
def test_an_eviction_cuts_tails(kind: str) -> None:
    """35. Three nodes in a row go from the end, also where only the front was asked for since."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=10)
    tokens = prompt(30)
    put(cache, model, tokens)
    assert cache.stats().segments == 3
    for left in (20, 10, 0):
        cache.fetch(prompt(5))
        assert cache.evict(1).tokens == 10
        assert cache.ntokens == left
        assert get(cache, model, [*tokens, 1]).length == left
    assert cache.nbytes == 0


@pytest.mark.parametrize("kind", ["arrays", "rotating", "list-state", "all"])
def test_no_kv_is_left_that_nothing_can_use(kind: str) -> None:
    """35. What lies behind the deepest checkpoint left is dead weight and goes with the lost one."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=10)
    tokens, ends = prompt(60), (60, 45, 20)
    for end in reversed(ends):
        put(cache, model, tokens[:end])
    for end in ends:
        assert cache.fetch([*tokens[:end], 1]).length == end
    for left, end in ((45, 60), (20, 45), (0, 20)):
        assert cache.evict(1).tokens == end - left
        assert cache.ntokens == cache.peek([*tokens, 1]).length == left
        cache.validate()
    assert cache.nbytes == 0


@pytest.mark.parametrize("kind", ["arrays", "rotating"])
def test_checkpoints_of_a_long_prompt_are_spread_out(kind: str) -> None:
    """38. Of 113 positions eight keep theirs: the newest, and no gap beyond twice the even one."""
    model = PosKV(KV(heads=1), {"arrays": Arrays(), "rotating": Rotating(8)}[kind])
    cache, tokens, prompt_cache = KVPrefixCache(max_checkpoints=8), prompt(113 * 18), model.make_cache()
    held = model.layers[1].nbytes(2034)
    for end in range(18, 113 * 18 + 1, 18):
        model.grow(prompt_cache, tokens[end - 18 : end])
        cache.store(tokens[:end], prompt_cache)
        assert cache.stats().checkpoints <= 8
    assert cache.nbytes == model.layers[0].nbytes(2034) + 8 * held
    kept = [end for end in range(18, 2035, 18) if cache.peek([*tokens[:end], 1]).length == end]
    assert len(kept) == 8
    assert kept[-1] == 2034
    assert max(after - before for before, after in pairwise([0, *kept])) <= 2 * 2034 / 8
