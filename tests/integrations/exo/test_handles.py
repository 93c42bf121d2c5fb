"""Handles: what exo calls an index. They outlive evictions and other requests, and are bounded."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from kvcache.integrations.exo import KVPrefixCache
from kvcache.integrations.exo.handles import Entry, Handles
from kvcache.integrations.exo.request import Request
from tests.support.models import MODELS, prompt

from .engine import request

if TYPE_CHECKING:
    from tests.support.poskv import PosKV

EVERYTHING = 1 << 40


@pytest.fixture
def model() -> PosKV:
    return MODELS["kv"]()


@pytest.fixture
def prefixes() -> KVPrefixCache:
    return KVPrefixCache(None)


def _entry(tokens: list[int], tps: float = 0.0) -> Entry:
    return Entry(Request(tokens, None), len(tokens), tps)


def test_a_handle_outlives_the_eviction_of_its_prompt(prefixes: KVPrefixCache, model: PosKV) -> None:
    one, two = prompt(50, 1), prompt(50, 2)
    first, second = (request(prefixes, model, each, tps=tps) for each, tps in ((one, 1.0), (two, 2.0)))
    index = request(prefixes, model, one).index
    prefixes.cache.evict(EVERYTHING)
    assert prefixes.cache.nbytes == 0
    assert prefixes.prompts == []
    assert [prefixes.prefill_tps[each.saved] for each in (first, second)] == [1.0, 2.0]
    longer = [*one, *prompt(20, 3)]
    saved = prefixes.update_kv_cache(
        index, mx.array(longer), model.filled(longer[:-2]), None, restore_pos=48, prefill_tps=3.0
    )
    assert saved == index == first.saved
    assert prefixes.prefill_tps[index] == 3.0
    assert [each.tolist() for each in prefixes.prompts] == [longer]
    turn = request(prefixes, model, longer)
    assert (turn.hit, turn.index, turn.exact) == (68, index, True)


def test_an_eviction_shifts_no_handle(prefixes: KVPrefixCache, model: PosKV) -> None:
    chats = [prompt(50, first) for first in range(1, 6)]
    saved = [request(prefixes, model, chat).saved for chat in chats]
    assert saved == [0, 1, 2, 3, 4]
    bytes_of_one = prefixes.cache.nbytes // 5
    prefixes.cache.evict(2 * bytes_of_one)
    assert [each.tolist() for each in prefixes.prompts] == chats[2:]
    assert [request(prefixes, model, chat).index for chat in chats[2:]] == [2, 3, 4]
    assert [request(prefixes, model, chat).saved for chat in chats[:2]] == [0, 1]


def test_requests_between_a_fetch_and_its_save(prefixes: KVPrefixCache, model: PosKV) -> None:
    """Older engines of exo save after the answer, when others have been served in the meantime."""
    chat = prompt(50, 1)
    request(prefixes, model, chat)
    longer = [*chat, *prompt(30, 2)]
    cache, rest, index, _ = prefixes.get_kv_cache(model, mx.array(longer))
    for first in range(3, 30):
        request(prefixes, model, prompt(40, first))
    prefixes.cache.evict(prefixes.cache.nbytes // 2)
    model.grow(cache, rest.tolist())
    assert prefixes.update_kv_cache(index, mx.array(longer), cache, None, 48, prefill_tps=9.0) == index
    turn = request(prefixes, model, [*longer, 1, 2, 3])
    assert (turn.hit, turn.index) == (80, index)
    assert prefixes.prefill_tps[index] == 0.0


def test_an_index_that_was_never_handed_out(prefixes: KVPrefixCache, model: PosKV) -> None:
    chat = prompt(20)
    request(prefixes, model, chat)
    for wrong in (1, -1):
        with pytest.raises(IndexError, match=f"index {wrong} was never handed out"):
            prefixes.update_kv_cache(wrong, mx.array(chat), model.filled(chat), None, 0)
        with pytest.raises(IndexError):
            prefixes.prefill_tps[wrong]
    with pytest.raises(TypeError, match="an index is an int, found NoneType"):
        prefixes.update_kv_cache(None, mx.array(chat), model.filled(chat), None, 0)


def test_clear_forgets_prompts_and_gives_no_index_again(prefixes: KVPrefixCache, model: PosKV) -> None:
    chat = prompt(50)
    index = request(prefixes, model, chat, tps=4.0).saved
    assert dict(prefixes.prefill_tps) == {index: 4.0}
    prefixes.clear()
    assert (prefixes.cache.nbytes, prefixes.prompts, len(prefixes.prefill_tps)) == (0, [], 0)
    assert prefixes.prefill_tps[index] == 0.0
    turn = request(prefixes, model, chat)
    assert (turn.hit, turn.index, turn.exact) == (0, None, False)
    assert turn.saved == index + 1


def test_a_hit_without_a_remembered_prompt_gets_a_handle(prefixes: KVPrefixCache, model: PosKV) -> None:
    chat = prompt(50)
    prefixes.cache.store(chat, model.filled(chat))
    turn = request(prefixes, model, [*chat, 1, 2, 3])
    assert (turn.hit, turn.index, turn.exact) == (50, 0, False)
    assert prefixes.prefill_tps[0] == 0.0


@pytest.mark.parametrize(("most", "most_tokens"), [(100, 1 << 30), (1 << 30, 100 * 8)])
def test_the_least_recently_used_are_forgotten(most: int, most_tokens: int) -> None:
    handles = Handles(most, most_tokens)
    for first in range(100):
        assert handles.add(_entry(prompt(8, first), float(first))) == first
    assert handles.match(Request(prompt(8, 0), None), 8)[0] == 0
    for first in range(100, 150):
        handles.add(_entry(prompt(8, first)))
    kept = [number for number, _ in handles.entries()]
    assert kept == [0, *range(51, 150)]
    assert handles.entry(1) is None
    assert handles.update(1, _entry(prompt(9, 1))) == 150
    assert handles.match(Request(prompt(8, 2), None), 5)[0] == 151


def test_a_prompt_beyond_all_bounds_is_remembered_alone() -> None:
    handles = Handles(10, 100)
    handles.add(_entry(prompt(50, 1)))
    assert handles.add(_entry(prompt(500, 2))) == 1
    assert [number for number, _ in handles.entries()] == [1]


def test_the_closest_prompt_is_found_as_a_scan_finds_it() -> None:
    """Against a scan of all prompts, with the tokens' order at stake: small ids and the largest."""
    pick = random.Random(1)
    handles, stored = Handles(), []
    ids = [0, 1, 255, 256, 65536, 2**31 - 1]
    for _ in range(200):
        tokens = pick.choices(ids, k=pick.randint(1, 6))
        handles.add(_entry(tokens))
        stored.append(tokens)
    for _ in range(500):
        query = pick.choices(ids, k=pick.randint(1, 8))
        best = max(_shared(query, each) for each in stored)
        found, entry, shared = handles.match(Request(query, None), 0)
        assert shared == best
        assert _shared(query, entry.request.tokens.tolist()) == best
        assert handles.entry(found) is entry


def _shared(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count
