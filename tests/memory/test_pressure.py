"""Memory as it is measured: no more goes than brings it down, and nothing where nothing would."""

from __future__ import annotations

from fractions import Fraction
from itertools import count, repeat
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import mlx.core as mx
import psutil
import pytest

from kvcache import ConfigError, KVPrefixCache, SystemMemoryPressure
from kvcache.memory.pressure import ENVIRONMENT, default_threshold
from tests.support import inside
from tests.support.entries import alive, fill
from tests.support.layers import KV, Arrays
from tests.support.memory import PAGE_TOKENS, active, footprint
from tests.support.models import prompt
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcache import PressureSource


GIB = 2**30


class Machine:
    """A pressure source: memory of others and MLX's own, against a limit."""

    def __init__(self, others: int, limit: int) -> None:
        self.others = others
        self.limit = limit
        self.asked = 0

    def excess_bytes(self) -> int:
        self.asked += 1
        return max(0, self.others + footprint() - self.limit)


def _limit(cache: KVPrefixCache, memory_limit: int | None, pressure: PressureSource | None = None) -> None:
    """Limits from now on: filling a cache takes more memory than the tests have in mind."""
    inside.limit(cache, memory_limit, pressure)


def test_a_store_evicts_down_to_the_memory_limit() -> None:
    model = PosKV(KV())
    entry = model.nbytes(256)
    cache, base = KVPrefixCache(), active()
    fill(cache, model, 4, 256)
    tokens = prompt(256, first=9)
    prompt_cache = model.filled(tokens)
    _limit(cache, base + 5 * entry)
    stored = cache.store(tokens, prompt_cache)
    assert (stored.evicted.segments, stored.evicted.cycles) == (1, 1)
    assert alive(cache, 4, 256) == [1, 2, 3]


def test_the_constructor_s_memory_limit_counts() -> None:
    model, length = PosKV(KV()), PAGE_TOKENS
    tokens = prompt(2 * length, first=1)
    prompt_cache = model.filled(tokens)
    # Room for the copy of these beside what the caller holds.
    cache = KVPrefixCache(memory_limit=active() + 2 * model.nbytes(length))
    assert cache.store(prompt(length), model.filled(prompt(length)), donate=True).reason == "stored"
    assert cache.store(tokens, prompt_cache).evicted.segments == 1
    assert alive(cache, 2, length) == [1]


def test_what_no_eviction_brings_under_the_memory_limit_is_refused_and_costs_nothing() -> None:
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
    fill(cache, model, 2, 20)
    tokens = prompt(60, first=3)
    prompt_cache = model.filled(tokens)
    _limit(cache, active() + 1)
    stored = cache.store(tokens, prompt_cache)
    assert (stored.reason, stored.length, bool(stored.evicted)) == ("too_large", 0, False)
    assert "memory_limit" in stored.detail
    assert alive(cache, 2, 20) == [0, 1]
    assert cache.store(tokens, prompt_cache, donate=True).reason == "stored"
    cache.validate()


