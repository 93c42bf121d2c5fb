"""Store: read the caller's cache, plan, make room, copy, commit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from kvcache import arrays
from kvcache.compacting import compact
from kvcache.copying import Copies, cut
from kvcache.errors import AllocationError, InternalError
from kvcache.layers.base import Refusal
from kvcache.layers.prompt import Prompt, leaf_bytes
from kvcache.planning import Reading, plan
from kvcache.pressing import Relief
from kvcache.results import Eviction, Stored
from kvcache.segments import image_figures
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache._core import Plan, Planned
    from kvcache.fetching import Question
    from kvcache.layers.base import Image
    from kvcache.layers.layout import Layout
    from kvcache.results import StoreReason
    from kvcache.segments import Segment
    from kvcache.state import State


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
# No number: not every rank has seen its layout in this combination.
_NEW: Final = -1


class Store:
    """One call of store.

    Args:
        state: The cache's inside.
        ask: Reads and checks the key and what goes with it.
        label: Counted by label.
        donate: The caller's layers are let go of one by one.
        prompt_length: Where the prompt ends in the key, if the caller says so.
    """

    def __init__(
        self,
        state: State,
        ask: Callable[[], Question],
        label: str,
        donate: bool,
        prompt_length: int | None,
    ) -> None:
        self._state = state
        self._ask = ask
        self._label = label
        self._donate = donate
        self._prompt_length = prompt_length
        self._evicted = Eviction()

    def run(self, prompt_cache: Any, length: int | None) -> Stored:
        """Stores ``prompt_cache``, or says why not."""
        ranks = self._state.ranks
        asked: Question | None = None
        # Not the exception itself: its frames hold the caller's layers, and a closure would hold it.
        refusal: tuple[str, str] | None = None
        reading: Reading | None = None

        def read() -> tuple[int, ...]:
            nonlocal asked, refusal, reading
            asked = self._ask()
            try:
                reading = self._read(asked, prompt_cache, length)
            except Refusal as found:
                refusal = found.reason, found.detail
                return 0, _REASONS.index(cast("StoreReason", found.reason)), 0, 0, 0, 0, _NEW
            number = self._newest(reading) if ranks.grouped else _NEW
            known = reading.asked if reading.prompt.knows_length or length is not None else 0
            return 1, 0, reading.asked, known, reading.checkpointed, reading.trimmable, number

        lows, highs = ranks.propose(read, 7)
        if asked is None:
            raise InternalError("a store was read without its key")
        self._asked = asked
        try:
            if not lows[0]:
                raise _agreed_refusal(refusal, highs[1])
            # Layers that know no length go with those of other ranks that do.
            low, high = lows[2], highs[3]
            if not high:
                raise Refusal(
                    "unknown_length",
                    "no layer counts its tokens: say length= with the tokens that were run, which the last "
                    "sampled one was not",
                )
            if reading is None or low != high:
                raise Refusal("offset_mismatch", f"ranks hold from {low} to {high} tokens")
            reading.asked, reading.length = low, _outside_media(asked.spans, low)
            reading.checkpointed, reading.trimmable = bool(highs[4]), bool(lows[5])
            if reading.checkpointed and reading.length < low:
                detail = f"token {low} is inside a media span, where no checkpoint can be used"
                raise Refusal("truncated", detail)
            if ranks.grouped:
                reading.number = self._number(reading, lows[6], highs[6])
            stored = self._store_compactly(reading)
        except Refusal as found:
            stored = self._result(cast("StoreReason", found.reason), detail=found.detail)
        with self._state.lock:
            self._state.opened()
            self._state.counters.stored(asked.namespace, stored)
        return stored

    def _read(self, asked: Question, prompt_cache: Any, length: int | None) -> Reading:
        prompt = Prompt(prompt_cache)
        tokens = prompt.length(len(asked.key), length)
        layout, images = prompt.layout(), prompt.images()
        prompt.require_rebuild()
        if self._state.ranks.grouped:
            self._check_alone(asked, prompt, layout, tokens)
        return Reading(prompt, layout, tokens, tokens, layout.checkpointed, image_figures(images)[2])

    def _check_alone(self, asked: Question, prompt: Prompt, layout: Layout, length: int) -> None:
        """What may fail on one rank alone, before any of them changes something.

        A single process meets it where it plans and copies. Here a draft that had to be given up on
        the other ranks would leave them another order of eviction; and a caller's lazy layers may
        wait for other ranks, which must not have failed in between.
        """
        arrays.evaluate(prompt.arrays())
        with self._state.lock:
            index = self._state.opened()
            self._state.require_match(asked.namespace, layout)
            index.lookup(asked.key.head(length), asked.namespace, asked.within(length), 0)

    def _number(self, reading: Reading, low: int, high: int) -> int:
        """The newest number under which every rank knows its layout, or a new one."""

        def propose() -> list[int]:
            return [self._newest(reading, low)]

        while low not in (high, _NEW):
            lows, highs = self._state.ranks.propose(propose, 1)
            low, high = lows[0], highs[0]
        if low != _NEW:
            return low
        with self._state.lock:
            self._state.opened()
            return self._state.add_layout(reading.layout)

    def _newest(self, reading: Reading, limit: int | None = None) -> int:
        with self._state.lock:
            self._state.opened()
            number = self._state.newest_layout(reading.layout, limit)
        return _NEW if number is None else number

    def _store_compactly(self, reading: Reading) -> Stored:
        segments, grouped = self._state.segments, self._state.ranks.grouped
        joins = segments.joins
        stored = self._store(reading)
        # Ranks decide by what all of them see: their nodes are joined alike, their parts may differ.
        if joins != segments.joins or (segments.crowded and not grouped):
            evicted = compact(self._state, self._asked, stored.length)
            stored = replace(stored, evicted=stored.evicted + evicted)
        return stored

    def _store(self, reading: Reading) -> Stored:
        """Plans and copies until a commit finds the tree as the plan saw it."""
        while True:
            step = plan(self._state, self._asked, reading, self._label, self._prompt_length)
            self._evicted += step.evicted
            if step.outcome != "ready" or step.planned is None:
                return self._without_copy(step.outcome, reading)
            planned = step.planned
            try:
                copies = self._copy(planned, reading, step.halved)
            except BaseException as error:
                given_up = self._state.abort(planned.plan)
                if isinstance(error, AllocationError):
                    error.evicted = self._evicted + error.evicted + given_up
                raise
            step.halved = None
            if self._commit(planned, copies, reading):
                break
            if self._donate:
                return self._given_up(reading.length)
        added = arrays.nbytes(array for new in planned.segments for array in copies.segments[new.segment]) + (
            0 if copies.checkpoint is None else image_figures(copies.checkpoint[1])[0]
        )
        return self._result(
            "stored" if planned.length == reading.asked else "truncated",
            length=planned.length,
            new_tokens=planned.length - planned.matched,
            nbytes=added,
        )

    def _without_copy(self, outcome: str, reading: Reading) -> Stored:
        if outcome == "already":
            if self._donate:
                reading.prompt.clear()
            whole = reading.length == reading.asked
            return self._result("already" if whole else "truncated", length=reading.length)
        if outcome == "too_large":
            held = self._held(reading.length)
            return self._result(
                "too_large", length=held, detail="it does not fit the limits beside what is pinned or in use"
            )
        return self._result("truncated", detail="no token stands before the media span")

    def _given_up(self, length: int) -> Stored:
        """The tree changed while the caller's cache was let go of: there is nothing to plan again with."""
        held = self._held(length)
        detail = "another store changed the tree while this cache was donated"
        return self._result("already" if held == length else "truncated", length=held, detail=detail)

    def _held(self, length: int) -> int:
        """Tokens of the key that are held already."""
        asked = self._asked
        key, spans = asked.key.head(length), asked.within(length)
        return self._state.contents.read(
            lambda index: index.lookup(key, asked.namespace, spans, length).length
        )

    def _copy(self, planned: Planned, reading: Reading, halved: Segment | None) -> Copies:
        state, prompt = self._state, reading.prompt
        images = prompt.images()
        tokens = planned.length - planned.matched
        nbytes = self._allocation(planned, reading, images, halved)
        # A donated layer is let go of once its copy is made: one layer is held twice for a moment.
        need = self._allocation(planned, reading, images, halved, donated=True) if self._donate else nbytes
        # What is donated is no growth, and never refused for what one layer takes for a moment.
        growth = _part_bytes(halved) if self._donate else nbytes
        self._require_memory(growth, spare=True)
        self._evicted += state.relieve(Relief(state, need))
        self._require_memory(growth, spare=False)
        copies, evicted = state.allocating(
            lambda: cut(planned, prompt, images, halved, self._donate),
            nbytes,
            f"storing {tokens} tokens",
            again=not self._donate,
        )
        self._evicted += evicted
        return copies

    @staticmethod
    def _allocation(
        planned: Planned,
        reading: Reading,
        images: list[Image],
        halved: Segment | None,
        *,
        donated: bool = False,
    ) -> int:
        """Bytes that the copy adds to what is held, at its peak: new tokens, halves of a split, images."""
        tokens = planned.length - planned.matched
        layers = [tokens * leaf_bytes(leaf) for leaf in reading.layout.spans]
        layers += [arrays.nbytes(image.arrays) * (2 if image.computed else 1) for image in images]
        return _part_bytes(halved) + (max(layers, default=0) if donated else sum(layers))

    def _require_memory(self, need: int, *, spare: bool) -> None:
        """Refuses a store that no eviction brings under ``memory_limit``, before anything goes for it.

        Args:
            need: Bytes that it adds.
            spare: Count what could be evicted as free.
        """

        def fits() -> tuple[bool]:
            over = self._state.limits.over(need) if need else 0
            if over and spare:
                over -= self._state.contents.read(lambda index: index.nbytes - index.leased_bytes)
            return (over <= 0,)

        if not self._state.ranks.propose(fits, 1)[0][0]:
            raise Refusal("too_large", f"{format_size(need)} more do not fit under memory_limit")

    def _commit(self, planned: Planned, copies: Copies, reading: Reading) -> bool:
        state, plan = self._state, cast("Plan", planned.plan)
        with state.lock:
            state.opened()
            state.keep_layout(reading.planned, reading.layout)
            return state.contents.commit(plan, copies, self._asked.stamp)

    def _result(
        self, reason: StoreReason, *, length: int = 0, new_tokens: int = 0, nbytes: int = 0, detail: str = ""
    ) -> Stored:
        return Stored(length, new_tokens, nbytes, reason, self._evicted, detail)


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
