"""Compaction: segments that were joined of many parts are rewritten into few.

The index joins nodes without touching an array; a segment then consists of the parts that its
predecessors had, and a fetch copies each part by itself. After a store, the parts on its path are
merged so that each is more than twice as long as the next. So a segment has O(log tokens) parts, and
a token that is stored turn by turn is copied O(log tokens) times (the idea of log-structured merge
trees: O'Neil et al., 1996).

It is worth doing, and never necessary: where there is no room for all of it, as much is done as there
is room for. Only for a segment in very many parts, as branches at every token leave it, is anything
evicted; so nobody can leave a prompt in pieces for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from kvcache import arrays
from kvcache.eviction import Eviction
from kvcache.operations.allocate import SUCCEEDED, Attempt
from kvcache.operations.evict import cycle
from kvcache.storage.segments import MANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache._core import Lease, Room
    from kvcache.operations.context import Context
    from kvcache.request import Request
    from kvcache.storage.contents import Contents
    from kvcache.storage.segments import Part, Segment


def compact(context: Context, request: Request, length: int) -> Eviction:
    """Merges the parts of what is stored for the first ``length`` tokens of a request.

    O(nodes on the path), and what is copied. Ranks come here together or not at all, since a lease is
    a use; what each of them rewrites is its own business, and evicts nothing.

    Returns:
        What was evicted to make room.
    """
    contents = context.contents
    acquired = contents.lease(request.head(length), length)
    evicted = Eviction()
    try:
        if acquired.lease is not None:
            for number in contents.parted(acquired):
                evicted += _compact_segment(context, acquired.lease, number)
    finally:
        contents.release(acquired.lease, request.stamp)
    return evicted


def _compact_segment(context: Context, lease: Lease, number: int) -> Eviction:
    contents, evicted = context.contents, Eviction()
    with contents.lock:
        free = contents.opened().free_bytes
        old = contents.segments.find(number)
    sizes = [arrays.nbytes(part) for part in old]
    runs = merged_runs([_tokens(part) for part in old])
    nbytes = _new_bytes(runs, sizes)
    if nbytes > free:
        if len(old) > MANY and not context.ranks.grouped:
            evicted = cycle(context, lambda index: index.make_room(nbytes, 0))
        else:
            runs = fitting_runs(runs, sizes, free)
            nbytes = _new_bytes(runs, sizes)
    if not nbytes:
        return evicted
    buffers = sum(len(old[run[0]]) for run in runs if len(run) > 1)
    room = contents.reserve(nbytes, buffers)
    if room is not None:
        try:
            if not context.limits.over(nbytes):
                _rewrite(contents, lease, number, old, runs, room)
        finally:
            contents.unreserve(room)
    return evicted


def _new_bytes(runs: Sequence[range], sizes: Sequence[int]) -> int:
    return sum(sizes[at] for run in runs if len(run) > 1 for at in run)


def _rewrite(
    contents: Contents, lease: Lease, number: int, old: Segment, runs: Sequence[range], room: Room
) -> None:
    attempt = Attempt(lambda: _merge(old, runs))
    if attempt.status != SUCCEEDED:
        logger.warning("a segment stays in {} parts: {}", len(old), attempt.forget())
        return
    contents.rewrite(lease, number, attempt.result(), room)


def _merge(old: Segment, runs: Sequence[range]) -> Segment:
    """New parts; those that stay alone are the old ones."""
    parts: Segment = []
    for run in runs:
        if len(run) == 1:
            parts.append(old[run[0]])
            continue
        pieces = [old[at] for at in run]
        part: Part = []
        for number in range(len(pieces[0])):
            joined = [(piece[number], piece[number].shape[-2]) for piece in pieces]
            part.append(arrays.join(joined, sum(tokens for _, tokens in joined)))
        arrays.evaluate(part)
        parts.append(part)
    return parts


def _tokens(part: Part) -> int:
    return part[0].shape[-2] if part else 0


def merged_runs(lengths: Sequence[int]) -> list[range]:
    """Which neighbours become one, so that each length is more than twice the next.

    From the end: a part of at most twice the length of those after it that were merged joins them.
    """
    runs: list[range] = []
    end = len(lengths)
    while end:
        start = end - 1
        total = lengths[start]
        while start and lengths[start - 1] <= 2 * total:
            start -= 1
            total += lengths[start]
        runs.append(range(start, end))
        end = start
    runs.reverse()
    return runs


def fitting_runs(runs: Sequence[range], sizes: Sequence[int], free: int) -> list[range]:
    """The same runs, less what ``free`` bytes have no room for: the latest parts of each come first."""
    kept: list[range] = []
    for run in reversed(runs):
        start = run.stop
        while start > run.start and sizes[start - 1] <= free:
            start -= 1
            free -= sizes[start]
        if start < run.stop:
            kept.append(range(start, run.stop))
        kept += [range(at, at + 1) for at in reversed(range(run.start, start))]
    kept.reverse()
    return kept
