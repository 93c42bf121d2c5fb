"""MLX's counters, and what its allocator charges for an array.

On CPU an array is charged its bytes. Metal and CUDA round up, each in its own way, so memory falls by what
the arrays that are gone were charged: to the byte, on every device. On CPU that is the ledger's figure.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx
import numpy as np

from tests.support.inside import stored_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcache import Eviction, KVPrefixCache

# Tokens of `KV()` that fill whole pages, which every device charges as they are.
PAGE_TOKENS = 64


def active() -> int:
    _settle()
    return mx.get_active_memory()


def footprint() -> int:
    """Active and cached: what the machine is short of."""
    _settle()
    return mx.get_active_memory() + mx.get_cache_memory()


def peak_from_here() -> None:
    _settle()
    mx.reset_peak_memory()


def peak() -> int:
    _settle()
    return mx.get_peak_memory()


def _settle() -> None:
    """A GPU lets go of a kernel's inputs a moment after the result is there."""
    mx.synchronize()


@cache
def charge(nbytes: int) -> int:
    """What the device's allocator charges for an array of ``nbytes``: measured, once for each size."""
    assert mx.get_cache_memory() == 0, "MLX's pool would serve the probe: ask for the charge before it is on"
    collecting, limit = gc.isenabled(), mx.set_cache_limit(0)
    gc.disable()
    try:
        before = active()
        probe = mx.array(np.zeros(nbytes, np.uint8))
        mx.eval(probe)
        measured = active() - before
    finally:
        mx.set_cache_limit(limit)
        if collecting:
            gc.enable()
    assert measured >= nbytes
    return measured


def charges(arrays: Iterable[mx.array]) -> int:
    """What these arrays are charged, each with a buffer of its own."""
    return sum(charge(array.nbytes) for array in arrays)


def charged(prefixes: KVPrefixCache) -> int:
    """What the arrays that a cache holds are charged: where MLX is exact, just what the ledger says."""
    total = charges(stored_arrays(prefixes))
    assert total == prefixes.nbytes or not exact()
    return total


@cache
def exact() -> bool:
    """Whether an array is charged its bytes and nothing on top."""
    return _rounding() == 0


def spill(buffers: int) -> int:
    """How far the charge of this many arrays can be above their bytes: 0 where MLX is exact."""
    return buffers * _rounding()


@cache
def _rounding() -> int:
    """The most that one array is charged above its bytes: seen just above the powers of two."""
    return max(charge(size + 1) - size - 1 for size in (1 << power for power in range(3, 21)))


class Weight(NamedTuple):
    """What MLX holds, and the charges of a cache's part in it."""

    footprint: int
    charged: int


def weigh(prefixes: KVPrefixCache) -> Weight:
    return Weight(footprint(), charged(prefixes))


def assert_freed(eviction: Eviction, buffers: int) -> None:
    """An eviction whose arrays are out of sight freed the ledger's bytes: where MLX is exact, just those.

    Args:
        eviction: What the cache says.
        buffers: The most arrays that one of its units can have.
    """
    more = spill(buffers * (eviction.segments + eviction.checkpoints))
    assert eviction.nbytes <= eviction.freed <= eviction.nbytes + more


def given_back(before: Weight, prefixes: KVPrefixCache) -> int:
    """By how much memory fell: exactly by the charges of what the cache held and holds no longer."""
    after = weigh(prefixes)
    assert before.footprint - after.footprint == before.charged - after.charged
    return before.footprint - after.footprint
