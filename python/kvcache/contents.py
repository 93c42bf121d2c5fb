"""What a cache holds: the index and the arrays under its ids, guarded by one lock.

Every section is written ``with contents.lock:`` and begins with :meth:`Contents.opened`. The lock is
native, so that no exception can arrive between its acquisition and the block; and a section that was
interrupted half-way is finished by the next one:

- leases and plans are objects, and one that nobody holds any more is ended;
- what left the index stays owed until its arrays have been removed;
- the arrays of a store are put in place before its commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kvcache._core import SectionLock
from kvcache.errors import ClosedError
from kvcache.segments import SegmentStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache._core import CacheIndex, Lease, Plan
    from kvcache.arrays import Array
    from kvcache.copying import Copies

T = TypeVar("T")


class Contents:
    """Index, arrays, and the lock around both.

    Args:
        index: The native index.
        grouped: Ranks have to agree on the order of use, and when a lease is collected is no rank's to
            choose: they release by hand.

    Attributes:
        lock: Held for bookkeeping alone: no array work, no user's code, no collection.
        closed: Whether the cache was closed.
    """

    def __init__(self, index: CacheIndex, *, grouped: bool) -> None:
        self.lock = SectionLock()
        self.index = index
        self.segments = SegmentStore()
        self.closed = False
        self._grouped = grouped

    def opened(self) -> CacheIndex:
        """The index, with everything that an interrupted section left finished; under the lock.

        Raises:
            ClosedError: The cache is closed.
        """
        index = self._alive()
        if index.abandoned and not self._grouped:
            index.end_abandoned()
        if index.owes:
            self.settle()
        return index

    def _alive(self) -> CacheIndex:
        if self.closed:
            raise ClosedError("this cache is closed; make a new KVPrefixCache")
        return self.index

    def read(self, query: Callable[[CacheIndex], T]) -> T:
        """Asks the index something that changes nothing; from a signal handler or a finalizer too."""
        if self.lock.owned:
            return query(self._alive())
        with self.lock:
            return query(self.opened())

    def settle(self) -> list[Array]:
        """Does to the arrays what was done to the index; under the lock.

        Each step is done whole or can be done again.

        Returns:
            The arrays of all that left the index. The list is the caller's.
        """
        owed = self.index.owed
        for join in owed.joins:
            self.segments.join(join.segment, join.replaced)
        for number in owed.rewritten:
            self.segments.rewrite(number)
        arrays = self.segments.remove(owed.segments, owed.checkpoints)
        self.index.settled()
        self.segments.withdraw()
        return arrays

    def release(self, lease: Lease | None, stamp: int) -> None:
        """Ends a lease. What only it kept goes to MLX's pool until the next cycle."""
        if lease is not None:
            with self.lock:
                if not self.closed:
                    self.opened().release(lease, stamp)
                    self.settle()

    def commit(self, plan: Plan, copies: Copies, stamp: int) -> bool:
        """Makes a store part of the cache; under the lock.

        False, and nothing kept, where the tree has changed since the plan.

        Raises:
            ClosedError: The cache was closed meanwhile.
        """
        index = self.opened()
        self.segments.put(copies.segments, copies.checkpoint)
        committed = index.commit(plan, stamp)
        self.settle()
        return committed
