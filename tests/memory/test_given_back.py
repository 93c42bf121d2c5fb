"""Memory that really comes back: MLX's own counters against the ledger, to the byte."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from kvcache import KVPrefixCache
from kvcache.arrays import clear_pool
from tests.support.entries import stored
from tests.support.inside import stored_arrays
from tests.support.layers import KV, Arrays
from tests.support.memory import active, charge, charged, charges, footprint, given_back, weigh
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV, held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


ENDINGS: dict[str, Callable[[KVPrefixCache], Any]] = {
    "evict": lambda cache: cache.evict(cache.nbytes),
    "evict some": lambda cache: cache.evict(cache.nbytes // 3),
    "trim_to": lambda cache: cache.trim_to(tokens=0),
    "clear": lambda cache: cache.clear(),
    "drop": lambda cache: cache.drop(""),
    "close": lambda cache: cache.close(),
}


kinds = pytest.mark.parametrize("kind", MODELS)


def _knot(*values: Any) -> None:
    """A reference cycle around the values, out of anyone's reach."""
    knot: list[Any] = list(values)
    knot.append(knot)


class Counting:
    """How often the collector and MLX's pool were asked to give back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.collections = self.clearings = 0
        collect, clear = gc.collect, mx.clear_cache

        def counted_collect(*arguments: int) -> int:
            self.collections += 1
            return collect(*arguments)

        def counted_clear() -> None:
            self.clearings += 1
            clear()

        monkeypatch.setattr(gc, "collect", counted_collect)
        monkeypatch.setattr(mx, "clear_cache", counted_clear)

    def take(self) -> tuple[int, int]:
        counts = self.collections, self.clearings
        self.collections = self.clearings = 0
        return counts


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    yield Counting(monkeypatch)
    monkeypatch.undo()


@kinds
@pytest.mark.parametrize("length", [5, 8, 30, 300])
def test_a_store_holds_its_tokens_and_nothing_behind_them(kind: str, length: int) -> None:
    """Over-allocated steps, rows beyond a window, parents of views: none of it stays."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=64)
    before = active()
    prompt_cache = model.filled(prompt(length), chunk=max(1, length // 2))
    assert cache.store(prompt(length), prompt_cache, length=len(prompt(length))).nbytes == model.nbytes(
        length
    )
    del prompt_cache
    assert cache.nbytes == model.nbytes(length)
    assert active() - before == charged(cache)
    cache.validate()


@kinds
def test_a_store_keeps_no_lazy_graph(kind: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache()
    before = active()
    prompt_cache = model.make_cache()
    model.append(prompt_cache, prompt(40))
    model.append(prompt_cache, [7])
    cache.store([*prompt(40), 7], prompt_cache, length=len([*prompt(40), 7]))
    del prompt_cache
    assert active() - before == charged(cache)
    assert cache.nbytes == model.nbytes(41)


def test_a_store_keeps_no_parent_of_a_slice() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    before = active()
    prompt_cache = model.filled(prompt(10_000))
    layer = prompt_cache[0]
    layer.keys, layer.values, layer.offset = layer.keys[..., :256, :], layer.values[..., :256, :], 256
    cache.store(prompt(256), prompt_cache)
    del prompt_cache, layer
    assert active() - before == charged(cache)
    assert cache.nbytes == model.nbytes(256)


@kinds
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_goes_comes_back_to_the_byte(kind: str, ending: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=16)
    stored(model, cache, prompt(20), prompt(33), prompt(20)[:9] + prompt(9, first=1), prompt(40, first=2))
    cache.fetch(prompt(34))
    before, ledger = weigh(cache), cache.nbytes
    eviction = ENDINGS[ending](cache)
    if eviction is None:
        assert before.footprint - footprint() == before.charged
    else:
        assert given_back(before, cache) == eviction.freed
        assert eviction.nbytes == ledger - cache.nbytes > 0
        cache.validate()


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_pool_is_given_back_too(ending: str) -> None:
    """With MLX's pool on, dropped buffers wait there until someone clears it."""
    mx.set_cache_limit(1 << 30)
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
    stored(model, cache, prompt(300), prompt(300, first=1))
    assert mx.get_cache_memory() > 0
    ENDINGS[ending](cache)
    assert mx.get_cache_memory() == 0


@kinds
def test_a_collected_cache_gives_everything_back(kind: str) -> None:
    """Its memory does not wait for the cycle collector, nor for the pool to be cleared by others."""
    mx.set_cache_limit(1 << 30)
    model = MODELS[kind]()
    before = active()
    cache = KVPrefixCache()
    stored(model, cache, prompt(50), prompt(70))
    pin = cache.pin(prompt(50))
    gc.disable()
    try:
        del cache
        assert active() == before
        assert mx.get_cache_memory() == 0
    finally:
        gc.enable()
    pin.release()


@kinds
@pytest.mark.parametrize("policy", ["always", "auto"])
def test_a_cycle_around_what_was_handed_out_goes_along(kind: str, policy: Any) -> None:
    model, cache = MODELS[kind](), KVPrefixCache(gc=policy)
    stored(model, cache, prompt(60))
    gc.disable()  # or it may collect the knot before the eviction does
    try:
        hit = cache.fetch([*prompt(60), 1])
        own = charges(held(hit.prompt_cache))
        _knot(hit.prompt_cache, *held(hit.prompt_cache))
        del hit
        before = weigh(cache)
        eviction = cache.evict(cache.nbytes)
    finally:
        gc.enable()
    # "auto" finds the ledger's bytes freed without a collection, and leaves the rest to Python.
    expected = before.charged + (own if policy == "always" else 0)
    assert eviction.freed == before.footprint - footprint() == expected
    assert cache.nbytes == 0


@kinds
def test_a_cycle_around_what_was_donated_goes_along(kind: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache()
    gc.disable()
    try:
        base = active()
        prompt_cache = model.filled(prompt(60))
        _knot(prompt_cache, *held(prompt_cache))
        cache.store(prompt(60), prompt_cache, length=len(prompt(60)), donate=True)
        del prompt_cache
        before = weigh(cache)
        own = before.footprint - base - before.charged
        assert own > 0
        eviction = cache.evict(cache.nbytes)
    finally:
        gc.enable()
    assert eviction.freed == before.footprint - footprint() == before.charged + own
    assert cache.nbytes == 0
    assert active() == base


@pytest.mark.parametrize("policy", ["always", "auto"])
def test_a_cycle_around_the_stored_arrays_themselves(policy: Any) -> None:
    model, cache = PosKV(KV()), KVPrefixCache(gc=policy)
    base = active()
    stored(model, cache, prompt(60))
    gc.disable()
    try:
        _knot(*stored_arrays(cache))
        before = weigh(cache)
        eviction = cache.evict(1)
    finally:
        gc.enable()
    assert eviction.freed == given_back(before, cache)
    assert eviction.nbytes == model.nbytes(60)
    assert active() == base


def test_a_hidden_reference_shows() -> None:
    model, cache = PosKV(KV(), KV()), KVPrefixCache()
    stored(model, cache, prompt(60))
    hidden, before = next(stored_arrays(cache)), charged(cache)
    clear_pool()  # what the stores have left there counts as freed too
    eviction = cache.evict(1)
    assert eviction.freed == before - charge(hidden.nbytes) < before
    assert eviction.nbytes == model.nbytes(60)


def test_auto_collects_only_where_dropping_was_not_enough(counting: Counting) -> None:
    model, cache = PosKV(KV()), KVPrefixCache(gc="auto")
    stored(model, cache, prompt(60), prompt(60, first=1))
    cache.evict(1)
    assert counting.take() == (0, 1)
    _knot(*stored_arrays(cache))
    cache.evict(1)
    assert counting.take() == (1, 1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_each_cycle_reclaims_once(ending: str, counting: Counting) -> None:
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
    stored(model, cache, *(prompt(30, first=at) for at in range(6)))
    counting.take()
    eviction = ENDINGS[ending](cache)
    assert counting.take() == (1, 1)
    assert eviction is None or eviction.cycles == 1


def test_each_cycle_of_other_calls_reclaims_once(counting: Counting) -> None:
    now = 0.0
    model = PosKV(KV())
    cache = KVPrefixCache(max_bytes=model.nbytes(100), clock=lambda: now)
    stored(model, cache, *(prompt(25, first=at) for at in range(4)))
    assert counting.take() == (0, 0)
    assert cache.store(prompt(60, first=9), model.filled(prompt(60, first=9))).evicted.cycles == 1
    assert counting.take() == (1, 1)
    assert cache.reserve(model.nbytes(30)).cycles == 1
    assert counting.take() == (1, 1)
    now = 50.0
    assert cache.evict_idle(10).cycles == 1
    assert counting.take() == (1, 1)
    assert len(cache) == 0


def test_nothing_evicted_reclaims_nothing(counting: Counting) -> None:
    model, cache = PosKV(KV()), KVPrefixCache(max_bytes="1MB")
    stored(model, cache, prompt(30))
    cache.fetch(prompt(31))
    counting.take()
    with cache.pin(prompt(30)):
        calls = [
            cache.evict(0),
            cache.evict(1),
            cache.trim_to(tokens=0),
            cache.reserve(1),
            cache.evict_idle(0),
        ]
    calls += [cache.drop("elsewhere"), cache.trim_to(nbytes=cache.nbytes), cache.evict_idle(1e9)]
    assert not any(calls)
    assert sum(eviction.cycles for eviction in calls) == 0
    assert counting.take() == (0, 0)


@pytest.mark.parametrize("kind", SPANS)
def test_half_of_a_split_goes_alone(kind: str) -> None:
    """REPORTS 16: both halves as views of the first value would free nothing."""
    model, cache = MODELS[kind](), KVPrefixCache()
    stored(model, cache, prompt(100), prompt(50) + prompt(1, first=1))
    before = weigh(cache)
    eviction = cache.evict(1)
    assert (eviction.tokens, eviction.nbytes) == (50, model.nbytes(50))
    assert eviction.freed == given_back(before, cache)
    assert cache.ntokens == 51
