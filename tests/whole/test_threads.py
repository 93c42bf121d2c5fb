"""Several threads on one cache: nothing breaks, nothing waits for ever, no callback under the lock."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from loguru import logger

from kvcache import KVPrefixCache
from tests.support import inside
from tests.support.failures import assert_settled
from tests.support.layers import KV, Arrays
from tests.support.memory import active, charged
from tests.support.models import MODELS, prompt
from tests.support.poskv import PosKV
from tests.support.threads import elsewhere, together


@pytest.mark.parametrize("kind", ["kv", "arrays", "all"])
@pytest.mark.parametrize("donate", [False, True])
def test_the_same_prompt_from_all_threads_is_held_once(kind: str, donate: bool) -> None:
    base = active()
    cache, tokens, results = KVPrefixCache(segment_tokens=8), prompt(50), []

    def work(_: int) -> None:
        model = MODELS[kind]()
        results.append(cache.store(tokens, model.filled(tokens), donate=donate))
        hit = cache.fetch([*tokens, 1])
        model.check(hit.prompt_cache, tokens)

    together(work)
    assert sum(stored.new_tokens for stored in results) == len(tokens)
    assert {stored.length for stored in results} == {len(tokens)}
    assert [stored.reason for stored in results].count("stored") == 1
    assert cache.ntokens == len(tokens)
    assert_settled(cache)
    assert active() - base == charged(cache)


def test_arrays_of_other_threads_can_be_used() -> None:
    """REPORTS 102: what is stored was evaluated where it was made."""
    cache = KVPrefixCache()
    model = PosKV(KV(), Arrays())

    def put() -> None:
        prompt_cache = model.make_cache()
        model.append(prompt_cache, prompt(20))
        cache.store(prompt(20), prompt_cache)

    elsewhere(put)
    model.check(cache.fetch([*prompt(20), 1]).prompt_cache, prompt(20))
    elsewhere(lambda: model.check(cache.fetch([*prompt(20), 1]).prompt_cache, prompt(20)))


def test_a_forgotten_pin_lets_go() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    cache.store(prompt(20), model.filled(prompt(20)))
    pin = cache.pin(prompt(20))
    assert not cache.evict(1)
    del pin
    assert cache.evict(1).tokens == 20


def test_a_pin_collected_while_the_lock_is_held() -> None:
    """A finalizer runs wherever the collector does; under the lock it must not ask for it."""
    model, cache = PosKV(KV()), KVPrefixCache()
    cache.store(prompt(20), model.filled(prompt(20)))
    knot: list[Any] = [cache.pin(prompt(20))]
    knot.append(knot)

    def collected() -> None:
        nonlocal knot
        with inside.lock(cache):
            knot = []
            gc.collect()

    elsewhere(collected)
    assert cache.evict(1).tokens == 20
    assert_settled(cache)


def test_a_pin_that_outlives_its_cache() -> None:
    model, base = PosKV(KV()), active()
    cache = KVPrefixCache()
    cache.store(prompt(20), model.filled(prompt(20)))
    pin = cache.pin(prompt(20))
    cache.close()
    pin.release()
    other = KVPrefixCache()
    other.store(prompt(20), model.filled(prompt(20)))
    second = other.pin(prompt(20))
    del other
    second.release()
    assert active() == base


def test_pins_released_by_many_threads_at_once() -> None:
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache(segment_tokens=4)
    for first in range(4):
        cache.store(prompt(20, first=first), model.filled(prompt(20, first=first)))
    pins = [cache.pin(prompt(20, first=at % 4)) for at in range(40)]

    def work(_: int) -> None:
        for pin in pins:
            pin.release()

    together(work)
    assert_settled(cache)
    assert cache.evict(cache.nbytes).checkpoints == 4


class Curious:
    """A pressure source that looks at the cache, from a thread of its own."""

    cache: KVPrefixCache | None = None

    def excess_bytes(self) -> int:
        if self.cache is not None:
            elsewhere(self.cache.stats)
            elsewhere(lambda: self.cache.fetch(prompt(5)))
        return 0


def test_no_pressure_source_is_asked_under_the_lock() -> None:
    source = Curious()
    model, cache = PosKV(KV()), KVPrefixCache(pressure=source)
    source.cache = cache
    cache.store(prompt(20), model.filled(prompt(20)))
    source.cache = None
    assert cache.reserve(10).cycles == 0
    assert_settled(cache)


def test_no_clock_is_read_under_the_lock() -> None:
    readings = []

    def clock() -> float:
        readings.append(1)
        if len(readings) < 12:
            elsewhere(lambda: cache.nbytes)
        return float(len(readings))

    model, cache = PosKV(KV()), KVPrefixCache(clock=clock)
    cache.store(prompt(20), model.filled(prompt(20)))
    cache.fetch(prompt(20))
    cache.pin(prompt(20)).release()
    cache.evict_idle(1)
    assert len(readings) >= 4


def test_finalizers_may_use_the_cache() -> None:
    """A collection runs other people's ``__del__``, so it may not run under the lock."""
    model, cache, seen = PosKV(KV()), KVPrefixCache(), []

    class Nosy:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            cache.store(prompt(5, first=9), model.filled(prompt(5, first=9)))
            seen.append(cache.ntokens)

    for ending in (lambda: cache.evict(1), lambda: cache.drop(""), cache.clear):
        cache.store(prompt(20), model.filled(prompt(20)))
        Nosy()
        ending()
    assert len(seen) == 3
    assert_settled(cache)


def test_log_sinks_may_use_the_cache() -> None:
    model, cache, lines = PosKV(KV()), KVPrefixCache(), []
    cache.store(prompt(20), model.filled(prompt(20)))
    sink = logger.add(
        lambda message: lines.append((cache.nbytes, str(message))), level="INFO", format="{message}"
    )
    logger.enable("kvcache")
    try:
        cache.evict(1)
    finally:
        logger.disable("kvcache")
        logger.remove(sink)
    assert [nbytes for nbytes, _ in lines] == [0]
    assert "evicted 20 tokens" in lines[0][1]
