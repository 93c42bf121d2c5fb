"""Reclaim: the one way in which dropped arrays become free memory.

Dropping the last reference moves a buffer from MLX's active memory to its buffer cache; an array
in a reference cycle does not even do that until a collection. So, once per eviction cycle: drop,
``gc.collect()``, ``mx.clear_cache()``, measure. Never under a lock: a collection runs other
people's finalizers.
"""

from __future__ import annotations

import gc
from time import perf_counter
from typing import TYPE_CHECKING, Final, Literal

import mlx.core as mx
from loguru import logger

from kvcache.errors import ConfigError
from kvcache.results import Eviction
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from kvcache._core import Dropped
    from kvcache.arrays import Array

GcPolicy = Literal["always", "auto"]
"""When eviction cycles collect garbage; the argument ``gc`` of ``KVPrefixCache`` says more."""
_POLICIES: Final[tuple[GcPolicy, ...]] = ("always", "auto")


def check_policy(policy: str) -> GcPolicy:
    """Raises ``ConfigError`` for anything but ``"always"`` and ``"auto"``."""
    for known in _POLICIES:
        if policy == known:
            return known
    raise ConfigError(f"gc must be 'always' or 'auto', found {policy!r}")


def footprint() -> int:
    """Bytes that MLX holds: active and cached."""
    return int(mx.get_active_memory() + mx.get_cache_memory())


def reclaim(dropped: Dropped, arrays: list[Array], policy: GcPolicy) -> Eviction:
    """Ends one eviction cycle: drops the arrays and gives their memory back.

    Args:
        dropped: What the index dropped.
        arrays: Its arrays; the list is emptied. No other reference may be left in the cache.
        policy: ``"auto"`` skips the collection when dropping the references alone freed what the
            ledger said.

    Returns:
        The cycle in figures; ``freed`` is measured.
    """
    started = perf_counter()
    before, active = footprint(), mx.get_active_memory()
    arrays.clear()
    dropped_at = perf_counter()
    collected = policy == "always" or active - mx.get_active_memory() < dropped.nbytes
    if collected:
        gc.collect()
    collected_at = perf_counter()
    mx.clear_cache()
    cleared_at = perf_counter()
    freed = before - footprint()
    logger.info(
        "evicted {} tokens: {} by the ledger, {} freed; drop {:.1f} ms, collect {:.1f} ms{}, clear {:.1f} ms",
        dropped.tokens,
        format_size(dropped.nbytes),
        format_size(freed),
        (dropped_at - started) * 1e3,
        (collected_at - dropped_at) * 1e3,
        "" if collected else " (skipped)",
        (cleared_at - collected_at) * 1e3,
    )
    return Eviction(
        segments=len(dropped.segments),
        checkpoints=len(dropped.checkpoints),
        tokens=dropped.tokens,
        nbytes=dropped.nbytes,
        freed=freed,
        cycles=1,
        seconds=cleared_at - started,
    )
