"""Store: read the caller's prompt cache, plan, make room, copy, commit."""

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
from kvcache.operations.copy import cut, cut_bytes, segment_bytes
from kvcache.operations.evict import Relief, abort, relieve
from kvcache.operations.plan import Reading, plan
from kvcache.ranks.bids import NONE, FitsBid, LayoutBid, ReadingBid
from kvcache.results import Stored
from kvcache.sizes import format_size
from kvcache.storage.segments import image_figures

if TYPE_CHECKING:
    from kvcache._core import Plan, Planned
    from kvcache.layers.layout import Layout
    from kvcache.operations.context import Context
    from kvcache.request import Request
    from kvcache.results import StoreReason
    from kvcache.storage.segments import Copies, Segment

# If ranks refuse for different reasons, all of them return the last one in this order.
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
        context: The cache's internals.
        request: The key to store under, and the options.
    """

    def __init__(self, context: Context, request: Request) -> None:
        self._context = context
        self._request = request
        self._donate = request.options.donate
        self._evicted = Eviction()

    def run(self, prompt_cache: Any) -> Stored:
        """Stores ``prompt_cache``, or returns the reason why not."""
        try:
            stored = self._store_and_compact(self._read(prompt_cache))
        except Refusal as refusal:
            stored = self._result(cast("StoreReason", refusal.reason), detail=refusal.detail)
        with self._context.contents.lock:
            self._context.contents.opened()
            self._context.counters.stored(self._request.namespace, stored)
        if stored.reason not in ("stored", "already"):
            logger.debug("store kept {} tokens ({}): {}", stored.length, stored.reason, stored.detail)
        return stored

    def _read(self, prompt_cache: Any) -> Reading:
        """Reads the caller's prompt cache, and agrees with all ranks on what to store.

        Raises:
            Refusal: It cannot be stored, on this rank or on another.
        """
        ranks, request = self._context.ranks, self._request
        # Not the exception: its frames reference the caller's layers, and the closure would keep it.
        refusal: tuple[str, str] | None = None
        reading: Reading | None = None

        def read() -> ReadingBid:
            nonlocal refusal, reading
            request.require()
            try:
                reading = self._read_alone(prompt_cache)
            except Refusal as error:
                refusal = error.reason, error.detail
                reason = _REASONS.index(cast("StoreReason", error.reason))
                return ReadingBid(0, reason, 0, 0, 0, 0, NONE)
            counted = reading.prompt.knows_length or request.options.length is not None
            return ReadingBid(
                storable=1,
                refusal=0,
                length=reading.requested,
                known_length=reading.requested if counted else 0,
                checkpointed=reading.checkpointed,
                trimmable=reading.trimmable,
                layout=self._newest(reading).layout if ranks.grouped else NONE,
            )

        lows, highs = ranks.propose(ReadingBid, read) if ranks.grouped else [read()] * 2
        if not lows.storable:
            raise _agreed_refusal(refusal, highs.refusal)
        # A rank whose layers do not count tokens takes the length from one whose layers do.
        length = lows.length
        if not highs.known_length:
            raise Refusal(
                "unknown_length",
                "no layer counts its tokens; pass length= with the number of tokens run (the last sampled "
                "token has not been run)",
            )
        if reading is None or length != highs.known_length:
            raise Refusal(
                "offset_mismatch",
                f"the ranks hold different numbers of tokens, from {length} to {highs.known_length}; "
                "store after the same step on all of them",
            )
        reading.requested, reading.length = length, request.before_media(length)
        reading.checkpointed, reading.trimmable = bool(highs.checkpointed), bool(lows.trimmable)
        if reading.checkpointed and reading.length < length:
            detail = f"no checkpoint can be used at token {length}, inside a media span; store up to its end"
            raise Refusal("truncated", detail)
        if ranks.grouped:
            reading.agreed_number = self._agree_on_number(reading, lows.layout, highs.layout)
        return reading

    def _read_alone(self, prompt_cache: Any) -> Reading:
        prompt, request = Prompt(prompt_cache), self._request
        tokens = prompt.length(len(request.key), request.options.length)
        layout, images = prompt.layout(), prompt.images()
        prompt.require_rebuild()
        if self._context.ranks.grouped:
            self._fail_early(prompt, layout, tokens)
        nbytes, buffers, trimmable = image_figures(images)
        return Reading(prompt, layout, tokens, tokens, not prompt.spans_only, trimmable, nbytes, buffers)

    def _fail_early(self, prompt: Prompt, layout: Layout, length: int) -> None:
        """Triggers everything that may fail on one rank only, before any rank changes its index.

        A single process can fail later, when it plans and copies. In a group, cancelling a draft would
        leave the other ranks with a different eviction order. The caller's lazy layers may also wait for
        other ranks, none of which may have failed in between.
        """
        arrays.evaluate(prompt.arrays())
        contents = self._context.contents
        with contents.lock:
            contents.opened()
            contents.require_match(self._request.namespace, layout)
        contents.lookup(self._request.head(length), 0)

    def _agree_on_number(self, reading: Reading, low: int, high: int) -> int:
        """The newest number that every rank has bound to its layout, or a new number."""
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

    def _store_and_compact(self, reading: Reading) -> Stored:
        segments, grouped = self._context.contents.segments, self._context.ranks.grouped
        joins = segments.joins
        stored = self._store(reading)
        # Ranks join the same nodes but may hold different parts, so only joins may decide in a group.
        if joins != segments.joins or (segments.fragmented and not grouped):
            evicted = compact(self._context, self._request, stored.length)
            stored = replace(stored, evicted=stored.evicted + evicted)
        return stored

    def _store(self, reading: Reading) -> Stored:
        """Plans and copies until a commit finds the tree unchanged since its plan."""
        context = self._context
        while True:
            outcome, planned, split_parts, evicted = plan(context, self._request, reading)
            if evicted.cycles:
                self._evicted += evicted
            if outcome != "ready" or planned is None:
                return self._without_copy(outcome, reading)
            try:
                copies = self._copy(planned, reading, split_parts)
            except BaseException as error:
                dropped = abort(context, planned.plan)
                if isinstance(error, AllocationError):
                    error.evicted = self._evicted + error.evicted + dropped
                raise
            # The old parts must not be referenced here while the commit drops them.
            split_parts = None
            number, layout, stamp = reading.number, reading.layout, self._request.stamp
            if context.contents.commit(cast("Plan", planned.plan), copies, number, layout, stamp):
                break
            if self._donate:
                return self._lost_race(reading.length)
        return self._result(
            "stored" if planned.length == reading.requested else "truncated",
            length=planned.length,
            new_tokens=planned.length - planned.matched,
            nbytes=copies.added_bytes(new.segment for new in planned.segments),
        )

    def _without_copy(self, outcome: str, reading: Reading) -> Stored:
        if outcome == "already":
            if self._donate:
                reading.prompt.clear()
            whole = reading.length == reading.requested
            return self._result("already" if whole else "truncated", length=reading.length)
        if outcome == "too_large":
            held = self._held(reading.length)
            detail = (
                "the rest does not fit under max_bytes or max_buffers next to pinned and leased entries; "
                "raise the limit or release pins"
            )
            return self._result("too_large", length=held, detail=detail)
        return self._result(
            "truncated", detail="the store ends inside a media span that starts at token 0; store after it"
        )

    def _lost_race(self, length: int) -> Stored:
        """The tree changed after the caller's layers were released, so there is nothing left to store."""
        held = self._held(length)
        detail = "another store changed the tree while this prompt cache was being donated"
        return self._result("already" if held == length else "truncated", length=held, detail=detail)

    def _held(self, length: int) -> int:
        """Tokens of the key that the cache holds already."""
        return self._context.contents.lookup(self._request.head(length), length).length

    def _copy(self, planned: Planned, reading: Reading, split_parts: Segment | None) -> Copies:
        context, prompt = self._context, reading.prompt
        images = prompt.images()
        tokens = planned.length - planned.matched
        peak = cut_bytes(tokens, reading.layout, images, split_parts, donate=self._donate)
        # A donated store does not grow memory in the end: it is not refused for one layer's brief copy.
        growth = segment_bytes(split_parts) if self._donate else peak
        if context.ranks.grouped or context.limits.measured:
            self._require_memory(growth, spare=True)
            self._evicted += relieve(context, Relief(context, peak))
            self._require_memory(growth, spare=False)
        copies, evicted = allocate(
            context,
            lambda: cut(planned, prompt, images, split_parts, self._donate),
            cut_bytes(tokens, reading.layout, images, split_parts, donate=False),
            f"storing {tokens} tokens",
            repeatable=not self._donate,
        )
        if evicted.cycles:
            self._evicted += evicted
        prompt.forget_images()
        return copies

    def _require_memory(self, need: int, *, spare: bool) -> None:
        """Refuses a store that exceeds ``memory_limit``.

        Args:
            need: Bytes that it adds.
            spare: Count evictable bytes as free: refuses before anything is evicted in vain.
        """
        context = self._context

        def fits() -> FitsBid:
            over = context.limits.over(need) if need else 0
            if over and spare:
                over -= context.contents.read(lambda index: index.nbytes - index.leased_bytes)
            return FitsBid(over <= 0)

        if not context.ranks.propose(FitsBid, fits).lows.fits:
            raise Refusal(
                "too_large",
                f"{format_size(need)} more do not fit under memory_limit; raise it, or free other memory",
            )

    def _result(
        self, reason: StoreReason, *, length: int = 0, new_tokens: int = 0, nbytes: int = 0, detail: str = ""
    ) -> Stored:
        return Stored(length, new_tokens, nbytes, reason, self._evicted, detail)


def _agreed_refusal(mine: tuple[str, str] | None, reason: int) -> Refusal:
    """The refusal that all ranks return; with this rank's own detail if it has the same reason."""
    if mine is not None and mine[0] == _REASONS[reason]:
        return Refusal(*mine)
    return Refusal(
        _REASONS[reason], "another rank of the group refuses this store; see that rank's Stored.detail"
    )
