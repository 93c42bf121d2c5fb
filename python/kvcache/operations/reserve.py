"""Reserve: make room before a long prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.eviction import Eviction
from kvcache.operations.evict import Relief, cycle, evict_units, relieve
from kvcache.ranks.bids import RoomBid
from kvcache.results import Hit
from kvcache.sizes import parse_size

if TYPE_CHECKING:
    from kvcache._core import CacheIndex, Lease
    from kvcache.operations.context import Context
    from kvcache.request import Request


def reserve(context: Context, nbytes: int, protect: Hit | None) -> Eviction:
    """Makes room for ``nbytes`` under all limits without evicting ``protect``."""
    size, stamp, request = context.ranks.together(lambda: _read(context, nbytes, protect))
    lease: Lease | None = None
    if request is not None and protect is not None:
        lease = context.contents.lease(request, protect.length).lease
    try:
        return make_room(context, size) + relieve(context, Relief(context, size))
    finally:
        context.contents.release(lease, stamp)


def _read(context: Context, nbytes: int, protect: Hit | None) -> tuple[int, int, Request | None]:
    """Checks the arguments: bytes, the current time, and the request of the hit to protect."""
    size, stamp = parse_size(nbytes, "nbytes"), context.stamp()
    if protect is not None and not isinstance(protect, Hit):
        raise TypeError(f"protect must be a Hit, found {type(protect).__name__}")
    if protect is None or not protect.length:
        return size, stamp, None
    request = context.request(protect.tokens, protect.namespace, protect.media, use=False)
    request.require()
    if context.ranks.grouped:
        # Bad tokens must fail here: a lease that is cancelled later would still count as a use.
        context.contents.lookup(request, 0)
    return size, stamp, request


def make_room(context: Context, nbytes: int) -> Eviction:
    """Evicts until ``nbytes`` fit under ``max_bytes``; evicts nothing if that is impossible on some rank."""
    if not context.ranks.grouped:
        return cycle(context, lambda index: index.make_room(nbytes, 0))

    def count(index: CacheIndex) -> RoomBid:
        over = index.over(nbytes)
        return RoomBid(0, 0) if over is None else RoomBid(1, index.count_units(nbytes=over))

    lows, highs = context.ranks.propose(RoomBid, lambda: context.contents.read(count))
    return evict_units(context, highs.units) if lows.possible else Eviction()
