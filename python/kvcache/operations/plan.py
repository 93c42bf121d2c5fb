"""Planning a store: find the place, make room, reserve; by itself or in agreement with ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from kvcache._core import StoreRequest
from kvcache.errors import InternalError
from kvcache.eviction import Eviction
from kvcache.operations.evict import abort, evict_units, finish
from kvcache.ranks.bids import DraftBid
from kvcache.storage.contents import Removed

if TYPE_CHECKING:
    from kvcache._core import CacheIndex, Drafted, Plan, Planned, Settled
    from kvcache.layers.layout import Layout
    from kvcache.layers.prompt_cache import Prompt
    from kvcache.operations.context import Context
    from kvcache.request import Request
    from kvcache.storage.segments import Segment

_OUTCOMES: Final = ("inside_media", "already", "open")


@dataclass
class Reading:
    """A caller's cache, read and found storable.

    Attributes:
        prompt: Its layers.
        layout: Their layout.
        asked: Tokens that it is to be stored for.
        length: The same, cut to the start of a media span.
        checkpointed: Some rank has layers that are kept in checkpoints.
        trimmable: On every rank a checkpoint of it would serve shorter lengths too.
        nbytes: Bytes of this rank's images.
        buffers: Arrays of this rank's images.
        number: The layout's number, where ranks had to agree on one.
        planned: The layout's number in the plan at hand.
    """

    prompt: Prompt
    layout: Layout
    asked: int
    length: int
    checkpointed: bool
    trimmable: bool
    nbytes: int
    buffers: int
    number: int | None = None
    planned: int = -1


class Step(NamedTuple):
    """The outcome of planning.

    Attributes:
        outcome: "ready", or why there is nothing to copy.
        planned: What to copy.
        halved: The parts of the segment that is to be split.
        evicted: What was evicted to make room.
    """

    outcome: str
    planned: Planned | None
    halved: Segment | None
    evicted: Eviction


def plan(context: Context, request: Request, reading: Reading) -> Step:
    """Plans a store and reclaims what made room for it. The plan is open until commit or abort."""
    if context.ranks.grouped:
        return _plan_together(context, request, reading)

    def action(index: CacheIndex) -> tuple[Planned, Segment | None]:
        planned = cast("Planned", _placed(context, index, request, reading))
        return planned, context.contents.halved(planned)

    (planned, halved), arrays = context.contents.change(action)
    evicted = Eviction()
    if planned.evicted:
        try:
            evicted = finish(context, Removed(planned.evicted, arrays))
        except BaseException:
            abort(context, planned.plan)
            raise
    return Step(planned.outcome, planned, halved, evicted)


def _placed(context: Context, index: CacheIndex, request: Request, reading: Reading) -> Planned | Drafted:
    """The place of a store in the index: a plan, or among ranks a draft; under the lock."""
    contents, options = context.contents, request.options
    contents.require_match(request.namespace, reading.layout)
    number = contents.layouts.number(reading.layout) if reading.number is None else reading.number
    # The same layout with its figures, which are computed once.
    reading.planned, reading.layout = number, contents.layouts.by_number.get(number, reading.layout)
    checkpoint = None
    if reading.checkpointed:
        contents.layouts.note_checkpoint(number, reading.nbytes)
        checkpoint = reading.nbytes, reading.buffers, reading.trimmable
    wanted = StoreRequest(
        namespace=request.namespace,
        media=request.within(reading.length),
        layout=number,
        bytes_per_token=reading.layout.token_bytes,
        segment_buffers=reading.layout.segment_buffers,
        checkpoint=checkpoint,
        label=contents.labels.number(options.label) if options.label else 0,
        prompt_length=options.prompt_length,
    )
    place = index.draft if context.ranks.grouped else index.plan
    return place(request.key, reading.length, wanted, stamp=request.stamp)


def _plan_together(context: Context, request: Request, reading: Reading) -> Step:
    """A plan of equal length on all ranks, after equal evictions."""
    drafted: Drafted | None = None

    def propose() -> DraftBid:
        nonlocal drafted
        action = partial(_placed, context, request=request, reading=reading)
        drafted = cast("Drafted", context.contents.change(action)[0])
        outcome = _OUTCOMES.index(drafted.outcome)
        return DraftBid(outcome, drafted.matched, drafted.length, drafted.length_recopied)

    try:
        lows, highs = context.ranks.propose(DraftBid, propose)
        if (lows.outcome, lows.matched) != (highs.outcome, highs.matched) or drafted is None:
            raise InternalError(
                "the ranks' indexes differ: some hold more of this key than others; drop its namespace on "
                "all of them to go on; KVCACHE_CHECK_RANKS=1 tells which call set them apart"
            )
        if drafted.draft is None:
            return Step(drafted.outcome, None, None, Eviction())
        length = max(lows.length, lows.length_recopied)
        if length == 0:
            abort(context, drafted.draft)
            return Step("too_large", None, None, Eviction())
        return _promised(context, drafted.draft, length, recopy=lows.length_recopied > lows.length)
    except BaseException:
        abort(context, None if drafted is None else drafted.draft)
        raise


def _promised(context: Context, draft: Plan, length: int, *, recopy: bool) -> Step:
    """Evicts the agreed number of units until every rank has room, then promises."""
    contents, evicted = context.contents, Eviction()

    def over() -> int:
        nonlocal recopy, evicted
        recopies, recopy = recopy, False

        def action(index: CacheIndex) -> tuple[Settled, int]:
            settled = index.settle(draft, length, recopies)
            return settled, index.count_units(nbytes=settled.nbytes, buffers=settled.buffers)

        (settled, units), arrays = contents.change(action)
        if settled.given_up:
            evicted += finish(context, Removed(settled.given_up, arrays))
        if not units and (settled.nbytes or settled.buffers):
            raise InternalError(
                f"a store that was planned to fit is short of {settled.nbytes} bytes and "
                f"{settled.buffers} buffers"
            )
        return units

    while units := context.ranks.most(over):
        evicted += evict_units(context, units)
    with contents.lock:
        planned = contents.opened().promise(draft)
        return Step("ready", planned, contents.halved(planned), evicted)
