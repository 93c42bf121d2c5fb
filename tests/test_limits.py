"""Limits and pressure: what is refused, what is evicted, and that it is never more than needed."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import psutil
import pytest

from kvcache import ConfigError, KVPrefixCache, SystemMemoryPressure
from kvcache.memory.limits import MemoryLimits, resolve_max_buffers, resolve_memory_limit
from kvcache.memory.pressure import ENVIRONMENT, default_threshold
from tests.support.layers import KV, Arrays, Rotating
from tests.support.memory import active, footprint
from tests.support.models import MODELS, prompt
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _fill(cache: KVPrefixCache, model: PosKV, entries: int, length: int) -> None:
    for first in range(entries):
        tokens = prompt(length, first=first)
        assert cache.store(tokens, model.filled(tokens)).reason == "stored"


def _alive(cache: KVPrefixCache, entries: int, length: int) -> list[int]:
    return [
        first for first in range(entries) if cache.peek([*prompt(length, first=first), 1]).length == length
    ]


def _limit(cache: KVPrefixCache, memory_limit: int | None, pressure: PressureSource | None = None) -> None:
    """Limits from now on: filling a cache takes more memory than the tests have in mind."""
    cache._state.limits = MemoryLimits(memory_limit, pressure)


# Sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        (4_000_000_000, 4 * 10**9),
        ("4GB", 4 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 kB", 1500),
        ("1.5KiB", 1536),
        (" 7 ", 7),
        ("2TB", 2 * 10**12),
        ("3tib", 3 * 2**40),
        ("9B", 9),
        (0, 0),
    ],
)
def test_a_size_is_what_it_says(size: int | str, nbytes: int) -> None:
    assert resolve_memory_limit(size, {}, 0) == nbytes
    index = KVPrefixCache(max_bytes=size)._state.index
    assert index.make_room(nbytes, 0) is not None
    assert index.make_room(nbytes + 1, 0) is None


@pytest.mark.parametrize(
    "size", ["12 parsecs", "", "GB", "-1", "1e9", "4 G B", "0x10", "nan", "٣GB", -1, 2**62 + 1, "9999999TB"]
)
@pytest.mark.parametrize("name", ["max_bytes", "memory_limit"])
def test_no_size(name: str, size: int | str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        KVPrefixCache(**{name: size})
    assert repr(size) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_bytes", True),
        ("max_bytes", 1.5),
        ("max_bytes", b"4GB"),
        ("max_buffers", True),
        ("max_buffers", 10.0),
        ("max_buffers", "10"),
        ("memory_limit", False),
        ("memory_limit", [1]),
        ("pressure", 0.8),
        ("pressure", object()),
        ("segment_tokens", "1024"),
        ("segment_tokens", True),
        ("max_checkpoints", 2.0),
        ("max_checkpoints", None),
    ],
)
def test_a_parameter_of_another_type(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        KVPrefixCache(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_buffers", -1),
        ("max_buffers", 2**64),
        ("memory_limit", 0.0),
        ("memory_limit", 1.01),
        ("memory_limit", float("nan")),
        ("segment_tokens", 0),
        ("segment_tokens", -5),
        ("segment_tokens", 2**64),
        ("max_checkpoints", 0),
        ("max_checkpoints", 2**64),
        ("gc", "never"),
    ],
)
def test_a_parameter_out_of_range(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        KVPrefixCache(**{name: value})


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda cache: cache.evict(-1), ConfigError),
        (lambda cache: cache.evict("12 parsecs"), ConfigError),
        (lambda cache: cache.evict(1.5), TypeError),
        (lambda cache: cache.evict(True), TypeError),
        (lambda cache: cache.reserve(-1), ConfigError),
        (lambda cache: cache.reserve(None), TypeError),
        (lambda cache: cache.trim_to(nbytes=-1), ConfigError),
        (lambda cache: cache.trim_to(tokens=-1), ConfigError),
        (lambda cache: cache.trim_to(tokens=1.0), TypeError),
        (lambda cache: cache.trim_to(tokens=2**64), ConfigError),
        (lambda cache: cache.evict_idle(-1), ConfigError),
        (lambda cache: cache.evict_idle(float("nan")), ConfigError),
        (lambda cache: cache.evict_idle("soon"), TypeError),
    ],
)
def test_a_bad_argument_changes_nothing(call: Callable[[KVPrefixCache], Any], error: type[Exception]) -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    _fill(cache, model, 2, 10)
    with pytest.raises(error):
        call(cache)
    cache.validate()
    assert _alive(cache, 2, 10) == [0, 1]


def test_idle_for_ever_is_never_reached() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    _fill(cache, model, 1, 10)
    assert not cache.evict_idle(float("inf"))
    assert len(cache) == 1


# max_bytes, max_buffers --------------------------------------------------------------------------


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
        seen.append(active() - base - held_by_caller)

    for turn in range(30):
        tokens = prompt(turn % 3 + 1) + prompt(2 * turn + 3, first=turn % 5)
        prompt_cache = model.filled(tokens)
        held_by_caller = active() - base - cache.nbytes
        monkeypatch.setattr(mx, "eval", watching)
        stored = cache.store(tokens, prompt_cache, donate=donate)
        monkeypatch.setattr(mx, "eval", evaluate)
        assert stored.reason in ("stored", "truncated", "too_large")
        assert cache.nbytes <= limit
        cache.validate()
    # A window with kept rows is put in order before it is copied.
    assert 0 < max(seen) <= limit + (model.layers[0].nbytes(8) if kind == "rotating-keep" else 0)


def test_max_buffers_counts_arrays() -> None:
    """REPORTS 17: 36 layers of two arrays under a limit of 100 are one entry."""
    model = PosKV(*(KV(heads=1) for _ in range(36)))
    cache = KVPrefixCache(max_buffers=100)
    _fill(cache, model, 1, 5)
    assert cache.stats().buffers == 72
    second = prompt(5, first=1)
    assert cache.store(second, model.filled(second)).evicted.segments == 1
    assert cache.stats().buffers == 72
    assert _alive(cache, 2, 5) == [1]


def test_max_buffers_of_nothing_stores_nothing() -> None:
    model, cache = PosKV(KV()), KVPrefixCache(max_buffers=0)
    assert cache.store(prompt(5), model.filled(prompt(5))).reason == "too_large"
    assert not cache.nbytes


def test_default_buffers_follow_the_device() -> None:
    assert resolve_max_buffers(None, {"resource_limit": 499_000}) == 399_200
    assert resolve_max_buffers(None, {}) is None
    assert resolve_max_buffers(7, {"resource_limit": 499_000}) == 7


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
    _fill(cache, model, 1, 20)
    stored = cache.store(prompt(60, first=3), model.filled(prompt(60, first=3)))
    assert (stored.reason, stored.nbytes, bool(stored.evicted)) == ("too_large", 0, False)
    assert _alive(cache, 1, 20) == [0]


# memory_limit, pressure --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "info", "expected"),
    [
        (0.25, {"memory_size": 16 * GIB}, 4 * GIB),
        (0.5, {"max_recommended_working_set_size": 12 * GIB, "memory_size": 16 * GIB}, 6 * GIB),
        (0.5, {"total_memory": 80 * GIB}, 40 * GIB),
        (0.25, {}, 2 * GIB),
        (1.0, {"memory_size": 16 * GIB}, 16 * GIB),
        (1, {"memory_size": 16 * GIB}, 1),
        ("48GB", {"memory_size": 16 * GIB}, 48 * 10**9),
        (None, {"memory_size": 16 * GIB}, None),
    ],
)
def test_memory_limit_in_bytes_or_as_a_fraction(
    limit: Any, info: dict[str, int], expected: int | None
) -> None:
    """REPORTS 34, with a system of 8 GiB behind a device that tells nothing."""
    assert resolve_memory_limit(limit, info, 8 * GIB) == expected


def test_a_store_evicts_down_to_the_memory_limit() -> None:
    model = PosKV(KV())
    entry = model.nbytes(256)
    cache, base = KVPrefixCache(), active()
    _fill(cache, model, 4, 256)
    tokens = prompt(256, first=9)
    prompt_cache = model.filled(tokens)
    _limit(cache, base + 5 * entry)
    stored = cache.store(tokens, prompt_cache)
    assert (stored.evicted.segments, stored.evicted.cycles) == (1, 1)
    assert _alive(cache, 4, 256) == [1, 2, 3]


def test_the_constructor_s_memory_limit_counts() -> None:
    model, entry = PosKV(KV()), PosKV(KV()).nbytes(20)
    tokens = prompt(40, first=1)
    prompt_cache = model.filled(tokens)
    # Room for 40 tokens beside what the caller holds.
    cache = KVPrefixCache(memory_limit=active() + 2 * entry)
    assert cache.store(prompt(20), model.filled(prompt(20)), donate=True).reason == "stored"
    assert cache.store(tokens, prompt_cache).evicted.segments == 1
    assert _alive(cache, 2, 20) == [1]


def test_what_no_eviction_brings_under_the_memory_limit_is_refused_and_costs_nothing() -> None:
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
    _fill(cache, model, 2, 20)
    tokens = prompt(60, first=3)
    prompt_cache = model.filled(tokens)
    _limit(cache, active() + 1)
    stored = cache.store(tokens, prompt_cache)
    assert (stored.reason, stored.length, bool(stored.evicted)) == ("too_large", 0, False)
    assert "memory_limit" in stored.detail
    assert _alive(cache, 2, 20) == [0, 1]
    assert cache.store(tokens, prompt_cache, donate=True).reason == "stored"
    cache.validate()


def test_a_fetch_evicts_down_to_the_memory_limit_and_not_itself() -> None:
    model = PosKV(KV())
    entry = model.nbytes(256)
    cache, base = KVPrefixCache(), active()
    _fill(cache, model, 4, 256)
    _limit(cache, base + 4 * entry + entry // 2)
    hit = cache.fetch([*prompt(256), 1])
    model.check(hit.prompt_cache, prompt(256))
    assert _alive(cache, 4, 256) == [0, 2, 3]


def test_pressure_evicts_one_of_five() -> None:
    """REPORTS 2: five entries of 6 %, others at 60 %, limit 85 %: one goes and four stay."""
    model = PosKV(KV())
    entry = model.nbytes(600)
    percent = entry // 6
    machine = Machine(others=60 * percent - active(), limit=85 * percent)
    cache = KVPrefixCache()
    _fill(cache, model, 5, 600)
    _limit(cache, None, machine)
    evicted = cache.reserve(0)
    assert (evicted.segments, evicted.cycles) == (1, 1)
    assert _alive(cache, 5, 600) == [1, 2, 3, 4]
    assert not cache.reserve(0)


def test_an_entry_that_someone_else_holds_is_not_paid_for_by_others() -> None:
    model = PosKV(KV())
    entry = model.nbytes(100)
    cache = KVPrefixCache()
    _fill(cache, model, 6, 100)
    machine = Machine(others=0, limit=footprint() - entry)
    _limit(cache, None, machine)
    oldest = next(iter(cache._state.segments._segments.values()))
    hidden = list(oldest)
    del oldest
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
    _fill(cache, model, 6, 100)
    _limit(cache, None, Falling(2 * entry, entry, entry // 2))
    evicted = cache.reserve(0)
    assert (evicted.segments, evicted.cycles) == (4, 3)
    assert _alive(cache, 6, 100) == [4, 5]


@pytest.mark.parametrize("excess", [1, 3, 6, 1000])
def test_pressure_of_others_does_not_empty_the_cache(excess: int) -> None:
    """Someone else's memory: however much is asked for, the rest stays once nothing falls."""
    model = PosKV(KV())
    entry = model.nbytes(100)
    cache = KVPrefixCache()
    _fill(cache, model, 6, 100)
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
    _fill(cache, model, 4, 30)
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


