"""Reclaim: the only way in which dropped arrays become free memory.

Dropping the last reference moves a buffer from MLX's active memory to its buffer cache. An array in a
reference cycle does not get even that far until a garbage collection. Each eviction cycle therefore drops,
collects, calls ``mx.clear_cache()`` and measures. It holds no lock, because a collection runs arbitrary
finalizers.

A full collection holds the GIL for up to hundreds of milliseconds in a process that has transformers loaded.
Collections are therefore staged: first the youngest generation, then older ones while a dropped array is
still alive or its bytes are still in use. A full collection follows only if the last one freed something.
"""

from __future__ import annotations

import gc
import weakref
from time import perf_counter
from typing import TYPE_CHECKING, Final, Literal

import mlx.core as mx
from loguru import logger

from kvcache.arguments import shown
from kvcache.arrays import clear_pool
from kvcache.errors import ConfigError
from kvcache.eviction import Eviction
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from kvcache._core import Dropped
    from kvcache.arrays import Array

GcPolicy = Literal["auto", "always", "full"]
"""When eviction cycles collect garbage; see the argument ``gc`` of ``KVPrefixCache``."""
_POLICIES: Final[tuple[GcPolicy, ...]] = ("auto", "always", "full")
_YOUNGEST: Final = 0
_OLDEST: Final = 2


def footprint() -> int:
    """Bytes that MLX holds: active and cached."""
    return int(mx.get_active_memory() + mx.get_cache_memory())


class Reclaim:
    """Frees the memory of dropped arrays and measures what came back.

    Args:
        policy: ``"auto"`` collects only if dropping the references did not free everything, ``"always"``
            at least the youngest generation, ``"full"`` all generations.

    Raises:
        ConfigError: Any other policy.
    """

    def __init__(self, policy: GcPolicy) -> None:
        if policy not in _POLICIES:
            raise ConfigError(f"gc must be 'auto', 'always' or 'full', found {shown(policy)}")
        self._policy = policy
        self._full_helped = True

    def run(self, dropped: Dropped, arrays: list[Array]) -> Eviction:
        """Drops the arrays and frees their memory.

        Args:
            dropped: What the index dropped.
            arrays: Its arrays; the list is emptied. The cache must hold no other reference to them.

        Returns:
            The cycle's figures; ``freed`` is measured.
        """
        started = perf_counter()
        before, active = footprint(), mx.get_active_memory()
        missing = _Missing(arrays, active - dropped.nbytes)
        arrays.clear()
        dropped_at = perf_counter()
        generations = self._collect(missing)
        collected_at = perf_counter()
        clear_pool()
        cleared_at = perf_counter()
        freed = before - footprint()
        logger.info(
            "evicted {} tokens: {} by the ledger, {} freed; drop {:.1f} ms, "
            "collect {} of 3 generations in {:.1f} ms, clear {:.1f} ms",
            dropped.tokens,
            format_size(dropped.nbytes),
            format_size(freed),
            (dropped_at - started) * 1e3,
            generations,
            (collected_at - dropped_at) * 1e3,
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

    def _collect(self, missing: _Missing) -> int:
        """Collects as many generations as necessary and returns their number."""
        if self._policy == "full":
            gc.collect()
            return _OLDEST + 1
        if self._policy == "auto" and not missing:
            return 0
        for generation in range(_YOUNGEST, _OLDEST):
            gc.collect(generation)
            if not missing:
                return generation + 1
        if not self._full_helped:
            return _OLDEST
        left = missing.arrays, missing.nbytes
        gc.collect()
        self._full_helped = (missing.arrays, missing.nbytes) < left or not missing
        return _OLDEST + 1


class _Missing:
    """Dropped memory that is not free yet.

    Args:
        arrays: Arrays about to be dropped.
        goal: MLX's active memory once all of them are free.
    """

    def __init__(self, arrays: list[Array], goal: int) -> None:
        self._alive = [weakref.ref(array) for array in arrays]
        self._goal = goal

    @property
    def arrays(self) -> int:
        """Number of dropped arrays that are still referenced."""
        self._alive = [reference for reference in self._alive if reference() is not None]
        return len(self._alive)

    @property
    def nbytes(self) -> int:
        """Bytes by which MLX's active memory exceeds the goal."""
        # A GPU releases dropped buffers with a short delay.
        mx.synchronize()
        return max(0, mx.get_active_memory() - self._goal)

    def __bool__(self) -> bool:
        return bool(self.arrays or self.nbytes)
