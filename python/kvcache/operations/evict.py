"""Evict: drop, reclaim, measure. Repeats while memory is over its limit and eviction lowers it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx
from loguru import logger

from kvcache.arguments import number, shown, whole
from kvcache.arrays import clear_pool
from kvcache.errors import ConfigError
from kvcache.eviction import Eviction
from kvcache.sizes import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache._core import CacheIndex, Dropped, Plan
    from kvcache.operations.context import Context
    from kvcache.storage.contents import Removed


def cycle(context: Context, action: Callable[[CacheIndex], Dropped | None]) -> Eviction:
    """Runs one eviction cycle; no cycle if the action drops nothing."""
    removed = context.contents.remove(action)
    return finish(context, removed) if removed is not None and removed.dropped else Eviction()


def finish(context: Context, removed: Removed) -> Eviction:
    """Completes and counts a cycle: reclaims what was removed already."""
    eviction = context.reclaim.run(removed.dropped, removed.arrays)
    with context.contents.lock:
        context.counters.evicted(eviction)
    return eviction


def abort(context: Context, plan: Plan | None) -> Eviction:
    """Cancels a draft or a plan, and drops the KV that only it kept."""
    removed = None if plan is None else context.contents.abort(plan)
    return finish(context, removed) if removed is not None and removed.dropped else Eviction()


class Need(NamedTuple):
    """How much to evict, in each measure."""

    nbytes: int = 0
    tokens: int = 0
    sequences: int = 0
    entries: int = 0


def evict(context: Context, need: Callable[[CacheIndex], Need]) -> Eviction:
    """Runs one cycle that evicts units in eviction order until ``need`` is met.

    Args:
        context: The cache's internals.
        need: Called with the lock held; may raise for bad input.
    """
    if not context.ranks.grouped:
        return cycle(context, lambda index: index.evict(**need(index)._asdict()))

    def units(index: CacheIndex) -> int:
        return index.count_units(**need(index)._asdict())

    return evict_units(context, context.ranks.most(lambda: context.contents.read(units)))


def evict_units(context: Context, units: int) -> Eviction:
    """Runs one cycle that evicts ``units`` units in eviction order."""
    return cycle(context, lambda index: index.evict(units=units))


def trim(
    context: Context,
    *,
    nbytes: int | str | None,
    tokens: int | None,
    sequences: int | None,
    entries: int | None,
) -> Eviction:
    """Runs one cycle that evicts units in eviction order down to these limits; None is no limit."""

    def excess(index: CacheIndex) -> Need:
        if all(limit is None for limit in (nbytes, tokens, sequences, entries)):
            raise ConfigError(
                "trim_to needs at least one limit, found none; pass nbytes=, tokens=, sequences= or entries="
            )
        max_bytes = index.nbytes if nbytes is None else parse_size(nbytes, "nbytes")
        return Need(
            nbytes=max(0, index.nbytes - max_bytes),
            tokens=_excess("tokens", index.ntokens, tokens),
            sequences=_excess("sequences", index.sequences, sequences),
            entries=_excess("entries", index.entries, entries),
        )

    return evict(context, excess)


def _excess(name: str, held: int, limit: int | None) -> int:
    return 0 if limit is None else max(0, held - whole(name, limit))


def evict_idle(context: Context, seconds: float) -> Eviction:
    """Runs one cycle that evicts what has not been used for ``seconds``."""

    def before() -> int | None:
        idle = number("seconds must be a number", seconds)
        if not idle >= 0:
            rule = "must be a number" if math.isnan(idle) else "must not be negative"
            raise ConfigError(f"seconds {rule}, found {shown(seconds)}")
        stamp = context.stamp() - idle * 1e6
        return int(stamp) if stamp >= 0 else None

    if not context.ranks.grouped:
        stamp = before()
        return cycle(context, lambda index: None if stamp is None else index.evict_idle(stamp))

    def count() -> int:
        stamp = before()
        # Clocks differ between ranks: the first rank's decides for all.
        if stamp is None or context.ranks.rank != 0:
            return context.contents.read(lambda _: 0)
        return context.contents.read(lambda index: index.count_idle(stamp))

    return evict_units(context, context.ranks.most(count))


def relieve(context: Context, relief: Relief, units: int | None = None) -> Eviction:
    """Evicts while memory is over its limit and eviction lowers it: see :class:`Relief`.

    Args:
        context: The cache's internals.
        relief: Measures memory and decides.
        units: Units that the ranks agreed to evict first; None if they have not agreed yet.
    """
    total = Eviction()
    while True:
        if units is None:
            units = context.ranks.most(relief.units)
        # Not whether this rank evicted anything: an empty rank stays in the loop for the others.
        if not units:
            return total
        evicted = evict_units(context, units)
        relief.evicted(evicted)
        total += evicted
        units = None


class Relief:
    """Decides, cycle by cycle, how many units to evict for ``memory_limit`` and the pressure source.

    ``memory_limit`` is compared with MLX's own counter, which falls by what is evicted. A pressure source
    may change for other reasons, or not at all. Therefore:

    - MLX's pool is cleared before anything is evicted;
    - an excess larger than everything evictable costs one unit;
    - a source that has not yet responded to an eviction is probed with one unit;
    - another cycle follows only if the excess fell by about as much as the last one evicted.

    Args:
        context: The cache's internals.
        need: Bytes about to be allocated.
    """

    def __init__(self, context: Context, need: int) -> None:
        self._context = context
        self._need = need
        self._before: int | None = None
        self._last = Eviction()
        self._done = False

    def evicted(self, eviction: Eviction) -> None:
        """Records the result of the cycle that evicted the last units."""
        self._last = eviction

    def units(self) -> int:
        """Units to evict now; 0 once enough is evicted or evicting more would not help."""
        if self._done:
            return 0
        over_limit, pressure = self._measure()
        excess = max(over_limit, pressure)
        before, self._before = self._before, excess
        if before is not None and not self._responded(before - excess):
            self._done = True
            self._context.pressure_responds = False
            if excess > 0:
                logger.warning(
                    "evicting {} did not lower the memory pressure of {}, so something else causes it; "
                    "keeping the remaining entries",
                    format_size(self._last.nbytes),
                    format_size(before),
                )
            return 0
        if before is not None and pressure:
            self._context.pressure_responds = True
        if excess <= 0:
            return 0

        def count(index: CacheIndex) -> int:
            if excess > index.nbytes - index.leased_bytes:
                self._done = before is not None
                return 0 if self._done else min(1, index.units)
            if pressure > over_limit and not self._context.pressure_responds:
                return min(1, index.units)
            return index.count_units(nbytes=excess)

        return self._context.contents.read(count)

    def _responded(self, fall: int) -> bool:
        """Whether the excess fell by about as much as the last cycle evicted."""
        nbytes = self._last.nbytes
        return nbytes == 0 or nbytes // 2 <= fall <= 2 * max(nbytes, self._last.freed)

    def _measure(self) -> tuple[int, int]:
        """Bytes over ``memory_limit``, and the pressure source's excess bytes."""
        limits = self._context.limits
        measured = limits.over(self._need), limits.pressed()
        if max(measured) > 0 and self._before is None:
            pooled = mx.get_cache_memory()
            clear_pool()
            # The source is read again only if the pool held something. MLX's counter is always read again:
            # a GPU releases freed buffers with a short delay.
            measured = limits.over(self._need), limits.pressed() if pooled else measured[1]
        return measured