@pytest.mark.parametrize("value", ["", "much", "0", "-0.5", "1.5", "nan", "85"])
def test_a_bad_environment_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, value)
    with pytest.raises(ConfigError, match=ENVIRONMENT):
        SystemMemoryPressure()
    with pytest.raises(ConfigError, match="threshold"):
        SystemMemoryPressure(float("inf"))


# reserve -----------------------------------------------------------------------------------------


def test_reserve_makes_just_enough_room() -> None:
    model = PosKV(KV())
    cache = KVPrefixCache(max_bytes=model.nbytes(100))
    _fill(cache, model, 5, 20)
    assert not cache.reserve(0)
    evicted = cache.reserve(model.nbytes(20) + 1)
    assert evicted.segments == 2
    assert _alive(cache, 5, 20) == [2, 3, 4]
    assert not cache.reserve(model.nbytes(40))


def test_reserve_protects_a_hit() -> None:
    model = PosKV(KV())
    cache = KVPrefixCache(max_bytes=model.nbytes(100))
    _fill(cache, model, 5, 20)
    hit = cache.peek([*prompt(20), 1])
    assert cache.reserve(model.nbytes(80), protect=hit).segments == 4
    assert _alive(cache, 5, 20) == [0]
    assert cache.reserve(model.nbytes(80)).segments == 0
    assert cache.reserve(model.nbytes(81)).segments == 1


