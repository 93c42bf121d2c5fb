"""Store: read the caller's cache, plan, make room, copy, commit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from loguru import logger

from kvcache import arrays
from kvcache.errors import AllocationError
from kvcache.eviction import Eviction
from kvcache.layers.base import Refusal
from kvcache.layers.prompt_cache import Prompt
from kvcache.operations.allocate import allocate
from kvcache.operations.compact import compact
from kvcache.operations.copy import cut
from kvcache.operations.evict import Relief, abort, relieve
from kvcache.operations.plan import Reading, plan
from kvcache.ranks.bids import NONE, FitsBid, LayoutBid, ReadingBid
from kvcache.results import Stored
from kvcache.sizes import format_size
from kvcache.storage.segments import image_figures

if TYPE_CHECKING:
    from kvcache._core import Plan, Planned
    from kvcache.layers.base import Image
    from kvcache.layers.layout import Layout
    from kvcache.operations.context import Context
    from kvcache.request import Request
    from kvcache.results import StoreReason
    from kvcache.storage.segments import Copies, Segment

# In this order ranks agree on a refusal: the one furthest down stands for all.
_REASONS: Final[tuple[StoreReason, ...]] = (
    "empty",
    "unknown_length",
    "key_too_short",
    "truncated",
    "offset_mismatch",
    "layout_mismatch",
    "unsupported_layer",
    "batched",
)


class Store:
    """One call of store.

    Args:
        context: The cache's inside.
        request: What to store under, and how.
    """

    def __init__(self, context: Context, request: Request) -> None:
        self._context = context
        self._request = request
        self._donate = request.options.donate
        self._evicted = Eviction()

    def run(self, prompt_cache: Any) -> Stored:
        """Stores ``prompt_cache``, or says why not."""
        try:
            stored = self._store_compactly(self._read(prompt_cache))
        except Refusal as found:
            stored = self._result(cast("StoreReason", found.reason), detail=found.detail)
        with self._context.contents.lock:
            self._context.contents.opened()
            self._context.counters.stored(self._request.namespace, stored)
        if stored.reason not in ("stored", "already"):
            logger.debug("a store kept {} tokens: {} {}", stored.length, stored.reason, stored.detail)
        return stored

    def _read(self, prompt_cache: Any) -> Reading:
        """Reads the caller's cache, as all ranks agree to see theirs.

        Raises:
            Refusal: It cannot be stored, on this rank or on another.
        """
        ranks, request = self._context.ranks, self._request
        # Not the exception itself: its frames hold the caller's layers, and a closure would hold it.
        refusal: tuple[str, str] | None = None
        reading: Reading | None = None

        def read() -> ReadingBid:
            nonlocal refusal, reading
            request.require()
            try:
                reading = self._read_alone(prompt_cache)
            except Refusal as found:
                refusal = found.reason, found.detail
                reason = _REASONS.index(cast("StoreReason", found.reason))
                return ReadingBid(0, reason, 0, 0, 0, 0, NONE)
            counted = reading.prompt.knows_length or request.options.length is not None
            return ReadingBid(
                storable=1,
                refusal=0,
                length=reading.asked,
                known_length=reading.asked if counted else 0,
                checkpointed=reading.checkpointed,
                trimmable=reading.trimmable,
                layout=self._newest(reading).layout if ranks.grouped else NONE,
            )

        lows, highs = ranks.propose(ReadingBid, read) if ranks.grouped else [read()] * 2
        if not lows.storable:
            raise _agreed_refusal(refusal, highs.refusal)
        # Layers that know no length go with those of other ranks that do.
        length = lows.length
        if not highs.known_length:
            raise Refusal(
                "unknown_length",
                "no layer counts its tokens: say length= with the tokens that were run, which the last "
                "sampled one was not",
            )
        if reading is None or length != highs.known_length:
            raise Refusal("offset_mismatch", f"ranks hold from {length} to {highs.known_length} tokens")
        reading.asked, reading.length = length, _outside_media(request.spans, length)
        reading.checkpointed, reading.trimmable = bool(highs.checkpointed), bool(lows.trimmable)
        if reading.checkpointed and reading.length < length:
            detail = f"token {length} is inside a media span, where no checkpoint can be used"
            raise Refusal("truncated", detail)
        if ranks.grouped:
            reading.number = self._number(reading, lows.layout, highs.layout)
        return reading

    def _read_alone(self, prompt_cache: Any) -> Reading:
        prompt, request = Prompt(prompt_cache), self._request
        tokens = prompt.length(len(request.key), request.options.length)
        layout, images = prompt.layout(), prompt.images()
        prompt.require_rebuild()
        if self._context.ranks.grouped:
            self._check_alone(prompt, layout, tokens)
        nbytes, buffers, trimmable = image_figures(images)
        return Reading(prompt, layout, tokens, tokens, not prompt.spans_only, trimmable, nbytes, buffers)

    def _check_alone(self, prompt: Prompt, layout: Layout, length: int) -> None:
        """What may fail on one rank alone, before any of them changes something.

        A single process meets it where it plans and copies. Here a draft that had to be given up on
        the other ranks would leave them another order of eviction; and a caller's lazy layers may
        wait for other ranks, which must not have failed in between.
        """
        arrays.evaluate(prompt.arrays())
        contents = self._context.contents
        with contents.lock:
            contents.opened()
            contents.require_match(self._request.namespace, layout)
        contents.lookup(self._request.head(length), 0)

    def _number(self, reading: Reading, low: int, high: int) -> int:
        """The newest number under which every rank knows its layout, or a new one."""
        while low not in (high, NONE):
            lows, highs = self._context.ranks.propose(LayoutBid, partial(self._newest, reading, low))
            low, high = lows.layout, highs.layout
        if low != NONE:
            return low
        contents = self._context.contents
        with contents.lock:
            contents.opened()
            return contents.layouts.add(reading.layout)

    def _newest(self, reading: Reading, limit: int | None = None) -> LayoutBid:
        contents = self._context.contents
        with contents.lock:
            contents.opened()
            number = contents.layouts.newest(reading.layout, limit)
        return LayoutBid(NONE if number is None else number)

    def _store_compactly(self, reading: Reading) -> Stored:
        segments, grouped = self._context.contents.segments, self._context.ranks.grouped
        joins = segments.joins
        stored = self._store(reading)
        # Ranks decide by what all of them see: their nodes are joined alike, their parts may differ.
        if joins != segments.joins or (segments.crowded and not grouped):
            evicted = compact(self._context, self._request, stored.length)
            stored = replace(stored, evicted=stored.evicted + evicted)
        return stored

    def _store(self, reading: Reading) -> Stored:
        """Plans and copies until a commit finds the tree as the plan saw it."""
        context = self._context
        while True:
            outcome, planned, halved, evicted = plan(context, self._request, reading)
            if evicted.cycles:
                self._evicted += evicted
            if outcome != "ready" or planned is None:
                return self._without_copy(outcome, reading)
            try:
                copies = self._copy(planned, reading, halved)
            except BaseException as error:
                given_up = abort(context, planned.plan)
                if isinstance(error, AllocationError):
                    error.evicted = self._evicted + error.evicted + given_up
                raise
            # A caller's arrays and halves must not be held while the commit drops what they replace.
            halved = None
            number, layout, stamp = reading.planned, reading.layout, self._request.stamp
            if context.contents.commit(cast("Plan", planned.plan), copies, number, layout, stamp):
                break
            if self._donate:
                return self._given_up(reading.length)
        return self._result(
            "stored" if planned.length == reading.asked else "truncated",
            length=planned.length,
            new_tokens=planned.length - planned.matched,
            nbytes=_added_bytes(planned, copies),
        )

    def _without_copy(self, outcome: str, reading: Reading) -> Stored:
        if outcome == "already":
            if self._donate:
                reading.prompt.clear()
            whole = reading.length == reading.asked
            return self._result("already" if whole else "truncated", length=reading.length)
        if outcome == "too_large":
            held = self._held(reading.length)
            detail = "no more of it fits under max_bytes or max_buffers, given what is pinned or in use"
            return self._result("too_large", length=held, detail=detail)
        return self._result("truncated", detail="no token comes before the media span")

    def _given_up(self, length: int) -> Stored:
        """The tree changed while the caller's cache was let go of: there is nothing to plan again with."""
        held = self._held(length)
        detail = "another store changed the tree while this cache was donated"
        return self._result("already" if held == length else "truncated", length=held, detail=detail)

    def _held(self, length: int) -> int:
        """Tokens of the key that are held already."""
        return self._context.contents.lookup(self._request.head(length), length).length

    def _copy(self, planned: Planned, reading: Reading, halved: Segment | None) -> Copies:
        context, prompt = self._context, reading.prompt
        images = prompt.images()
        tokens = planned.length - planned.matched
        nbytes = _allocation(planned, reading, images, halved)
        # A donated layer is let go of once its copy is made: one layer is held twice for a moment.
        need = _allocation(planned, reading, images, halved, donated=True) if self._donate else nbytes
        # What is donated is no growth, and never refused for what one layer takes for a moment.
        growth = _part_bytes(halved) if self._donate else nbytes
        if context.ranks.grouped or context.limits.measured:
            self._require_memory(growth, spare=True)
            self._evicted += relieve(context, Relief(context, need))
            self._require_memory(growth, spare=False)
        copies, evicted = allocate(
            context,
            lambda: cut(planned, prompt, images, halved, self._donate),
            nbytes,
            f"storing {tokens} tokens",
            again=not self._donate,
        )
        if evicted.cycles:
            self._evicted += evicted
        prompt.forget_images()
        return copies

    def _require_memory(self, need: int, *, spare: bool) -> None:
        """Refuses a store that no eviction brings under ``memory_limit``, before anything is evicted for it.

        Args:
            need: Bytes that it adds.
            spare: Count what could be evicted as free.
        """
        context = self._context

        def fits() -> FitsBid:
            over = context.limits.over(need) if need else 0
            if over and spare:
                over -= context.contents.read(lambda index: index.nbytes - index.leased_bytes)
            return FitsBid(over <= 0)

        if not context.ranks.propose(FitsBid, fits).lows.fits:
            raise Refusal("too_large", f"{format_size(need)} more do not fit under memory_limit")

    def _result(
        self, reason: StoreReason, *, length: int = 0, new_tokens: int = 0, nbytes: int = 0, detail: str = ""
    ) -> Stored:
        return Stored(length, new_tokens, nbytes, reason, self._evicted, detail)


