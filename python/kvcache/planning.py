"""Planning a store: find the place, make room, reserve; by itself or in agreement with ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from kvcache._core import StoreRequest
from kvcache.errors import InternalError
from kvcache.layers.prompt import segment_buffers, token_bytes
from kvcache.results import Eviction
from kvcache.segments import image_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache._core import CacheIndex, Drafted, Plan, Planned
    from kvcache.fetching import Question
    from kvcache.layers.layout import Layout
    from kvcache.layers.prompt import Prompt
    from kvcache.segments import Segment
    from kvcache.state import State

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
        number: The layout's number, where ranks had to agree on one.
        planned: The layout's number in the plan at hand.
    """

    prompt: Prompt
    layout: Layout
    asked: int
    length: int
    checkpointed: bool
    trimmable: bool
    number: int | None = None
    planned: int = -1


@dataclass
class Step:
    """The outcome of planning.

    Attributes:
        outcome: "ready", or why there is nothing to copy.
        planned: What to copy.
        halved: The arrays of the segment that is to be split.
        evicted: What was evicted to make room.
    """

    outcome: str
    planned: Planned | None
    halved: Segment | None
    evicted: Eviction


def plan(state: State, asked: Question, reading: Reading, label: str, prompt_length: int | None) -> Step:
    """Plans a store and reclaims what made room for it. The plan is open until commit or abort."""
    nbytes, buffers, _ = image_figures(reading.prompt.images())

    def request(index: CacheIndex, stamp: int) -> Callable[[], Planned | Drafted]:
        state.require_match(asked.namespace, reading.layout)
        number = state.layout_id(reading.layout) if reading.number is None else reading.number
        reading.planned = number
        if reading.checkpointed:
            state.checkpoint_bytes[number] = nbytes
        wanted = StoreRequest(
            namespace=asked.namespace,
            media=asked.within(reading.length),
            layout=number,
            bytes_per_token=token_bytes(reading.layout),
            segment_buffers=segment_buffers(reading.layout),
            checkpoint=(nbytes, buffers, reading.trimmable) if reading.checkpointed else None,
            label=state.label_id(label),
            prompt_length=prompt_length,
        )
        begin = index.draft if state.ranks.grouped else index.plan
        return partial(begin, asked.key, reading.length, wanted, stamp=stamp)

    if state.ranks.grouped:
        return _agreed(state, asked.stamp, request)
    with state.lock:
        planned = cast("Planned", request(state.opened(), asked.stamp)())
        halved = _halved(state, planned)
        dropped = state.contents.settle()
    evicted = Eviction()
    if planned.evicted:
        try:
            evicted = state.finish(planned.evicted, dropped)
        except BaseException:
            state.abort(planned.plan)
            raise
    return Step(planned.outcome, planned, halved, evicted)


def _halved(state: State, planned: Planned) -> Segment | None:
    return None if planned.split is None else list(state.segments.segment(planned.split.old))


def _agreed(
    state: State, stamp: int, request: Callable[[CacheIndex, int], Callable[[], Planned | Drafted]]
) -> Step:
    """A plan of equal length on all ranks, after equal evictions."""
    drafted: Drafted | None = None

    def propose() -> tuple[int, int, int, int]:
        nonlocal drafted
        with state.lock:
            drafted = cast("Drafted", request(state.opened(), stamp)())
            state.contents.settle()
        return _OUTCOMES.index(drafted.outcome), drafted.matched, drafted.length, drafted.length_recopied

    try:
        lows, highs = state.ranks.propose(propose, 4)
        if lows[:2] != highs[:2] or drafted is None:
            raise InternalError(
                "the ranks' indexes differ: some hold more of this key than others; drop its namespace on "
                "all of them to go on; KVCACHE_CHECK_RANKS=1 tells which call set them apart"
            )
        if drafted.draft is None:
            return Step(drafted.outcome, None, None, Eviction())
        length = max(lows[2:])
        if length == 0:
            state.abort(drafted.draft)
            return Step("too_large", None, None, Eviction())
        return _settled(state, drafted.draft, length, anew=lows[3] > lows[2])
    except BaseException:
        state.abort(None if drafted is None else drafted.draft)
        raise


def _settled(state: State, draft: Plan, length: int, *, anew: bool) -> Step:
    """Evicts the agreed number of units until every rank has room, then promises."""
    evicted = Eviction()

    def over() -> int:
        nonlocal anew, evicted
        with state.lock:
            index = state.opened()
            settled = index.settle(draft, length, anew)
            dropped = state.contents.settle()
            units = index.count_units(nbytes=settled.nbytes, buffers=settled.buffers)
        anew = False
        if settled.given_up:
            evicted += state.finish(settled.given_up, dropped)
        if not units and (settled.nbytes or settled.buffers):
            raise InternalError(
                f"a store that was planned to fit is short of {settled.nbytes} bytes "
                f"and {settled.buffers} buffers"
            )
        return units

    while units := state.ranks.most(over):
        evicted += state.evict_units(units)
    with state.lock:
        planned = state.opened().promise(draft)
        return Step("ready", planned, _halved(state, planned), evicted)
