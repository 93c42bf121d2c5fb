"""What all operations of one cache share: the lock, the index, the arrays, and the eviction cycle.

One lock guards index and arrays' bookkeeping. Array work, collections, the caller's clock and the
pressure source run outside it.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import mlx.core as mx

from kvcache.errors import AllocationError, ClosedError, ConfigError, RankError
from kvcache.layers.base import Refusal
from kvcache.memory.reclaim import GcPolicy, reclaim
from kvcache.pressing import FAILED, SUCCEEDED, Attempt, Relief
from kvcache.results import Eviction
from kvcache.segments import SegmentStore
from kvcache.sizes import format_size
from kvcache.stats import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcache._core import CacheIndex, Dropped
    from kvcache.arrays import Array
    from kvcache.layers.layout import Layout
    from kvcache.memory.limits import MemoryLimits
    from kvcache.ranks import Ranks

T = TypeVar("T")

# Layouts and labels are few; more of them are a caller's mistake that must not grow for ever.
_LAYOUTS: Final = 256
_LABELS: Final = 1024


class State:
    """The inside of a KVPrefixCache."""

    def __init__(
        self,
        index: CacheIndex,
        limits: MemoryLimits,
        policy: GcPolicy,
        clock: Callable[[], float],
        max_checkpoints: int,
        ranks: Ranks,
    ) -> None:
        self.lock = threading.Lock()
        self.index = index
        self.segments = SegmentStore()
        self.counters = Counters()
        self.limits = limits
        self.policy = policy
        self.max_checkpoints = max_checkpoints
        self.ranks = ranks
        self.closed = False
        self.layouts: dict[int, Layout] = {}
        # Bytes of the last checkpoint stored, by layout: what a session reserves for one.
        self.checkpoint_bytes: dict[int, int] = {}
        # Leases whose pins were collected: finalizers only enqueue.
        self.abandoned: deque[int] = deque()
        self._layout_ids: dict[Layout, list[int]] = {}
        self._next_layout = 0
        self._labels: dict[str, int] = {"": 0}
        self._clock = clock

    def stamp(self) -> int:
        """The caller's time in microseconds. Call it without the lock: the clock is the caller's."""
        return max(0, int(self._clock() * 1e6))

    @contextmanager
    def guard(self) -> Iterator[CacheIndex]:
        """The index, under the lock.

        Raises:
            ClosedError: The cache is closed.
        """
        with self.lock:
            if self.closed:
                raise ClosedError("this cache is closed; make a new KVPrefixCache")
            # When a collection runs is no rank's to choose, so ranks release pins by hand.
            while self.abandoned and not self.ranks.grouped:
                self.segments.remove(self.index.release(self.abandoned.popleft(), 0))
            yield self.index

    def enter(self, call: str) -> None:
        """Where a public call begins; in debug mode the ranks are compared before they act."""
        if not self.ranks.grouped:
            return
        self.ranks.settle()
        if self.ranks.checked:
            lines = self.index.outline()
            self.ranks.check(call, lines, closed=self.closed)

    def release(self, lease: int | None) -> None:
        """Ends a lease. What only it kept goes to MLX's pool until the next cycle."""
        if lease is None:
            return
        stamp = self.stamp()
        with self.lock:
            if not self.closed:
                self.segments.remove(self.index.release(lease, stamp))

    def cycle(self, plan: Callable[[CacheIndex], Dropped | None], *, always: bool = False) -> Eviction:
        """One eviction cycle: plan in the index, drop the arrays, reclaim, measure.

        Args:
            plan: What to drop; None or nothing ends the cycle before it starts.
            always: Reclaim even where nothing was dropped.
        """
        with self.guard() as index:
            dropped = plan(index)
            if dropped is None:
                return Eviction()
            arrays = self.segments.remove(dropped)
        if not (always or dropped):
            return Eviction()
        return self.finish(dropped, arrays)

    def finish(self, dropped: Dropped, arrays: list[Array]) -> Eviction:
        """Ends a cycle whose drop was planned beside something else; counts it."""
        eviction = reclaim(dropped, arrays, self.policy)
        with self.lock:
            self.counters.evicted(eviction)
        return eviction

    def evict(self, need: Callable[[CacheIndex], tuple[int, int]]) -> Eviction:
        """One cycle that evicts the shortest run of the order of eviction with so many bytes and tokens.

        Args:
            need: (bytes, tokens) that must go; called under the lock, may refuse bad input.
        """
        if not self.ranks.grouped:

            def plan(index: CacheIndex) -> Dropped:
                nbytes, tokens = need(index)
                return index.evict(nbytes=nbytes, tokens=tokens)

            return self.cycle(plan)

        def count() -> int:
            with self.guard() as index:
                nbytes, tokens = need(index)
                return index.count_units(nbytes=nbytes, tokens=tokens)

        return self.evict_units(self.ranks.most(count))

    def evict_units(self, units: int) -> Eviction:
        """One cycle that evicts ``units`` of the order of eviction."""
        return self.cycle(lambda index: index.evict(units=units))

    def relieve(self, relief: Relief, units: int | None = None) -> Eviction:
        """Evicts while the measured memory asks for it.

        Stops where eviction cannot cure the pressure: a cycle freed bytes and the source did not
        fall. What is left then stays; so that something is left, pressure beyond all that could go
        is met with one unit first.

        Args:
            relief: Measures, for what is about to be allocated.
            units: What the ranks agreed to begin with; None: not agreed yet.
        """
        total = Eviction()
        while True:
            if units is None:
                units = self.ranks.most(relief.units)
            # Not whether anything went here: a rank that holds nothing more stays for the others.
            if not units:
                return total
            total += self.evict_units(units)
            units = None

    def allocating(
        self, action: Callable[[], T], nbytes: int, what: str, *, again: bool
    ) -> tuple[T, Eviction]:
        """Runs array work; after an allocation failure evicts ``nbytes``, reclaims, tries once more.

        It counts only if it succeeds on all ranks.

        Args:
            action: The work. It changes nothing before it succeeds, unless ``again`` is False.
            nbytes: Bytes that it allocates.
            what: For the error's sentence.
            again: Whether it can be run a second time.

        Raises:
            AllocationError: There is not enough memory, not even after the eviction.
            RankError: The work failed on another rank.
        """
        attempt = Attempt(action)
        status = self._outcome(attempt, what)
        if status == SUCCEEDED:
            return attempt.result(), Eviction()
        short = 0 if attempt.status == SUCCEEDED else max(1, nbytes)
        evicted = self.evict(lambda _: (short, 0))
        if again:
            if attempt.status != SUCCEEDED:
                mx.clear_cache()
                attempt = Attempt(action)
            if self._outcome(attempt, what) == SUCCEEDED:
                return attempt.result(), evicted
        raise AllocationError(
            f"{what} needs {format_size(nbytes)} that could not be allocated "
            f"({attempt.failure or 'on another rank'}); {format_size(evicted.nbytes)} were evicted in the "
            "attempt; lower max_bytes or memory_limit",
            evicted,
        )

    def _outcome(self, attempt: Attempt[T], what: str) -> int:
        """The worst outcome over all ranks; raises where some rank failed for good."""
        worst = self.ranks.agree(attempt.status)[0][0]
        if worst == FAILED:
            attempt.reraise()
            raise RankError(f"{what} failed on another rank of the group; see that rank's own error")
        return worst

    def layout_id(self, layout: Layout) -> int:
        """The layout's number; under the lock."""
        number = self.newest_layout(layout)
        return self.add_layout(layout) if number is None else number

    def newest_layout(self, layout: Layout, limit: int | None = None) -> int | None:
        """The newest number of the layout, up to a limit; under the lock.

        Among ranks a number stands for what all of them hold: one of them may quantise in
        mid-request what another has no layer for, and then goes on under a second number.
        """
        numbers = self._layout_ids.get(layout, ())
        return next((number for number in reversed(numbers) if limit is None or number <= limit), None)

    def add_layout(self, layout: Layout) -> int:
        """A new number for the layout; under the lock."""
        if len(self.layouts) >= _LAYOUTS:
            self._forget_layouts()
        number = self._next_layout
        self._next_layout += 1
        self._layout_ids.setdefault(layout, []).append(number)
        self.layouts[number] = layout
        return number

    def _forget_layouts(self) -> None:
        live = {number for name in self.index.namespaces() for number in self.index.layouts(name)}
        self.layouts = {number: layout for number, layout in self.layouts.items() if number in live}
        self._layout_ids = {}
        for number, layout in self.layouts.items():
            self._layout_ids.setdefault(layout, []).append(number)
        self.checkpoint_bytes = {number: self.checkpoint_bytes.get(number, 0) for number in live}

    def require_match(self, namespace: str, layout: Layout) -> None:
        """Refuses a layout that cannot be of the model that the namespace holds; under the lock.

        Raises:
            Refusal: ``layout_mismatch``.
        """
        for number in self.index.layouts(namespace):
            why = self.layouts[number].mismatch(layout)
            if why:
                raise Refusal("layout_mismatch", f"this cache is of another model: {why}")

    def label_id(self, label: str) -> int:
        """The label's number; under the lock."""
        if label not in self._labels:
            if len(self._labels) >= _LABELS:
                raise ConfigError(f"labels are for a few kinds of stores, not for {_LABELS} of them")
            self._labels[label] = len(self._labels)
        return self._labels[label]

    def by_label(self) -> dict[str, tuple[int, int]]:
        """(sequences, bytes) of each label used so far; under the lock."""
        figures = self.index.labels()
        return {label: figures[number] for label, number in self._labels.items() if number < len(figures)}

    def clear(self) -> Eviction:
        """Drops everything, also what an interrupted call may have left without an owner."""
        with self.guard() as index:
            dropped = index.clear()
            arrays = self.segments.remove_all()
        return self.finish(dropped, arrays)

    def close(self) -> None:
        """Drops everything for good; what other threads have under way ends with ClosedError."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            dropped = self.index.clear()
            arrays = self.segments.remove_all()
        self.finish(dropped, arrays)
