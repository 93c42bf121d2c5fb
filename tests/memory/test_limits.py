"""Limits and pressure: what is refused, what is evicted, and that it is never more than needed."""

from __future__ import annotations

from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from kvcache import ConfigError, KVPrefixCache
from tests.support.entries import alive, fill
from tests.support.layers import KV, Arrays, Rotating
from tests.support.memory import active, charged, spill
from tests.support.models import MODELS, prompt
from tests.support.poskv import PosKV

GIB = 2**30


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("donate", [False, True])
def test_the_ledger_is_never_over_max_bytes(kind: str, donate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen at every evaluation, not just after a call: the copies of a store are counted too."""
    model, base = MODELS[kind](), active()
    limit = model.nbytes(100)
    cache = KVPrefixCache(max_bytes=limit, segment_tokens=8)
    evaluate, held_by_caller, seen = mx.eval, 0, []

    def watching(*arrays: Any) -> None:
        evaluate(*arrays)
        buffers = cache.stats().buffers + len(tree_flatten(arrays))
        seen.append((active() - base - held_by_caller, buffers))

    for turn in range(30):
        tokens = prompt(turn % 3 + 1) + prompt(2 * turn + 3, first=turn % 5)
        prompt_cache = model.filled(tokens)
        held_by_caller = active() - base - charged(cache)
        monkeypatch.setattr(mx, "eval", watching)
        stored = cache.store(tokens, prompt_cache, length=len(tokens), donate=donate)
        monkeypatch.setattr(mx, "eval", evaluate)
        assert stored.reason in ("stored", "truncated", "too_large")
        assert cache.nbytes <= limit
        cache.validate()
    # A window with kept rows is put in order before it is copied.
    ordered = model.layers[0].nbytes(8) if kind == "rotating-keep" else 0
    assert max(held for held, _ in seen) > 0
    assert all(held <= limit + ordered + spill(buffers) for held, buffers in seen)


def test_max_buffers_counts_arrays() -> None:
    """REPORTS 17: 36 layers of two arrays under a limit of 100 are one entry."""
    model = PosKV(*(KV(heads=1) for _ in range(36)))
    cache = KVPrefixCache(max_buffers=100)
    fill(cache, model, 1, 5)
    assert cache.stats().buffers == 72
    second = prompt(5, first=1)
    assert cache.store(second, model.filled(second)).evicted.segments == 1
    assert cache.stats().buffers == 72
    assert alive(cache, 2, 5) == [1]


def test_max_buffers_of_nothing_stores_nothing() -> None:
    model, cache = PosKV(KV()), KVPrefixCache(max_buffers=0)
    assert cache.store(prompt(5), model.filled(prompt(5))).reason == "too_large"
    assert not cache.nbytes


def test_the_longest_prefix_that_fits_is_kept() -> None:
    """REPORTS 25: one token over the limit must not cost all of the reuse."""
    model = PosKV(KV())
    cache = KVPrefixCache(max_bytes=model.nbytes(100))
    stored = cache.store(prompt(120), model.filled(prompt(120)))
    assert (stored.reason, stored.length, stored.new_tokens) == ("truncated", 100, 100)
    assert cache.fetch(prompt(120)).length == 100
    again = cache.store(prompt(120), model.filled(prompt(120)))
    assert (again.length, again.new_tokens) == (100, 0)


def test_what_cannot_be_cut_is_refused_and_costs_nothing() -> None:
    model = PosKV(KV(), Arrays())
    cache = KVPrefixCache(max_bytes=model.nbytes(50))
    fill(cache, model, 1, 20)
    stored = cache.store(prompt(60, first=3), model.filled(prompt(60, first=3)))
    assert (stored.reason, stored.nbytes, bool(stored.evicted)) == ("too_large", 0, False)
    assert alive(cache, 1, 20) == [0]


def test_reserve_makes_just_enough_room() -> None:
    model = PosKV(KV())
    cache = KVPrefixCache(max_bytes=model.nbytes(100))
    fill(cache, model, 5, 20)
    assert not cache.reserve(0)
    evicted = cache.reserve(model.nbytes(20) + 1)
    assert evicted.segments == 2
    assert alive(cache, 5, 20) == [2, 3, 4]
    assert not cache.reserve(model.nbytes(40))


def test_reserve_protects_a_hit() -> None:
    model = PosKV(KV())
    cache = KVPrefixCache(max_bytes=model.nbytes(100))
    fill(cache, model, 5, 20)
    hit = cache.peek([*prompt(20), 1])
    assert cache.reserve(model.nbytes(80), protect=hit).segments == 4
    assert alive(cache, 5, 20) == [0]
    assert cache.reserve(model.nbytes(80)).segments == 0
    assert cache.reserve(model.nbytes(81)).segments == 1


def test_reserve_protects_a_hybrid_s_checkpoint() -> None:
    model = PosKV(KV(), Arrays(), Rotating(4))
    cache = KVPrefixCache(max_bytes=2 * model.nbytes(20))
    fill(cache, model, 2, 20)
    hit = cache.peek([*prompt(20), 1])
    assert cache.reserve(model.nbytes(20), protect=hit).checkpoints == 1
    assert alive(cache, 2, 20) == [0]


@pytest.mark.parametrize("protected", [False, True])
def test_an_infeasible_reserve_evicts_nothing(protected: bool) -> None:
    """REPORTS 30: the prefix that is about to be used survives."""
    model = PosKV(KV())
    cache = KVPrefixCache(max_bytes=model.nbytes(100))
    fill(cache, model, 5, 20)
    hit = cache.peek([*prompt(20), 1])
    asked = model.nbytes(81 if protected else 101)
    assert not cache.reserve(asked, protect=hit if protected else None)
    assert alive(cache, 5, 20) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(6))
def test_no_shorter_run_of_the_lru_order_would_do(seed: int) -> None:
    """One cache is asked for all of it in steps of one unit: that is the order. Its twins are asked
    for random amounts, and must stop where the order's running sum first reaches them."""
    random = Random(seed)
    model = PosKV(KV()) if seed % 2 else PosKV(KV(), Arrays())
    script = [
        (
            prompt(random.randrange(0, 30)) + prompt(random.randrange(1, 20), first=random.randrange(1, 6)),
            random.random(),
        )
        for _ in range(25)
    ]

    def built() -> KVPrefixCache:
        cache = KVPrefixCache(segment_tokens=7)
        for tokens, dice in script:
            cache.store(tokens, model.filled(tokens))
            if dice < 0.5:
                cache.fetch([*tokens[: 1 + int(dice * len(tokens))], 1])
        return cache

    order, whole = [], built()
    while whole.nbytes:
        order.append(whole.evict(1).nbytes)
    for _ in range(12):
        asked = random.randrange(1, sum(order) + 100)
        cache = built()
        evicted = cache.evict(asked)
        shortest = next((n for n in range(1, len(order) + 1) if sum(order[:n]) >= asked), len(order))
        assert evicted.nbytes == sum(order[:shortest])
        cache.validate()


@pytest.mark.parametrize(
    ("seconds", "error", "says"),
    [
        (-1, ConfigError, "must not be negative, found -1"),
        (float("nan"), ConfigError, "must be a number, found nan"),
        (None, TypeError, "seconds must be a number, found NoneType"),
        ("1", TypeError, "found str"),
        (True, TypeError, "found bool"),
    ],
)
def test_idle_seconds_that_are_none(seconds: Any, error: type[Exception], says: str) -> None:
    cache, model = KVPrefixCache(), PosKV(KV())
    fill(cache, model, 1, 5)
    with pytest.raises(error, match=says):
        cache.evict_idle(seconds)
    cache.validate()
    assert alive(cache, 1, 5) == [0]


def test_trimming_to_nothing_in_particular_says_what_to_pass() -> None:
    cache, model = KVPrefixCache(), PosKV(KV())
    fill(cache, model, 1, 5)
    with pytest.raises(ConfigError, match=r"^trim_to needs at least one limit, found none; pass nbytes="):
        cache.trim_to()
    cache.validate()
    assert alive(cache, 1, 5) == [0]


@pytest.mark.parametrize("name", ["tokens", "sequences", "entries"])
@pytest.mark.parametrize(
    ("limit", "says"),
    [
        (-1, "must be at least 0, found -1$"),
        (2**62 + 1, r"must be at most 2\*\*62, found 46\d+5$"),
    ],
)
def test_a_limit_out_of_range_names_the_bound(name: str, limit: int, says: str) -> None:
    cache = KVPrefixCache()
    with pytest.raises(ConfigError, match=f"^{name} {says}"):
        cache.trim_to(**{name: limit})
    with pytest.raises(ConfigError, match=r"^nbytes must be from 0 to 4 EiB"):
        cache.trim_to(nbytes=limit)


def test_idle_seconds_of_numpy() -> None:
    cache, model = KVPrefixCache(clock=lambda: 10.0), PosKV(KV())
    fill(cache, model, 1, 5)
    assert not cache.evict_idle(np.float32(1))
    assert cache.evict_idle(np.int64(0)).segments == 1