def _allocation(
    planned: Planned, reading: Reading, images: list[Image], halved: Segment | None, *, donated: bool = False
) -> int:
    """Bytes that the copy adds to what is held, at its peak: new tokens, halves of a split, images."""
    tokens = planned.length - planned.matched
    layers = [tokens * leaf.token_bytes for leaf in reading.layout.spans]
    layers += [arrays.nbytes(image.arrays) * (2 if image.computed else 1) for image in images]
    return _part_bytes(halved) + (max(layers, default=0) if donated else sum(layers))


def _added_bytes(planned: Planned, copies: Copies) -> int:
    new = [array for made in planned.segments for array in copies.segments[made.segment]]
    images = 0 if copies.checkpoint is None else image_figures(copies.checkpoint[1])[0]
    return arrays.nbytes(new) + images


def _part_bytes(segment: Segment | None) -> int:
    return sum(arrays.nbytes(part) for part in segment or ())


def _outside_media(spans: list[tuple[int, int, bytes]], length: int) -> int:
    """The last position up to ``length`` that is not inside a span."""
    for start, span, _ in spans:
        if start < length < start + span:
            return start
    return length


def _agreed_refusal(mine: tuple[str, str] | None, reason: int) -> Refusal:
    """The refusal that all ranks return: this one's own, or the word of another."""
    if mine is not None and mine[0] == _REASONS[reason]:
        return Refusal(*mine)
    return Refusal(_REASONS[reason], "another rank of the group refuses this store")
