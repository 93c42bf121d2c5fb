"""Evict: drop, reclaim, measure; and again while measured memory asks for it and answers to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx
from loguru import logger

from kvcache.arrays import clear_pool
from kvcache.eviction import Eviction
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache._core import CacheIndex, Dropped, Plan
    from kvcache.operations.context import Context
    from kvcache.storage.contents import Removed


def cycle(context: Context, action: Callable[[CacheIndex], Dropped | None]) -> Eviction:
    """One eviction cycle; no cycle where the action drops nothing."""
    removed = context.contents.remove(action)
    return finish(context, removed) if removed is not None and removed.dropped else Eviction()


def finish(context: Context, removed: Removed) -> Eviction:
    """Ends a cycle whose removal was done along with something else, and counts it."""
    eviction = context.reclaim.run(removed.dropped, removed.arrays)
    with context.contents.lock:
        context.counters.evicted(eviction)
    return eviction


def abort(context: Context, plan: Plan | None) -> Eviction:
    """Gives a draft or a plan up, and with it KV that nothing else kept."""
    removed = None if plan is None else context.contents.abort(plan)
    return finish(context, removed) if removed is not None and removed.dropped else Eviction()


class Need(NamedTuple):
    """What must go."""

    nbytes: int = 0
    tokens: int = 0
    sequences: int = 0
    entries: int = 0


def evict(context: Context, need: Callable[[CacheIndex], Need]) -> Eviction:
    """One cycle that evicts units in eviction order until what is needed is gone.

    Args:
        context: The cache's inside.
        need: Called under the lock; may refuse bad input.
    """
    if not context.ranks.grouped:
        return cycle(context, lambda index: index.evict(**need(index)._asdict()))

    def units(index: CacheIndex) -> int:
        return index.count_units(**need(index)._asdict())

    return evict_units(context, context.ranks.most(lambda: context.contents.read(units)))


def evict_units(context: Context, units: int) -> Eviction:
    """One cycle that evicts ``units`` in eviction order."""
    return cycle(context, lambda index: index.evict(units=units))


def evict_idle(context: Context, since: Callable[[], int | None]) -> Eviction:
    """One cycle that evicts what was last used before a moment.

    Args:
        context: The cache's inside.
        since: The moment in microseconds, None where nothing can be that old; may refuse bad input.
    """
    if not context.ranks.grouped:
        stamp = since()
        return cycle(context, lambda index: None if stamp is None else index.evict_idle(stamp))

    def count() -> int:
        stamp = since()
        # Clocks differ: the first rank's decides for all.
        asked = stamp is not None and context.ranks.rank == 0
        return context.contents.read(lambda index: index.count_idle(stamp or 0) if asked else 0)

    return evict_units(context, context.ranks.most(count))


def relieve(context: Context, relief: Relief, units: int | None = None) -> Eviction:
    """Evicts while the measured memory asks for it and answers to it: see :class:`Relief`.

    Args:
        context: The cache's inside.
        relief: Measures, for what is about to be allocated.
        units: What the ranks agreed to begin with; None: not agreed yet.
    """
    total = Eviction()
    while True:
        if units is None:
            units = context.ranks.most(relief.units)
        # Not whether anything went here: a rank that holds nothing more stays for the others.
        if not units:
            return total
        evicted = evict_units(context, units)
        relief.evicted(evicted)
        total += evicted
        units = None


class Relief:
    """Counts the units that measured memory asks for, cycle by cycle.

    ``memory_limit`` is measured on MLX's own counter, which falls by what is evicted. A pressure source
    may move for reasons of its own, or not at all. So:

    - MLX's pool is cleared before any entry is evicted;
    - an excess beyond all that could be evicted costs one unit;
    - a source that has not yet answered to an eviction is tried with one unit;
    - another cycle follows only where the excess fell by about what the last one evicted.

    Args:
        context: The cache's inside.
        need: Bytes that are about to be allocated.
    """

    def __init__(self, context: Context, need: int) -> None:
        self._context = context
        self._need = need
        self._before: int | None = None
        self._last = Eviction()
        self._done = False

    def evicted(self, eviction: Eviction) -> None:
        """Notes what a cycle evicted on the counted units."""
        self._last = eviction

    def units(self) -> int:
        """Units to evict now; 0 once enough has been evicted, or none would help."""
        if self._done:
            return 0
        over, foreign = self._measure()
        excess = max(over, foreign)
        before, self._before = self._before, excess
        if before is not None and not self._answered(before - excess):
            self._done = True
            self._context.pressure_answers = False
            if excess > 0:
                logger.warning(
                    "evicting {} did not lower the memory pressure of {}, which is not this cache's; "
                    "the rest is kept",
                    format_size(self._last.nbytes),
                    format_size(before),
                )
            return 0
        if before is not None and foreign:
            self._context.pressure_answers = True
        if excess <= 0:
            return 0

        def count(index: CacheIndex) -> int:
            if excess > index.nbytes - index.leased_bytes:
                self._done = before is not None
                return 0 if self._done else min(1, index.units)
            if foreign > over and not self._context.pressure_answers:
                return min(1, index.units)
            return index.count_units(nbytes=excess)

        return self._context.contents.read(count)

    def _answered(self, fall: int) -> bool:
        """Whether the excess fell by about what the last cycle gave back."""
        given = self._last.nbytes
        return given == 0 or given // 2 <= fall <= 2 * max(given, self._last.freed)

    def _measure(self) -> tuple[int, int]:
        """Bytes over ``memory_limit``, and bytes that the pressure source wants gone."""
        limits = self._context.limits
        measured = limits.over(self._need), limits.pressed()
        if max(measured) > 0 and self._before is None:
            pooled = mx.get_cache_memory()
            clear_pool()
            # A source is asked again only where something was cleared; MLX's own counter, since a GPU lets
            # go of what was freed a moment late.
            measured = limits.over(self._need), limits.pressed() if pooled else measured[1]
        return measured
