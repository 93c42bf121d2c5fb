"""Memory: exo's thresholds, the smallest eviction, and what the machine reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import mlx.core as mx
import psutil
import pytest

from kvcache import ConfigError
from kvcache.integrations.exo import KVPrefixCache
from tests.support.memory import charged, footprint
from tests.support.models import MODELS, prompt

from .engine import request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.poskv import PosKV

GIB = 2**30
LENGTH = 250


@pytest.fixture
def model() -> PosKV:
    return MODELS["kv"]()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], int]], None]:
    """A machine of so many bytes, of which so many are in use."""

    def install(total: int, used: Callable[[], int]) -> None:
        memory = lambda: SimpleNamespace(total=total, available=total - used())  # noqa: E731
        monkeypatch.setattr(psutil, "virtual_memory", memory)

    return install


def _threshold() -> float:
    return KVPrefixCache(None)._pressure.threshold


@pytest.mark.parametrize(("gigabytes", "threshold"), [(128, 0.85), (64, 0.8), (32, 0.75), (16, 0.7)])
def test_the_threshold_goes_by_the_machines_size(
    machine: Callable[..., None], gigabytes: int, threshold: float
) -> None:
    machine(gigabytes * GIB, lambda: 0)
    assert _threshold() == threshold


def test_the_threshold_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCACHE_MEMORY_THRESHOLD", "0.5")
    assert _threshold() == 0.5
    monkeypatch.setenv("EXO_MEMORY_THRESHOLD", "0.9")
    assert _threshold() == 0.9


@pytest.mark.parametrize("name", ["EXO_MEMORY_THRESHOLD", "EXO_PREFILL_MEMORY_THRESHOLD"])
@pytest.mark.parametrize("value", ["", "much", "0", "-0.5", "1.5", "nan"])
def test_a_threshold_that_is_no_fraction(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        KVPrefixCache(None)


def test_the_prefills_threshold_is_the_lower_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXO_MEMORY_THRESHOLD", "0.6")
    monkeypatch.setenv("EXO_PREFILL_MEMORY_THRESHOLD", "0.7")
    with pytest.raises(ConfigError, match=r"EXO_PREFILL_MEMORY_THRESHOLD must be at most 0\.6"):
        KVPrefixCache(None)


def _pressed(machine: Callable[..., None], model: PosKV) -> KVPrefixCache:
    """A machine at 60 % without the cache, each prompt 6 % more, the limit at 85 %; five are held."""
    one = model.nbytes(LENGTH - 2)
    total = one * 100 // 6
    start = footprint()
    machine(total, lambda: int(total * 0.6) + footprint() - start)
    prefixes = KVPrefixCache(None)
    for first in range(5):
        request(prefixes, model, prompt(LENGTH, first)).cache.clear()
    return prefixes


def _held(prefixes: KVPrefixCache) -> list[int]:
    return [tokens[0].item() // 1000 for tokens in prefixes.prompts]


def test_as_much_is_evicted_as_the_pressure_asks_for(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, model: PosKV
) -> None:
    """exo measures after its loop, so all five went."""
    monkeypatch.setenv("EXO_MEMORY_THRESHOLD", "1")
    tokens = prompt(LENGTH, 5)
    given = model.filled(tokens[:-2])
    prefixes = _pressed(machine, model)
    assert _held(prefixes) == [0, 1, 2, 3, 4]
    prefixes._pressure.threshold = 0.85
    prefixes.add_kv_cache(mx.array(tokens), given)
    assert _held(prefixes) == [1, 2, 3, 4, 5]
    assert prefixes.cache.stats().evictions == 1


def test_room_for_a_prefill(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, model: PosKV
) -> None:
    monkeypatch.setenv("EXO_MEMORY_THRESHOLD", "1")
    monkeypatch.setenv("EXO_PREFILL_MEMORY_THRESHOLD", "0.75")
    prefixes = _pressed(machine, model)
    assert prefixes.evict_for_prefill().segments == 3
    assert _held(prefixes) == [3, 4]
    assert not prefixes.evict_for_prefill()
    assert prefixes._pressure.threshold == 1


def test_another_source_of_pressure(model: PosKV) -> None:
    excess = [0]
    prefixes = KVPrefixCache(None, pressure=SimpleNamespace(excess_bytes=lambda: excess[0]))
    request(prefixes, model, prompt(50, 1))
    request(prefixes, model, prompt(50, 2))
    excess[0] = 1
    assert prefixes.evict_for_prefill().segments == 1
    assert _held(prefixes) == [2]


def test_what_is_cleared_is_given_back(model: PosKV) -> None:
    prefixes, before = KVPrefixCache(None), footprint()
    for first in range(5):
        request(prefixes, model, prompt(50, first)).cache.clear()
    assert footprint() - before == charged(prefixes.cache) > 0
    prefixes.clear()
    assert footprint() == before


def test_limits_of_the_cache_itself(model: PosKV) -> None:
    limit = 2 * model.nbytes(48)
    prefixes = KVPrefixCache(None, max_bytes=limit)
    for first in range(5):
        request(prefixes, model, prompt(50, first))
        assert prefixes.cache.nbytes <= limit
    assert _held(prefixes) == [3, 4]


def test_a_system_prompt_is_held_once(model: PosKV) -> None:
    """exo#1986: four chats filled the memory with four copies."""
    prefixes, system = KVPrefixCache(None), prompt(1000)
    for first in range(1, 5):
        request(prefixes, model, [*system, *prompt(52, first)])
    assert prefixes.cache.ntokens == 1000 + 4 * 50


@pytest.mark.parametrize("group", [None, "alone"])
def test_the_fraction_in_use(machine: Callable[..., None], group: str | None) -> None:
    prefixes = KVPrefixCache(mx.distributed.init() if group else None)
    assert 0 < prefixes.get_memory_used_percentage() < 1
    machine(4 * GIB, lambda: 3 * GIB)
    assert prefixes.get_memory_used_percentage() == 0.75
