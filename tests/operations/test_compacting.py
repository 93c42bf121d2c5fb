"""Segments that were joined of many parts: few parts again, the same bits, and no store that fails by it."""

from __future__ import annotations

import gc
from itertools import count, pairwise
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache import KVPrefixCache
from kvcache.operations.compact import fitting_runs, merged_runs
from tests.support import inside
from tests.support.failures import allocation_failure, assert_settled, failing
from tests.support.layers import KV
from tests.support.memory import active, charged
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV

GRAIN = 100


def _most_parts(cache: KVPrefixCache) -> int:
    return max(map(len, inside.segments(cache).values()))


def _branched(cache: KVPrefixCache, model: PosKV, tokens: list[int]) -> None:
    """Branches at every token of a stored prompt, and evicts them."""
    for at in range(1, len(tokens)):
        branch = [*tokens[:at], 9_999]
        assert cache.store(branch, model.filled(branch), length=len(branch)).length == len(branch)
    with cache.pin(tokens):
        cache.evict(10**12)


@given(st.lists(st.integers(1, 300), max_size=40))
def test_each_run_is_more_than_twice_the_next(lengths: list[int]) -> None:
    runs = merged_runs(lengths)
    assert [at for run in runs for at in run] == list(range(len(lengths)))
    totals = [sum(lengths[at] for at in run) for run in runs]
    assert all(one > 2 * other for one, other in pairwise(totals))


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 50)), max_size=40), st.integers(0, 800))
def test_what_fits_is_merged(parts: list[tuple[int, int]], free: int) -> None:
    lengths, sizes = [length for length, _ in parts], [size for _, size in parts]
    whole = merged_runs(lengths)
    runs = fitting_runs(whole, sizes, free)
    assert [at for run in runs for at in run] == list(range(len(parts)))
    assert sum(sizes[at] for run in runs if len(run) > 1 for at in run) <= free
    if free >= sum(sizes):
        assert runs == whole


@pytest.mark.parametrize("kind", SPANS)
def test_branches_at_every_token_leave_nothing_behind(kind: str) -> None:
    model, cache, tokens = MODELS[kind](), KVPrefixCache(segment_tokens=GRAIN, gc="auto"), prompt(250)
    cache.store(tokens, model.filled(tokens))
    buffers = cache.stats().buffers
    _branched(cache, model, tokens)
    assert cache.stats().buffers > 10 * buffers
    cache.store(tokens, model.filled(tokens))
    assert cache.stats().buffers == buffers
    model.check(cache.fetch([*tokens, 1]).prompt_cache, tokens)
    cache.validate()


def test_a_full_cache_makes_room_for_it() -> None:
    """Otherwise whoever keeps it full could keep every prompt in pieces."""
    model, tokens = PosKV(KV()), prompt(GRAIN)
    cache = KVPrefixCache(max_bytes=4 * model.nbytes(GRAIN), segment_tokens=GRAIN, gc="auto")
    cache.store(tokens, model.filled(tokens))
    _branched(cache, model, tokens)
    for first in range(1, 4):
        cache.store(prompt(GRAIN, first=first), model.filled(prompt(GRAIN, first=first)))
    assert cache.nbytes == 4 * model.nbytes(GRAIN)
    stored = cache.store(tokens, model.filled(tokens))
    assert (stored.reason, stored.evicted.segments) == ("already", 1)
    assert _most_parts(cache) == 1
    assert cache.stats().evicted_bytes >= stored.evicted.nbytes > 0
    model.check(cache.fetch([*tokens, 1]).prompt_cache, tokens)
    cache.validate()


@pytest.mark.parametrize("kind", ["kv", "quantized", "arrays", "all"])
def test_a_chat_that_grows_token_by_token_has_few_parts_and_copies_little(kind: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=16 * GRAIN, max_checkpoints=1, gc="auto")
    layers = model.make_cache()
    length = 2 * GRAIN
    for at in range(length):
        model.append(layers, [at])
        cache.store(list(range(at + 1)), layers, length=at + 1)
        assert _most_parts(cache) <= 2 + log2(GRAIN)
    model.check(cache.fetch([*range(length), 1]).prompt_cache, list(range(length)))
    cache.validate()


def _joining(model: PosKV) -> tuple[KVPrefixCache, list[int], list[int]]:
    """A cache, a prompt in it, and one that goes on in the same block of tokens."""
    cache = KVPrefixCache(segment_tokens=16 * GRAIN)
    tokens = prompt(40)
    cache.store(tokens, model.filled(tokens))
    return cache, tokens, [*tokens, *prompt(20, first=1)]


@pytest.mark.parametrize("kind", SPANS)
@pytest.mark.parametrize("error", [allocation_failure, ArithmeticError, MemoryError])
def test_an_operation_that_fails_leaves_the_parts_as_they_were(kind: str, error: type) -> None:
    model = MODELS[kind]()
    with failing(lambda _: False, error) as dry:
        cache, _, longer = _joining(model)
        layers = model.filled(longer)
        dry.count = 0
        cache.store(longer, layers)
    assert _most_parts(cache) == 1
    tried = 0
    for last in count():
        cache, _, longer = _joining(model)
        layers = model.filled(longer)
        with failing(lambda at, last=last: at == dry.count - last, error) as faults:
            try:
                stored = cache.store(longer, layers)
            except (ArithmeticError, MemoryError):
                # Before the store's commit: not this test's business.
                break
        assert faults.raised == 1
        if _most_parts(cache) == 1:
            # The store's own copy, tried again.
            break
        tried += 1
        assert stored.reason == "stored"
        # Neither the error nor its frames keep arrays that a collection would have to find.
        held = active()
        gc.collect()
        assert active() == held
        model.check(cache.fetch([*longer, 1]).prompt_cache, longer)
        assert_settled(cache)
        # The next store that adds to the block finishes it.
        more = [*longer, *prompt(20, first=2)]
        cache.store(more, model.filled(more))
        assert _most_parts(cache) == 1
    assert tried > 0


def test_an_interrupt_leaves_what_was_stored() -> None:
    model = PosKV(KV())
    cache, _, longer = _joining(model)
    layers = model.filled(longer)
    with failing(lambda _: False, KeyboardInterrupt) as dry:
        cache.store(longer, layers)
    cache, _, longer = _joining(model)
    with failing(lambda at: at == dry.count, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        cache.store(longer, layers)
    model.check(cache.fetch([*longer, 1]).prompt_cache, longer)
    assert_settled(cache)


def test_what_is_rewritten_frees_what_it_was() -> None:
    model, base = PosKV(KV()), active()
    cache, _, longer = _joining(model)
    cache.store(longer, model.filled(longer))
    assert _most_parts(cache) == 1
    assert active() - base == charged(cache)
    assert cache.evict(10**9).nbytes == model.nbytes(len(longer))
    assert active() == base
