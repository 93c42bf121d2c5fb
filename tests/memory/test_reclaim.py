"""Collections are staged: no generation is looked at that nothing asks for."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kvcache import ConfigError, KVPrefixCache
from tests.support.inside import stored_arrays
from tests.support.layers import KV
from tests.support.memory import charged, footprint
from tests.support.models import prompt
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = PosKV(KV())


@contextmanager
def collected() -> Iterator[list[int]]:
    """The generations that are collected in the block, in order."""
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.collect()
    automatic = gc.isenabled()
    gc.disable()
    gc.callbacks.append(note)
    try:
        yield generations
    finally:
        gc.callbacks.remove(note)
        if automatic:
            gc.enable()


class Knot:
    """A reference cycle around arrays."""

    def __init__(self, arrays: list[Any]) -> None:
        self.arrays = arrays
        self.me = self


def _filled(policy: Any) -> KVPrefixCache:
    cache = KVPrefixCache(gc=policy)
    cache.store(prompt(20), MODEL.filled(prompt(20)))
    return cache


def _evict(cache: KVPrefixCache) -> int:
    """Evicts everything. Returns the bytes that did not come back."""
    before, charges = footprint(), charged(cache)
    eviction = cache.evict(10**9)
    assert eviction.freed == before - footprint()
    return charges - eviction.freed


@pytest.mark.parametrize(("policy", "looked_at"), [("auto", []), ("always", [0]), ("full", [2])])
def test_what_nothing_else_holds_costs_the_least(policy: str, looked_at: list[int]) -> None:
    cache = _filled(policy)
    with collected() as generations:
        assert _evict(cache) == 0
    assert generations == looked_at


@pytest.mark.parametrize(("policy", "looked_at"), [("auto", [0]), ("always", [0]), ("full", [2])])
def test_a_young_cycle_takes_the_youngest_generation(policy: str, looked_at: list[int]) -> None:
    cache = _filled(policy)
    with collected() as generations:
        Knot(list(stored_arrays(cache)))
        assert _evict(cache) == 0
    assert generations == looked_at


@pytest.mark.parametrize(("policy", "looked_at"), [("auto", [0, 1, 2]), ("always", [0, 1, 2]), ("full", [2])])
def test_an_old_cycle_takes_them_all(policy: str, looked_at: list[int]) -> None:
    cache, knots = _filled(policy), []
    knots.append(Knot(list(stored_arrays(cache))))
    with collected() as generations:
        knots.clear()
        assert _evict(cache) == 0
    assert generations == looked_at


@pytest.mark.parametrize("policy", ["auto", "always"])
def test_a_full_collection_that_brought_nothing_is_not_made_again(policy: Any) -> None:
    """Something holds the arrays for good: looking at everything each time would not change that."""
    cache = _filled(policy)
    held = list(stored_arrays(cache))
    with collected() as generations:
        assert _evict(cache) > 0
        assert generations[-1] == 2
        for _ in range(3):
            generations.clear()
            cache.store(prompt(20), MODEL.filled(prompt(20)))
            held += list(stored_arrays(cache))
            _evict(cache)
            assert generations == [0, 1]


def test_one_that_brought_something_is_made_again() -> None:
    cache = _filled("always")
    for _ in range(3):
        knots = [Knot(list(stored_arrays(cache)))]
        with collected() as generations:
            knots.clear()
            assert _evict(cache) == 0
        assert generations == [0, 1, 2]
        cache.store(prompt(20), MODEL.filled(prompt(20)))


def test_the_policies_are_named_where_one_is_not_known() -> None:
    with pytest.raises(ConfigError, match="gc must be 'auto', 'always' or 'full', found 'never'"):
        KVPrefixCache(gc="never")  # type: ignore[arg-type]
