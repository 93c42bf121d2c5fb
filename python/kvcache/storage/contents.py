"""The contents of a cache: the index and the arrays stored under its ids, guarded by one lock.

Every critical section is written ``with contents.lock:`` and starts with :meth:`Contents.opened`. The lock
is native, so no exception can arrive between acquiring it and entering the block. If a section is
interrupted halfway, the next one completes it:

- leases and plans are objects; the index ends those that nothing references any longer;
- the index remembers the ids it dropped until their arrays have been removed as well;
- a store puts its arrays in place before it commits.
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
    from kvcache.storage.lending import Loan
    from kvcache.storage.segments import Copies, Segment

T = TypeVar("T")


class Removed(NamedTuple):
    """The result of a removal: ids and counts, and the arrays, which the receiver must release."""

    dropped: Dropped
    arrays: list[Array]


class Contents:
    """Index, arrays, and the lock around both.

    Args:
        index: The native index.
        grouped: The cache belongs to a group of ranks. Ranks must agree on the order of use, but garbage
            collection runs at different times on each, so abandoned leases are not ended automatically.

    Attributes:
        lock: Held for bookkeeping only: never during array work, user code or garbage collection.
        index: For reads; changes go through :meth:`opened`.
        layouts: Layouts by number; needs the lock.
        labels: Labels by number; needs the lock.
        closed: Whether the cache is closed.
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
        """Completes what an interrupted section left undone and returns the index; needs the lock.

        Raises:
            ClosedError: The cache is closed.
        """
        index = self._open_index()
        if index.abandoned and not self._grouped:
            index.end_abandoned()
        if index.owes:
            self.settle()
        return index

    def _open_index(self) -> CacheIndex:
        if self.closed:
            raise ClosedError("this cache is closed; make a new KVPrefixCache")
        return self.index

    def read(self, query: Callable[[CacheIndex], T]) -> T:
        """Runs a read-only query on the index. Works in a signal handler or a finalizer, too."""
        if self.lock.owned:
            return query(self._open_index())
        with self.lock:
            return query(self.opened())

    def change(self, action: Callable[[CacheIndex], T]) -> tuple[T, list[Array]]:
        """Runs one critical section that may drop entries.

        Returns:
            The action's result, and the arrays of everything that left the index.
        """
        with self.lock:
            return action(self.opened()), self.settle()

    def remove(self, action: Callable[[CacheIndex], Dropped | None]) -> Removed | None:
        """Runs ``action`` and removes the arrays of what it drops; None if it returns None."""
        dropped, arrays = self.change(action)
        return None if dropped is None else Removed(dropped, arrays)

    def settle(self) -> list[Array]:
        """Applies the index's pending changes to the arrays; needs the lock.

        Each step is atomic or can be repeated.

        Returns:
            The arrays of everything that left the index. The caller owns the list.
        """
        owed = self.index.owed
        for join in owed.joins:
            self.segments.join(join.segment, join.replaced)
        for number in owed.rewritten:
            self.segments.apply_staged(number)
        arrays = self.segments.remove(owed.segments, owed.checkpoints)
        self.index.settled()
        self.segments.discard_staged()
        return arrays

    def clear(self) -> Removed:
        """Drops everything, including arrays that an interrupted call left without an owner."""
        with self.lock:
            dropped = self.opened().clear()
            return Removed(dropped, [*self.settle(), *self.segments.remove_all()])

    def close(self) -> Removed | None:
        """Drops everything and closes the cache; None if it is closed already."""
        with self.lock:
            if self.closed:
                return None
            dropped = self.opened().clear()
            removed = Removed(dropped, [*self.settle(), *self.segments.remove_all()])
            self.closed = True
            return removed

    def lookup(self, request: Request, limit: int) -> Match:
        """Finds what a fetch of at most ``limit`` tokens would reuse; changes nothing."""
        return self.read(lambda index: index.lookup(request.key, request.namespace, request.spans, limit))

    def lease(self, request: Request, limit: int) -> Acquired:
        """Protects what a lookup finds from eviction until the lease is released or garbage-collected."""
        with self.lock:
            return self.opened().acquire(request.key, request.namespace, request.spans, limit)

    def release(self, lease: Lease | None, stamp: int) -> None:
        """Ends a lease. Memory that only the lease kept alive stays in MLX's pool until the next reclaim."""
        if lease is not None:
            with self.lock:
                if not self.closed:
                    self.opened().release(lease, stamp)
                    if self.index.owes:
                        self.settle()

    def lend(self, request: Request, limit: int, *, take: bool) -> tuple[Match, Loan | None]:
        """Leases what a fetch copies and returns its arrays; no loan if nothing matches."""
        with self.lock:
            index = self.opened()
            place = request.key, request.namespace, request.spans, limit
            takeable = index.takeable(*place) if take else 0
            acquired = index.acquire(*place)
            return acquired.found, self._gather(acquired, request, takeable)

    def withdraw(self, request: Request, loan: Loan) -> tuple[Match, Loan | None]:
        """Moves a loan out of the cache, except for the part that other sequences share.

        Called just before the copy, so that a failure before it loses nothing. The new loan is shorter,
        or None, if another thread dropped some of it in the meantime.
        """
        with self.lock:
            index = self.opened()
            if loan.lease is not None:
                index.release(loan.lease, request.stamp)
            acquired = index.take(request.key, request.namespace, request.spans, loan.match.length)
            withdrawn = self._gather(acquired, request, loan.takeable)
            self.settle()
        # This lookup is capped at the loan's length and so suggests no checkpoint; the first one may.
        same = acquired.found.length == loan.match.length
        return (loan.match if same else acquired.found), withdrawn

    def _gather(self, acquired: Acquired, request: Request, takeable: int) -> Loan | None:
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

    def split_parts(self, planned: Planned) -> Segment | None:
        """The parts of the segment that a plan splits; None if it splits none. Needs the lock."""
        return None if planned.split is None else list(self.segments.parts[planned.split.old])

    def require_match(self, namespace: str, layout: Layout) -> None:
        """Refuses a layout that cannot belong to the namespace's model; needs the lock.

        Raises:
            Refusal: ``layout_mismatch``.
        """
        self.layouts.require_match(self.index.layouts(namespace), layout)

    def newest_layout(self, namespace: str) -> Layout | None:
        """The layout of the namespace's latest store; None if the namespace is empty."""
        with self.lock:
            numbers = self.opened().layouts(namespace)
            return self.layouts.by_number[numbers[-1]] if numbers else None

    def expected_bytes(self, namespace: str, tokens: int, checkpoints: int) -> int:
        """Estimates the bytes that more tokens of a namespace will take; 0 if the namespace is empty."""
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
            False if the tree has changed since the plan; then nothing is kept.

        Raises:
            ClosedError: The cache was closed in the meantime.
        """
        with self.lock:
            index = self.opened()
            self.layouts.keep(number, layout)
            self.segments.put(copies.segments, copies.checkpoint)
            committed = index.commit(plan, stamp)
            self.settle()
            return committed

    def abort(self, plan: Plan) -> Removed | None:
        """Cancels a draft or a plan, and drops the KV that only it kept."""
        with self.lock:
            if self.closed:
                return None
            return Removed(self.opened().abort(plan), self.settle())

    def multipart_segments(self, acquired: Acquired) -> list[int]:
        """The leased segments that consist of more than one part."""
        numbers = [piece.segment for piece in acquired.pieces]
        with self.lock:
            self.opened()
            return list(filter(self.segments.is_multipart, numbers))

    def reserve(self, nbytes: int, buffers: int) -> Room | None:
        """Reserves room under the ledger's limits; None if there is not enough. Collecting it frees it."""
        with self.lock:
            return self.opened().reserve_bytes(nbytes, buffers)

    def unreserve(self, room: Room) -> None:
        """Releases reserved room. A second call does nothing."""
        with self.lock:
            if not self.closed:
                self.opened().unreserve_bytes(room)

    def rewrite(self, lease: Lease, number: int, parts: Segment, room: Room) -> None:
        """Replaces a leased segment's parts with fewer ones, if it still holds the same tokens."""
        with self.lock:
            index = self.opened()
            index.unreserve_bytes(room)
            self.segments.stage(number, parts)
            index.compacted(lease, number, len(parts))
            self.settle()

    def by_label(self, index: CacheIndex, namespace: str | None) -> dict[str, LabelFigures]:
        """Figures for each label; empty for a single namespace."""
        return self.labels.figures(index.labels()) if namespace is None else {}

    def validate(self) -> None:
        """Checks every invariant, and the ledger against the arrays. O(everything held).

        Raises:
            InternalError: An invariant is broken; the message names it.
        """
        with self.lock:
            index = self.opened()
            index.validate()
            figures = index.stats()
            self.segments.check(figures.nbytes, figures.buffers, figures.segments, figures.checkpoints)
