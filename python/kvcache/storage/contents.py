"""What a cache holds: the index and the arrays under its ids, guarded by one lock.

Every section is written ``with contents.lock:`` and begins with :meth:`Contents.opened`. The lock is
native, so that no exception can arrive between its acquisition and the block; and a section that was
interrupted half-way is finished by the next one:

- leases and plans are objects, and one that nobody holds any more is ended;
- what left the index stays owed until its arrays have been removed;
- the arrays of a store are put in place before its commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kvcache._core import SectionLock
from kvcache.errors import ClosedError
from kvcache.storage.labels import Labels
from kvcache.storage.layouts import Layouts
from kvcache.storage.lending import gather
from kvcache.storage.segments import SegmentStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache._core import Acquired, CacheIndex, Dropped, Lease, Match, Plan, Planned, Room
    from kvcache.arrays import Array
    from kvcache.layers.layout import Layout
    from kvcache.request import Request
    from kvcache.stats import LabelFigures
    from kvcache.storage.lending import Lent
    from kvcache.storage.segments import Copies, Segment

T = TypeVar("T")


class Removed(NamedTuple):
    """What left the cache: ids and figures, and the arrays, which are the receiver's to let go of."""

    dropped: Dropped
    arrays: list[Array]


class Contents:
    """Index, arrays, and the lock around both.

    Args:
        index: The native index.
        grouped: Ranks have to agree on the order of use, and when a lease is collected is no rank's to
            choose: they release by hand.

    Attributes:
        lock: Held for bookkeeping alone: no array work, no user's code, no collection.
        index: For reading; what changes it goes through :meth:`opened`.
        layouts: Layouts by number; under the lock.
        labels: Labels by number; under the lock.
        closed: Whether the cache was closed.
    """

    def __init__(self, index: CacheIndex, *, grouped: bool) -> None:
        self.lock = SectionLock()
        self.index = index
        self.segments = SegmentStore()
        self.layouts = Layouts(index.live_layouts)
        self.labels = Labels()
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

    def change(self, action: Callable[[CacheIndex], T]) -> tuple[T, list[Array]]:
        """Runs one section that may drop something.

        Returns:
            What the action returned, and the arrays of all that left the index.
        """
        with self.lock:
            return action(self.opened()), self.settle()

    def remove(self, action: Callable[[CacheIndex], Dropped | None]) -> Removed | None:
        """Drops what ``action`` drops from the index; None where it drops nothing and says so."""
        dropped, arrays = self.change(action)
        return None if dropped is None else Removed(dropped, arrays)

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

    def clear(self) -> Removed:
        """Drops everything, even what an interrupted call may have left without an owner."""
        with self.lock:
            dropped = self.opened().clear()
            return Removed(dropped, [*self.settle(), *self.segments.remove_all()])

    def close(self) -> Removed | None:
        """Drops everything for good; None where that was done before."""
        with self.lock:
            if self.closed:
                return None
            dropped = self.opened().clear()
            removed = Removed(dropped, [*self.settle(), *self.segments.remove_all()])
            self.closed = True
            return removed

    def lookup(self, request: Request, limit: int) -> Match:
        """What a fetch of at most ``limit`` tokens would find; changes nothing."""
        return self.read(lambda index: index.lookup(request.key, request.namespace, request.spans, limit))

    def lease(self, request: Request, limit: int) -> Acquired:
        """Keeps what a lookup finds from eviction, until the lease is released or collected."""
        with self.lock:
            return self.opened().acquire(request.key, request.namespace, request.spans, limit)

    def release(self, lease: Lease | None, stamp: int) -> None:
        """Ends a lease. What only it kept goes to MLX's pool until the next cycle."""
        if lease is not None:
            with self.lock:
                if not self.closed:
                    self.opened().release(lease, stamp)
                    if self.index.owes:
                        self.settle()

    def lend(self, request: Request, limit: int, *, take: bool) -> tuple[Match, Lent | None]:
        """Leases what a fetch copies, and hands its arrays out; None where nothing is found."""
        with self.lock:
            index = self.opened()
            place = request.key, request.namespace, request.spans, limit
            takeable = index.takeable(*place) if take else 0
            acquired = index.acquire(*place)
            return acquired.found, self._gather(acquired, request, takeable)

    def withdraw(self, request: Request, lent: Lent) -> tuple[Match, Lent | None]:
        """Moves what was lent out of the cache, as far as nobody else continues it.

        Only now: what fails before the copy has lost nothing. Less of it, or none, where another thread
        dropped it meanwhile.
        """
        with self.lock:
            index = self.opened()
            if lent.lease is not None:
                index.release(lent.lease, request.stamp)
            acquired = index.take(request.key, request.namespace, request.spans, lent.found.length)
            withdrawn = self._gather(acquired, request, lent.takeable)
            self.settle()
        # A lookup of that much and no more has no advice; the first answer had.
        same = acquired.found.length == lent.found.length
        return (lent.found if same else acquired.found), withdrawn

    def _gather(self, acquired: Acquired, request: Request, takeable: int) -> Lent | None:
        layout = acquired.found.layout
        if layout is None:
            return None
        return gather(
            acquired,
            self.layouts.by_number[layout],
            self.segments,
            tokens=len(request.key),
            takeable=takeable,
        )

    def halved(self, planned: Planned) -> Segment | None:
        """The parts of the segment that a plan is going to split; under the lock."""
        return None if planned.split is None else list(self.segments.parts[planned.split.old])

    def require_match(self, namespace: str, layout: Layout) -> None:
        """Refuses a layout that cannot be of the model that the namespace holds; under the lock.

        Raises:
            Refusal: ``layout_mismatch``.
        """
        self.layouts.require_match(self.index.layouts(namespace), layout)

    def newest_layout(self, namespace: str) -> Layout | None:
        """The layout that a namespace was last stored in; None where it holds nothing."""
        with self.lock:
            numbers = self.opened().layouts(namespace)
            return self.layouts.by_number[numbers[-1]] if numbers else None

    def expected_bytes(self, namespace: str, tokens: int, checkpoints: int) -> int:
        """Bytes that more tokens of a namespace will take, as far as is known before they are there."""
        with self.lock:
            numbers = self.opened().layouts(namespace)
            if not numbers:
                return 0
            newest = numbers[-1]
            per_token = self.layouts.by_number[newest].token_bytes
            return tokens * per_token + checkpoints * self.layouts.checkpoint_bytes(newest)

    def commit(self, plan: Plan, copies: Copies, number: int, layout: Layout, stamp: int) -> bool:
        """Makes a store part of the cache.

        Returns:
            False, and nothing is kept, where the tree has changed since the plan.

        Raises:
            ClosedError: The cache was closed meanwhile.
        """
        with self.lock:
            index = self.opened()
            self.layouts.keep(number, layout)
            self.segments.put(copies.segments, copies.checkpoint)
            committed = index.commit(plan, stamp)
            self.settle()
            return committed

    def abort(self, plan: Plan) -> Removed | None:
        """Gives a draft or a plan up, and with it KV that nothing else kept."""
        with self.lock:
            if self.closed:
                return None
            return Removed(self.opened().abort(plan), self.settle())

    def parted(self, acquired: Acquired) -> list[int]:
        """The leased segments that consist of several parts."""
        numbers = [piece.segment for piece in acquired.pieces]
        with self.lock:
            self.opened()
            return list(filter(self.segments.is_parted, numbers))

    def reserve(self, nbytes: int, buffers: int) -> Room | None:
        """Keeps room under the ledger; None where there is none. It ends by itself when it is collected."""
        with self.lock:
            return self.opened().reserve_bytes(nbytes, buffers)

    def unreserve(self, room: Room) -> None:
        """Gives reserved room back. A second time does nothing."""
        with self.lock:
            if not self.closed:
                self.opened().unreserve_bytes(room)

    def rewrite(self, lease: Lease, number: int, parts: Segment, room: Room) -> None:
        """Puts fewer parts in the place of a leased segment's, if they are still the same tokens."""
        with self.lock:
            index = self.opened()
            index.unreserve_bytes(room)
            self.segments.offer(number, parts)
            index.compacted(lease, number, len(parts))
            self.settle()

    def by_label(self, index: CacheIndex, namespace: str | None) -> dict[str, LabelFigures]:
        """What is held under each label; nothing for a single namespace."""
        return self.labels.figures(index.labels()) if namespace is None else {}

    def validate(self) -> None:
        """Checks every invariant, the ledger against the arrays held included. O(everything).

        Raises:
            InternalError: Names the broken invariant.
        """
        with self.lock:
            index = self.opened()
            index.validate()
            figures = index.stats()
            self.segments.check(figures.nbytes, figures.buffers, figures.segments, figures.checkpoints)