def test_a_fetch_evicts_down_to_the_memory_limit_and_not_itself() -> None:
    model = PosKV(KV())
    entry = model.nbytes(256)
    cache, base = KVPrefixCache(), active()
    fill(cache, model, 4, 256)
    # The room for the remaining token, one step of 256, is allocated too.
    _limit(cache, base + 5 * entry + entry // 2)
    hit = cache.fetch([*prompt(256), 1])
    model.check(hit.prompt_cache, prompt(256))
    assert alive(cache, 4, 256) == [0, 2, 3]


def test_pressure_evicts_one_of_five() -> None:
    """REPORTS 2: five entries of 6 %, others at 60 %, limit 85 %: one goes and four stay."""
    model = PosKV(KV())
    entry = model.nbytes(640)
    percent = entry // 6
    machine = Machine(others=60 * percent - active(), limit=85 * percent)
    cache = KVPrefixCache()
    fill(cache, model, 5, 640)
    _limit(cache, None, machine)
    evicted = cache.reserve(0)
    assert (evicted.segments, evicted.cycles) == (1, 1)
    assert alive(cache, 5, 640) == [1, 2, 3, 4]
    assert not cache.reserve(0)


def test_an_entry_that_someone_else_holds_is_not_paid_for_by_others() -> None:
    model = PosKV(KV())
    entry = model.nbytes(128)
    cache = KVPrefixCache()
    fill(cache, model, 6, 128)
    machine = Machine(others=0, limit=footprint() - entry)
    _limit(cache, None, machine)
    hidden = list(next(iter(inside.segments(cache).values()))[0])
    evicted = cache.reserve(0)
    assert evicted.segments == 1
    assert evicted.freed == 0
    del hidden
    assert not cache.reserve(0)


class Falling:
    """A source that falls slower than the cache frees."""

    def __init__(self, *readings: int) -> None:
        self.readings = list(readings)

    def excess_bytes(self) -> int:
        return self.readings.pop(0) if self.readings else 0


def test_cycles_go_on_while_the_source_falls() -> None:
    model = PosKV(KV())
    entry = model.nbytes(100)
    cache = KVPrefixCache()
    fill(cache, model, 6, 100)
    _limit(cache, None, Falling(2 * entry, entry, entry // 2))
    evicted = cache.reserve(0)
    # One unit to see whether the source answers, then what it still asks for.
    assert (evicted.segments, evicted.cycles) == (3, 3)
    assert alive(cache, 6, 100) == [3, 4, 5]


@pytest.mark.parametrize("excess", [1, 3, 6, 1000])
def test_pressure_of_others_does_not_empty_the_cache(excess: int) -> None:
    """Someone else's memory: however much is asked for, the rest stays once nothing falls."""
    model = PosKV(KV())
    entry = model.nbytes(100)
    cache = KVPrefixCache()
    fill(cache, model, 6, 100)
    _limit(cache, None, Falling(*[excess * entry] * 100))
    evicted = cache.reserve(0)
    assert 1 <= evicted.segments <= 3
    assert evicted.cycles == 1
    assert cache.ntokens > 0
    tokens = prompt(100, first=9)
    assert cache.store(tokens, model.filled(tokens)).reason == "stored"


def test_a_source_below_its_threshold_is_left_alone() -> None:
    machine = Machine(others=0, limit=10**15)
    model, cache = PosKV(KV()), KVPrefixCache(pressure=machine)
    fill(cache, model, 4, 30)
    assert machine.asked == 4
    assert len(cache) == 4


@pytest.mark.parametrize(
    ("gib", "threshold"),
    [
        (8, 0.70),
        (16, 0.70),
        (24, 0.70),
        (32, 0.75),
        (48, 0.75),
        (64, 0.80),
        (96, 0.80),
        (128, 0.85),
        (512, 0.85),
    ],
)
def test_thresholds_by_machine_size(gib: int, threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    # A machine of nominally 64 GiB reports a little less.
    for total in (gib * GIB, gib * GIB - GIB // 4):
        assert default_threshold(total) == threshold
    memory = SimpleNamespace(total=gib * GIB, available=0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    source = SystemMemoryPressure()
    assert source.threshold == threshold
    assert source.excess_bytes() == gib * GIB - int(gib * GIB * threshold)
    memory.available = memory.total
    assert source.excess_bytes() == 0


def test_the_environment_sets_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "0.5")
    assert SystemMemoryPressure().threshold == 0.5
    assert SystemMemoryPressure(0.6).threshold == 0.6
    memory = SimpleNamespace(total=1000, available=400)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert SystemMemoryPressure().excess_bytes() == 100


def test_reserve_measures_memory_too() -> None:
    model = PosKV(KV())
    entry = model.nbytes(PAGE_TOKENS)
    cache, base = KVPrefixCache(), active()
    fill(cache, model, 5, PAGE_TOKENS)
    _limit(cache, base + 6 * entry)
    evicted = cache.reserve(3 * entry)
    assert (evicted.segments, evicted.cycles) == (2, 1)
    assert active() + 3 * entry == base + 6 * entry


def test_the_pool_is_given_back_before_any_entry_goes() -> None:
    mx.set_cache_limit(1 << 30)

    class Footprint:
        limit = 1 << 62

        def excess_bytes(self) -> int:
            return max(0, mx.get_active_memory() + mx.get_cache_memory() - self.limit)

    pressure = Footprint()
    model = PosKV(KV())
    cache = KVPrefixCache(pressure=pressure)
    for number in range(5):
        tokens = [number, *range(100, 200)]
        prompt_cache = model.make_cache()
        model.grow(prompt_cache, tokens)
        cache.store(tokens, prompt_cache)
    del prompt_cache
    junk = mx.ones((100_000,))
    mx.eval(junk)
    del junk
    assert mx.get_cache_memory() >= 400_000
    pressure.limit = mx.get_active_memory()
    assert not cache.reserve(0)
    assert (len(cache), mx.get_cache_memory()) == (5, 0)


def _noise(base: int, size: int) -> Iterator[int]:
    dice = Random(3)
    while True:
        yield base + dice.randint(-size, size)


CURVES: dict[str, Callable[[int], Iterator[int]]] = {
    "steady": lambda entry: repeat(30 * entry),
    "steady, beyond all that is held": lambda entry: repeat(1000 * entry),
    "noise of many entries": lambda entry: _noise(1000 * entry, 50 * entry),
    "noise of less than an entry": lambda entry: _noise(30 * entry, entry // 20),
    "rising": lambda entry: count(30 * entry, entry // 3),
    "falling in small steps": lambda entry: count(30 * entry, -entry // 3),
    "falling in large steps": lambda entry: count(10**6 * entry, -50 * entry),
    "a saw": lambda entry: (30 * entry + at % 7 * 4 * entry for at in count()),
}


@pytest.mark.parametrize("curve", CURVES)
def test_pressure_that_does_not_answer_costs_about_one_unit_a_call(curve: str) -> None:
    """Whatever others do with their memory, the cache does not pay for it with its entries."""
    model, calls = PosKV(KV()), 10
    entry = model.nbytes(20)
    cache = KVPrefixCache(gc="auto")
    fill(cache, model, 60, 20)
    readings = CURVES[curve](entry)
    _limit(cache, None, SimpleNamespace(excess_bytes=lambda: next(readings)))
    lost = [cache.reserve(0).segments for _ in range(calls)]
    assert sum(lost) <= 2 * calls, lost
    assert cache.ntokens > 0


def test_a_source_that_answers_is_believed_from_then_on() -> None:
    model = PosKV(KV())
    entry = model.nbytes(128)
    cache = KVPrefixCache()
    fill(cache, model, 20, 128)
    machine = Machine(others=0, limit=footprint() - 5 * entry)
    _limit(cache, None, machine)
    evicted = cache.reserve(0)
    assert (evicted.segments, evicted.cycles) == (5, 2)
    machine.limit -= 7 * entry
    evicted = cache.reserve(0)
    assert (evicted.segments, evicted.cycles) == (7, 1)
    # It stops answering: one cycle finds out, and then it has to earn belief again.
    readings = repeat(4 * entry)
    _limit(cache, None, SimpleNamespace(excess_bytes=lambda: next(readings)))
    assert [cache.reserve(0).segments for _ in range(3)] == [4, 1, 1]


@pytest.mark.parametrize(
    ("reading", "error", "sentence"),
    [
        (None, TypeError, "must return a number, found NoneType"),
        ("1", TypeError, "must return a number, found str"),
        (True, TypeError, "must return a number, found bool"),
        (float("nan"), ConfigError, "must be finite, found nan"),
        (float("inf"), ConfigError, "must be finite, found inf"),
        (10**400, ConfigError, "must be finite, found 1000"),
        pytest.param(-(10**5000), ConfigError, "must be finite, found a value of type int", id="digits"),
        (Fraction(10**400), ConfigError, "must be finite, found Fraction"),
    ],
)
def test_a_source_that_gives_no_number_is_named(reading: object, error: type, sentence: str) -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    fill(cache, model, 2, 20)
    _limit(cache, None, SimpleNamespace(excess_bytes=lambda: reading))
    tokens = prompt(30, first=7)
    layers = model.filled(tokens)
    for call in (
        lambda: cache.fetch([*prompt(20), 1]),
        lambda: cache.fetch([*prompt(20), 1], take=True),
        lambda: cache.store(tokens, layers),
        lambda: cache.reserve(1),
    ):
        with pytest.raises(error, match=rf"excess_bytes\(\) of the pressure source {sentence}"):
            call()
    assert alive(cache, 2, 20) == [0, 1]
    cache.validate()
    assert inside.index(cache).stats().reserved_bytes == 0


@pytest.mark.parametrize(
    ("reading", "error", "sentence"),
    [
        (None, TypeError, "must return seconds as a number, found NoneType"),
        ("1", TypeError, "must return seconds as a number, found str"),
        (float("nan"), ConfigError, "must return a finite number of seconds, found nan"),
        (float("-inf"), ConfigError, "must return a finite number of seconds, found -inf"),
        (1e300, ConfigError, "must return at most 4.6e\\+12 seconds, found 1e\\+300"),
        (10**400, ConfigError, "must return a finite number of seconds, found 1000"),
        pytest.param(
            10**5000,
            ConfigError,
            "must return a finite number of seconds, found a value of type int",
            id="digits",
        ),
        (Fraction(10**400), ConfigError, "must return a finite number of seconds, found Fraction"),
    ],
)
def test_a_clock_that_gives_no_number_is_named(reading: object, error: type, sentence: str) -> None:
    model, readings = PosKV(KV()), [1.0]
    cache = KVPrefixCache(clock=lambda: readings[0])
    fill(cache, model, 2, 20)
    pin = cache.pin(prompt(20))
    tokens = prompt(30, first=7)
    layers = model.filled(tokens)
    readings[0] = reading  # type: ignore[call-overload]
    for call in (
        lambda: cache.fetch([*prompt(20), 1]),
        lambda: cache.store(tokens, layers),
        lambda: cache.reserve(1),
        lambda: cache.pin(prompt(20, first=1)),
        lambda: cache.evict_idle(1),
        pin.release,
    ):
        with pytest.raises(error, match=f"clock {sentence}"):
            call()
    readings[0] = 2.0
    assert alive(cache, 2, 20) == [0, 1]
    assert cache.evict(10**9).segments == 1  # the pin is held: its release failed
    pin.release()
    assert cache.evict(10**9).segments == 1
    cache.validate()
