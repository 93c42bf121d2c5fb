"""Stored, evicted around, split, fetched and continued: bit for bit what a straight run gives.

Each test asserts on the way that what it claims to exercise did happen: segments joined, a node
split, something evicted beside it, windows rotated. A segment holds at most SEGMENT tokens
(``validate`` checks that), so a longer hit was joined from several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from .runs import (
    BESIDE,
    BRIEF,
    CASES,
    CHUNK,
    DECODED,
    OTHER,
    SEGMENT,
    SHARED,
    SIBLING,
    STORED,
    STRAIGHT,
    TRUNK,
    Kinds,
    chunks,
    leaves,
    play,
    singles,
)

if TYPE_CHECKING:
    from kvcache import KVPrefixCache

    from .devices import Cold
    from .runs import Case, Step

pytestmark = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def played(case: Case, model: Any, prefixes: KVPrefixCache, caches: list[Any], steps: list[Step]) -> Any:
    """Plays on a fresh cache or a fetched one, and stores at the end of each chunk."""
    seen, key = [], []
    for step in steps:
        seen += play(case, model, caches, [step])
        key += step[1]
        stored = prefixes.store(key, caches, length=len(key))
        assert (stored.reason, stored.length) == ("stored", len(key))
        prefixes.validate()
    return seen


def content(prompt_cache: list[Any]) -> list[bytes]:
    """All that the layers hold, room behind the tokens aside."""
    found = []
    for layer in leaves(prompt_cache):
        span = Kinds.of([layer]).spans
        for name, value in tree_flatten(vars(layer)):
            if isinstance(value, mx.array):
                held = value[..., : layer.offset, :] if span else value
                found.append(bytes(memoryview(mx.contiguous(held).view(mx.uint8))))
            else:
                found.append(f"{name}={value}".encode())
    return found


def grown(prompt_cache: list[Any]) -> bool:
    """Whether every window dropped its first tokens."""
    windows = [cache for cache in leaves(prompt_cache) if Kinds.of([cache]).windows]
    return all(
        cache.offset > cache.max_size if hasattr(cache, "max_size") else cache.start_position > 0
        for cache in windows
    )


def test_straight_run(case: Case, model: Any, cold: Cold, prefixes: KVPrefixCache) -> None:
    run = f"{case.name}/straight"
    # Three entries: one beside the trunk, the trunk up to STORED, and a sibling.
    played(case, model, prefixes, case.fresh(model), [("run", BESIDE)])
    cold.same(played(case, model, prefixes, case.fresh(model), chunks(TRUNK, 0, STORED)), run, 0)
    diverge(case, model, cold, prefixes)

    hit = prefixes.fetch(TRUNK[:60])
    assert (hit.length, hit.matched, hit.reason) == (STORED, STORED, "hit")
    assert STORED > 2 * SEGMENT
    assert grown(hit.prompt_cache)
    before = content(hit.prompt_cache)

    evict_around(prefixes)
    again = prefixes.fetch(TRUNK[:60])
    assert content(again.prompt_cache) == before

    # The first one is continued and stored on the way; the second one stands beside it.
    key, number = TRUNK[:STORED], STORED // CHUNK
    for step in STRAIGHT[number:13]:
        cold.same(play(case, model, hit.prompt_cache, [step]), run, number)
        key, number = key + step[1], number + 1
        if len(key) in (48, 60, 68):
            assert prefixes.store(key, hit.prompt_cache, length=len(key)).length == len(key)
            prefixes.validate()
    assert content(again.prompt_cache) == before
    assert content(prefixes.fetch(TRUNK[: STORED + 1]).prompt_cache) == before

    # A second turn continues from the middle of a rotation, whatever the first one appends meanwhile.
    play(case, model, hit.prompt_cache, singles(OTHER, 60, DECODED))
    last = prefixes.fetch(TRUNK[:75])
    assert last.length == 68
    for cache in leaves(last.prompt_cache):
        if hasattr(cache, "max_size"):
            assert 0 < cache._idx < cache.max_size
    cold.same(play(case, model, last.prompt_cache, STRAIGHT[13:]), run, 13)
    prefixes.validate()


def diverge(case: Case, model: Any, cold: Cold, prefixes: KVPrefixCache) -> None:
    """A sibling that leaves the trunk inside a node: fetched, continued, stored."""
    spans_only = Kinds.of(case.fresh(model)).spans_only
    hit = prefixes.fetch(SIBLING[:40])
    assert hit.matched == SHARED
    assert hit.length == (SHARED if spans_only else 24)
    assert hit.checkpoint_at == (None if spans_only else SHARED)
    run, first = f"{case.name}/sibling", 3 if spans_only else 2
    cold.same(play(case, model, hit.prompt_cache, [("run", SIBLING[hit.length : 40])]), run, first)
    nodes = prefixes.stats().nodes
    stored = prefixes.store(SIBLING[:40], hit.prompt_cache, length=40)
    prefixes.validate()
    assert (stored.length, stored.new_tokens) == (40, 40 - SHARED)
    added = -(-stored.new_tokens // SEGMENT)
    assert prefixes.stats().nodes == nodes + added + 1, "nothing was split"
    cold.same(play(case, model, hit.prompt_cache, singles(SIBLING, 40, DECODED)), run, first + 1)
    assert prefixes.peek(SIBLING[:42]).length == 40


def evict_around(prefixes: KVPrefixCache) -> None:
    """Evicts the entry beside the trunk, then the sibling's branch, and nothing of the trunk's."""
    assert prefixes.peek(BESIDE).length > 0 or prefixes.peek([*BESIDE, 0]).length == len(BESIDE)
    while prefixes.peek([*BESIDE, 0]).length:
        assert prefixes.evict(1)
        prefixes.validate()
    while prefixes.peek(SIBLING[:42]).length > SHARED:
        assert prefixes.evict(1)
        prefixes.validate()
    assert prefixes.peek(TRUNK[:60]).length == STORED


def test_what_came_before_matters(case: Case, model: Any, cold: Cold) -> None:
    """Or equal logits would prove nothing."""
    number = STORED // CHUNK
    [logits] = play(case, model, case.fresh(model), STRAIGHT[number : number + 1])
    assert np.abs(logits - cold[f"{case.name}/straight/{number}"]).max() > 0.01


def test_decode_right_after_the_fetch(case: Case, model: Any, cold: Cold, prefixes: KVPrefixCache) -> None:
    played(case, model, prefixes, case.fresh(model), chunks(TRUNK, 0, STORED))
    steps = singles(TRUNK, STORED, 2 * DECODED)
    for _ in range(2):
        # What the first one appended in place is not in the second one.
        hit = prefixes.fetch(TRUNK[: STORED + 1])
        assert hit.length == STORED
        cold.same(play(case, model, hit.prompt_cache, steps), f"{case.name}/stepwise", STORED // CHUNK)
        prefixes.validate()


def test_a_checkpoint_serves_less_while_no_window_rotated(
    case: Case, model: Any, cold: Cold, prefixes: KVPrefixCache
) -> None:
    kinds = Kinds.of(case.fresh(model))
    played(case, model, prefixes, case.fresh(model), chunks(TRUNK, 0, CHUNK))
    hit = prefixes.fetch(OTHER[:21])
    assert hit.matched == BRIEF
    if kinds.states:
        assert (hit.length, hit.reason, hit.checkpoint_at) == (0, "no_checkpoint", BRIEF)
        return
    assert (hit.length, hit.checkpoint_at) == (BRIEF, None)
    for cache in leaves(hit.prompt_cache):
        assert Kinds.of([cache]).spans or cache.keys.shape[2] == BRIEF
    steps = [("run", OTHER[BRIEF:21]), *singles(OTHER, 21, DECODED)]
    cold.same(play(case, model, hit.prompt_cache, steps), f"{case.name}/trimmed", 1, cut=True)
    assert grown(hit.prompt_cache)
    again = prefixes.fetch(OTHER[:21])
    steps = singles(OTHER, BRIEF, 2 * DECODED)
    cold.same(play(case, model, again.prompt_cache, steps), f"{case.name}/trimmed stepwise", 1, cut=True)
    third = prefixes.fetch(OTHER[:21])
    steps = [("trim", 2), ("run", OTHER[BRIEF - 2 : 21])]
    cold.same(play(case, model, third.prompt_cache, steps), f"{case.name}/trimmed twice", 1, cut=True)
    prefixes.validate()


def test_a_rotated_window_serves_its_own_length_only(case: Case, model: Any, prefixes: KVPrefixCache) -> None:
    kinds = Kinds.of(case.fresh(model))
    played(case, model, prefixes, case.fresh(model), chunks(TRUNK, 0, STORED))
    assert prefixes.peek(TRUNK[:31]).length == (30 if kinds.spans_only else 24)
    assert prefixes.peek(TRUNK[:15]).length == (14 if kinds.spans_only else CHUNK)
    assert prefixes.peek(TRUNK[:11]).length == (0 if kinds.states else 10)


def test_moved_in_and_out(case: Case, model: Any, cold: Cold, prefixes: KVPrefixCache) -> None:
    """``donate`` and ``take`` instead of copies, at the end of each chunk."""
    caches, key, run = case.fresh(model), [], f"{case.name}/straight"
    for number, step in enumerate(STRAIGHT):
        cold.same(play(case, model, caches, [step]), run, number)
        key = key + step[1]
        if len(step[1]) == 1 and len(key) % 3:
            continue
        assert prefixes.store(key, caches, length=len(key), donate=True).length == len(key)
        prefixes.validate()
        hit = prefixes.fetch([*key, 0], take=True)
        assert hit.length == len(key)
        prefixes.validate()
        caches = hit.prompt_cache
    assert prefixes.nbytes == 0
