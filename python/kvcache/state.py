"""What all operations of one cache share: contents, limits, counters, and the eviction cycle.

Array work, collections, the caller's clock and the pressure source run outside the lock.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from numbers import Real
from typing import TYPE_CHECKING, Final, TypeVar

from loguru import logger

from kvcache.arrays import clear_pool
from kvcache.contents import Contents
from kvcache.errors import AllocationError, BusyError, ConfigError, RankError
from kvcache.layers.base import Refusal
from kvcache.memory.reclaim import Reclaim
from kvcache.pressing import FAILED, SUCCEEDED, Attempt, Relief
from kvcache.results import Eviction
from kvcache.sizes import LARGEST, format_size
from kvcache.stats import Counters

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from kvcache._core import CacheIndex, Dropped, Plan
    from kvcache.arrays import Array
    from kvcache.layers.layout import Layout
    from kvcache.memory.limits import MemoryLimits
    from kvcache.memory.reclaim import GcPolicy
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
        self.contents = Contents(index, grouped=ranks.grouped)
        self.lock = self.contents.lock
        self.index = index
        self.segments = self.contents.segments
        self.counters = Counters()
        self.limits = limits
        self.max_checkpoints = max_checkpoints
        self.ranks = ranks
        self.layouts: dict[int, Layout] = {}
        # Bytes of the last checkpoint stored, by layout: what a session reserves for one.
        self.checkpoint_bytes: dict[int, int] = {}
        # Whether the pressure source was last seen to answer to an eviction.
        self.pressure_answers = False
        self._reclaim = Reclaim(policy)
        self._layout_ids: dict[Layout, list[int]] = {}
        self._next_layout = 0
        self._labels: dict[str, int] = {"": 0}
        self._clock = clock
        # What a signal handler or a finalizer asked for in mid-call, with the thread it came from.
        self._deferred: deque[tuple[int, Callable[[], object]]] = deque()

    @property
    def closed(self) -> bool:
        """Whether the cache was closed."""
        return self.contents.closed

    def stamp(self) -> int:
        """The caller's time in microseconds. Read once a call, before it has changed anything.

        Raises:
            TypeError: The clock returns no number.
            ConfigError: It returns NaN, infinity, or more than 2⁶² microseconds.
        """
        seconds = self._clock()
        if isinstance(seconds, bool) or not isinstance(seconds, Real):
            raise TypeError(f"clock must return seconds as a number, found {type(seconds).__name__}")
        microseconds = float(seconds) * 1e6
        if not math.isfinite(microseconds) or microseconds > LARGEST:
            raise ConfigError(f"clock must return a finite number of seconds, found {seconds!r}")
        return max(0, int(microseconds))

    def opened(self) -> CacheIndex:
        """The index; under the lock. See :meth:`Contents.opened`."""
        return self.contents.opened()

    def read(self, query: Callable[[CacheIndex], T]) -> T:
        """A call that only asks for figures: see :meth:`Contents.read`."""
        try:
            return self.contents.read(query)
        finally:
            self.leave()

    def call(self, name: str) -> Call:
        """The extent of a public call."""
        return Call(self, name)

    def enter(self, call: str) -> None:
        """Where a public call begins; in debug mode the ranks are compared before they act."""
        if not self.ranks.grouped:
            return
        self.ranks.settle()
        if self.ranks.checked:
            lines = self.index.outline()
            self.ranks.check(call, lines, closed=self.closed)

    def defer(self, action: Callable[[], object]) -> None:
        """Has ``action`` run when the call ends that this thread is in the middle of."""
        self._deferred.append((threading.get_ident(), action))

    def leave(self) -> None:
        """Where a public call ends: what was deferred on this thread is done, unless still in mid-call."""
        if not self._deferred or self.lock.owned:
            return
        mine: list[Callable[[], object]] = []
        others: list[tuple[int, Callable[[], object]]] = []
        # One bytecode each: other threads, and calls of the actions themselves, come here too.
        while self._deferred:
            try:
                thread, action = self._deferred.popleft()
            except IndexError:
                break
            if thread == threading.get_ident():
                mine.append(action)
            else:
                others.append((thread, action))
        self._deferred.extend(others)
        for action in mine:
            try:
                action()
            except Exception:  # noqa: BLE001 - its caller is gone, and this one asked for something else
                logger.exception("what a signal handler or a finalizer had asked for failed")

    def cycle(self, plan: Callable[[CacheIndex], Dropped | None], *, always: bool = False) -> Eviction:
        """One eviction cycle: plan in the index, drop the arrays, reclaim, measure.

        Args:
            plan: What to drop; None or nothing ends the cycle before it starts.
            always: Reclaim even where nothing was dropped.
        """
        with self.lock:
            dropped = plan(self.opened())
            arrays = self.contents.settle()
        if dropped is None or not (always or dropped):
            return Eviction()
        return self.finish(dropped, arrays)

    def finish(self, dropped: Dropped, arrays: list[Array]) -> Eviction:
        """Ends a cycle whose drop was planned along with something else; counts it."""
        eviction = self._reclaim.run(dropped, arrays)
        with self.lock:
            self.counters.evicted(eviction)
        return eviction

    def abort(self, plan: Plan | None) -> Eviction:
        """Gives a draft or a plan up, and with it KV that nothing else kept."""
        if plan is None:
            return Eviction()
        with self.lock:
            if self.closed:
                return Eviction()
            dropped = self.opened().abort(plan)
            arrays = self.contents.settle()
        return self.finish(dropped, arrays) if dropped else Eviction()

    def evict(self, need: Callable[[CacheIndex], tuple[int, int]]) -> Eviction:
        """One cycle that evicts units in eviction order until the needed bytes and tokens are gone.

        Args:
            need: (bytes, tokens) that must go; called under the lock, may refuse bad input.
        """
        if not self.ranks.grouped:

            def plan(index: CacheIndex) -> Dropped:
                nbytes, tokens = need(index)
                return index.evict(nbytes=nbytes, tokens=tokens)

            return self.cycle(plan)

        def count() -> int:
            with self.lock:
                index = self.opened()
                nbytes, tokens = need(index)
                return index.count_units(nbytes=nbytes, tokens=tokens)

        return self.evict_units(self.ranks.most(count))

    def evict_units(self, units: int) -> Eviction:
        """One cycle that evicts ``units`` in eviction order."""
        return self.cycle(lambda index: index.evict(units=units))

    def relieve(self, relief: Relief, units: int | None = None) -> Eviction:
        """Evicts while the measured memory asks for it and answers to it: see :class:`Relief`.

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
            evicted = self.evict_units(units)
            relief.evicted(evicted)
            total += evicted
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
                clear_pool()
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
        self.keep_layout(number, layout)
        return number

    def keep_layout(self, number: int, layout: Layout) -> None:
        """Has the number stand for the layout; under the lock.

        A commit says so again: between two sections of a store other stores may have had it forgotten.
        """
        if self.layouts.setdefault(number, layout) is layout and number not in (
            numbers := self._layout_ids.setdefault(layout, [])
        ):
            numbers.append(number)
            numbers.sort()

    def _forget_layouts(self) -> None:
        live = self.index.live_layouts()
        self.layouts = {number: self.layouts[number] for number in live if number in self.layouts}
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
        return {
            label: (figures[number].sequences, figures[number].nbytes)
            for label, number in self._labels.items()
            if number < len(figures)
        }

    def clear(self) -> Eviction:
        """Drops everything, even what an interrupted call may have left without an owner."""
        with self.lock:
            dropped = self.opened().clear()
            arrays = [*self.contents.settle(), *self.segments.remove_all()]
        return self.finish(dropped, arrays)

    def close(self) -> None:
        """Drops everything for good; what other threads have under way ends with ClosedError.

        In the middle of another call of this thread it waits for that call's end.
        """
        try:
            with self.lock:
                if self.closed:
                    return
                dropped = self.opened().clear()
                arrays = [*self.contents.settle(), *self.segments.remove_all()]
                self.contents.closed = True
        except BusyError:
            self.defer(self.close)
            return
        self.finish(dropped, arrays)


class Call:
    """The extent of a public call, for a ``with`` block."""

    __slots__ = ("_name", "_state")

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name

    def __enter__(self) -> None:
        self._state.enter(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._state.leave()
