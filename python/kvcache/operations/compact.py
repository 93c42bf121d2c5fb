"""Compaction: merges a segment's many parts into few.

The index joins nodes without touching an array. The joined segment keeps the parts of its predecessors,
and a fetch has to copy each part separately. After a store, compaction merges the parts on its path until
each is more than twice as long as the next. A segment then has O(log tokens) parts, and a token stored
turn by turn is copied O(log tokens) times. The idea is that of log-structured merge trees (O'Neil et al.,
1996).

Compaction is an optimisation: it does only what fits in the free room. The exception is a badly fragmented
segment, such as one left by a branch at every token, for which it evicts other entries. Otherwise a caller
could leave a prompt fragmented for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from kvcache import arrays
from kvcache.eviction import Eviction
from kvcache.operations.allocate import SUCCEEDED, Attempt
from kvcache.operations.evict import cycle
from kvcache.storage.segments import FRAGMENTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache._core import Lease, Room
    from kvcache.operations.context import Context
    from kvcache.request import Request
    from kvcache.storage.contents import Contents
    from kvcache.storage.segments import Part, Segment


def compact(context: Context, request: Request, length: int) -> Eviction:
    """Merges the parts of the segments that hold the first ``length`` tokens of a request.

    Costs O(nodes on the path) and the copies. All ranks of a group must call it together, because a lease
    counts as a use. Each rank then decides for itself what to merge; in a group, nothing is evicted.

    Returns:
        What was evicted to make room.
    """
    contents = context.contents
    acquired = contents.lease(request.head(length), length)
    evicted = Eviction()
    try:
        if acquired.lease is not None:
            for number in contents.multipart_segments(acquired):
                evicted += _compact_segment(context, acquired.lease, number)
    finally:
        contents.release(acquired.lease, request.stamp)
    return evicted


def _compact_segment(context: Context, lease: Lease, number: int) -> Eviction:
    contents, evicted = context.contents, Eviction()
    with contents.lock:
        free = contents.opened().free_bytes
        old = contents.segments.parts_of(number)
    sizes = [arrays.nbytes(part) for part in old]
    runs = merged_runs([_tokens(part) for part in old])
    nbytes = _new_bytes(runs, sizes)
    if nbytes > free:
        if len(old) > FRAGMENTED and not context.ranks.grouped:
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
        logger.warning("could not compact a segment of {} parts: {}", len(old), attempt.discard_error())
        return
    contents.rewrite(lease, number, attempt.result(), room)


def _merge(old: Segment, runs: Sequence[range]) -> Segment:
    """Merges each run into one new part; a run of one keeps its old part."""
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
    """Groups neighbours to merge, so that each merged length is more than twice the next.

    Works from the end: a part joins the run after it if it is at most twice as long as that run.
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
    """Shortens runs to those parts that fit in ``free`` bytes, preferring the last parts of each run."""
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