def test_reserve_protects_a_hybrid_s_checkpoint() -> None:
    model = PosKV(KV(), Arrays(), Rotating(4))
    cache = KVPrefixCache(max_bytes=2 * model.nbytes(20))
    _fill(cache, model, 2, 20)
    hit = cache.peek([*prompt(20), 1])
    assert cache.reserve(model.nbytes(20), protect=hit).checkpoints == 1
    assert _alive(cache, 2, 20) == [0]


@pytest.mark.parametrize("protected", [False, True])
def test_an_infeasible_reserve_evicts_nothing(protected: bool) -> None:
    """REPORTS 30: the prefix that is about to be used survives."""
    model = PosKV(KV())
    cache = KVPrefixCache(max_bytes=model.nbytes(100))
    _fill(cache, model, 5, 20)
    hit = cache.peek([*prompt(20), 1])
    asked = model.nbytes(81 if protected else 101)
    assert not cache.reserve(asked, protect=hit if protected else None)
    assert _alive(cache, 5, 20) == [0, 1, 2, 3, 4]


def test_reserve_measures_memory_too() -> None:
    model = PosKV(KV())
    entry = model.nbytes(20)
    cache, base = KVPrefixCache(), active()
    _fill(cache, model, 5, 20)
    _limit(cache, base + 6 * entry)
    evicted = cache.reserve(3 * entry)
    assert (evicted.segments, evicted.cycles) == (2, 1)
    assert active() + 3 * entry == base + 6 * entry


# The smallest eviction ---------------------------------------------------------------------------


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
