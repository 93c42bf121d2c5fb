"""Planning a store: find its place in the tree, make room, reserve it; alone or in agreement with ranks."""

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
    """A caller's prompt cache that can be stored, and its figures.

    Attributes:
        prompt: Its layers.
        layout: Their layout.
        requested: Tokens to store.
        length: The same, cut back to the start of a media span that it would end in.
        checkpointed: Whether any rank has layers that need checkpoints.
        trimmable: Whether, on every rank, its checkpoint can also serve shorter lengths.
        nbytes: Bytes of this rank's images.
        buffers: Arrays of this rank's images.
        agreed_number: The layout's number that the ranks agreed on; None for a single process.
        number: The layout's number in the current plan.
    """

    prompt: Prompt
    layout: Layout
    requested: int
    length: int
    checkpointed: bool
    trimmable: bool
    nbytes: int
    buffers: int
    agreed_number: int | None = None
    number: int = -1


class Step(NamedTuple):
    """The outcome of planning.

    Attributes:
        outcome: "ready", or the reason why there is nothing to copy.
        planned: What to copy.
        split_parts: The parts of the segment to split, if any.
        evicted: What was evicted to make room.
    """

    outcome: str
    planned: Planned | None
    split_parts: Segment | None
    evicted: Eviction


def plan(context: Context, request: Request, reading: Reading) -> Step:
    """Plans a store and evicts to make room for it. The plan stays open until commit or abort."""
    if context.ranks.grouped:
        return _plan_together(context, request, reading)

    def action(index: CacheIndex) -> tuple[Planned, Segment | None]:
        planned = cast("Planned", _place(context, index, request, reading))
        return planned, context.contents.split_parts(planned)

    (planned, split_parts), arrays = context.contents.change(action)
    evicted = Eviction()
    if planned.evicted:
        try:
            evicted = finish(context, Removed(planned.evicted, arrays))
        except BaseException:
            abort(context, planned.plan)
            raise
    return Step(planned.outcome, planned, split_parts, evicted)


def _place(context: Context, index: CacheIndex, request: Request, reading: Reading) -> Planned | Drafted:
    """Finds a store's place in the index: a plan, or in a group a draft; needs the lock."""
    contents, options = context.contents, request.options
    contents.require_match(request.namespace, reading.layout)
    number = reading.agreed_number
    reading.number = contents.layouts.number(reading.layout) if number is None else number
    # The known equal layout has its cached figures already.
    reading.layout = contents.layouts.by_number.get(reading.number, reading.layout)
    checkpoint = None
    if reading.checkpointed:
        contents.layouts.note_checkpoint(reading.number, reading.nbytes)
        checkpoint = reading.nbytes, reading.buffers, reading.trimmable
    store_request = StoreRequest(
        namespace=request.namespace,
        media=request.within(reading.length),
        layout=reading.number,
        bytes_per_token=reading.layout.token_bytes,
        segment_buffers=reading.layout.segment_buffers,
        checkpoint=checkpoint,
        label=contents.labels.number(options.label) if options.label else 0,
        prompt_length=options.prompt_length,
    )
    place = index.draft if context.ranks.grouped else index.plan
    return place(request.key, reading.length, store_request, stamp=request.stamp)


def _plan_together(context: Context, request: Request, reading: Reading) -> Step:
    """Makes a plan of the same length on all ranks, after the same evictions."""
    drafted: Drafted | None = None

    def propose() -> DraftBid:
        nonlocal drafted
        action = partial(_place, context, request=request, reading=reading)
        drafted = cast("Drafted", context.contents.change(action)[0])
        outcome = _OUTCOMES.index(drafted.outcome)
        return DraftBid(outcome, drafted.matched, drafted.length, drafted.length_recopied)

    try:
        lows, highs = context.ranks.propose(DraftBid, propose)
        if (lows.outcome, lows.matched) != (highs.outcome, highs.matched) or drafted is None:
            raise InternalError(
                "the ranks' indexes differ: some hold more of this key than others; drop its namespace on "
                "all ranks to continue, and set KVCACHE_CHECK_RANKS=1 to find the call that made them differ"
            )
        if drafted.draft is None:
            return Step(drafted.outcome, None, None, Eviction())
        length = max(lows.length, lows.length_recopied)
        if length == 0:
            abort(context, drafted.draft)
            return Step("too_large", None, None, Eviction())
        return _promise(context, drafted.draft, length, recopy=lows.length_recopied > lows.length)
    except BaseException:
        abort(context, None if drafted is None else drafted.draft)
        raise


def _promise(context: Context, draft: Plan, length: int, *, recopy: bool) -> Step:
    """Evicts the agreed number of units until every rank has room, then reserves it."""
    contents, evicted = context.contents, Eviction()

    def units_short() -> int:
        nonlocal recopy, evicted
        recopy_now, recopy = recopy, False

        def action(index: CacheIndex) -> tuple[Settled, int]:
            settled = index.settle(draft, length, recopy_now)
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

    while units := context.ranks.most(units_short):
        evicted += evict_units(context, units)
    with contents.lock:
        planned = contents.opened().promise(draft)
        return Step("ready", planned, contents.split_parts(planned), evicted)
