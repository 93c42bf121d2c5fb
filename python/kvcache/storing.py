"""Store: read the caller's cache, plan, make room, copy, commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from kvcache import arrays
from kvcache.copying import Copies, cut
from kvcache.errors import AllocationError, InternalError
from kvcache.layers.base import Refusal
from kvcache.layers.prompt import Prompt, token_bytes
from kvcache.planning import Reading, abort, plan
from kvcache.results import Eviction, Stored
from kvcache.segments import image_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache._core import Planned
    from kvcache.fetching import Question
    from kvcache.results import StoreReason
    from kvcache.segments import Segment
    from kvcache.state import State


# In this order ranks agree on a refusal: the one furthest down stands for all.
_REASONS: Final[tuple[StoreReason, ...]] = (
    "empty",
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
        state: The cache's inside.
        ask: Reads and checks the key and what goes with it.
        label: Counted by label.
        donate: The caller's layers are let go of one by one.
    """

    def __init__(self, state: State, ask: Callable[[], Question], label: str, donate: bool) -> None:
        self._state = state
        self._ask = ask
        self._label = label
        self._donate = donate
        self._evicted = Eviction()

    def run(self, prompt_cache: Any, length: int | None) -> Stored:
        """Stores ``prompt_cache``, or says why not."""
        asked: Question | None = None
        # Not the exception itself: its frames hold the caller's layers, and a closure would hold it.
        refusal: tuple[str, str] | None = None
        reading: Reading | None = None

        def read() -> tuple[int, int, int, int, int]:
            nonlocal asked, refusal, reading
            asked = self._ask()
            try:
                reading = self._read(asked, prompt_cache, length)
            except Refusal as found:
                refusal = found.reason, found.detail
                return 0, _REASONS.index(cast("StoreReason", found.reason)), 0, 0, 0
            return 1, 0, reading.length, reading.checkpointed, reading.trimmable

        lows, highs = self._state.ranks.propose(read, 5)
        if asked is None:
            raise InternalError("a store was read without its key")
        self._asked = asked
        try:
            if not lows[0]:
                raise _agreed_refusal(refusal, highs[1])
            if reading is None or lows[2] != highs[2]:
                raise Refusal("offset_mismatch", f"ranks hold from {lows[2]} to {highs[2]} tokens")
            reading.checkpointed, reading.trimmable = bool(highs[3]), bool(lows[4])
            stored = self._store(reading)
        except Refusal as found:
            stored = self._result(cast("StoreReason", found.reason), detail=found.detail)
        with self._state.guard() as index:
            self._state.counters.stored(asked.namespace, stored)
        self._state.ranks.check(index)
        return stored

    def _read(self, asked: Question, prompt_cache: Any, length: int | None) -> Reading:
        prompt = Prompt(prompt_cache)
        tokens = prompt.length(len(asked.key), length)
        layout = prompt.layout()
        cut = _outside_media(asked.spans, tokens)
        if cut < tokens and not prompt.spans_only:
            raise Refusal(
                "truncated", f"token {tokens} is inside a media span, where no checkpoint can be used"
            )
        trimmable = image_figures(prompt.images())[2]
        if self._state.ranks.grouped:
            # By itself a rank checks this where it plans, in one step with the plan.
            with self._state.guard():
                self._state.require_match(asked.namespace, layout)
        return Reading(prompt, layout, tokens, cut, layout.checkpointed, trimmable)

    def _store(self, reading: Reading) -> Stored:
        """Plans and copies until a commit finds the tree as the plan saw it."""
        while True:
            step = plan(self._state, self._asked, reading, self._label)
            self._evicted += step.evicted
            if step.outcome != "ready" or step.planned is None:
                return self._without_copy(step.outcome, reading)
            planned = step.planned
            try:
                copies = self._copy(planned, reading, step.halved)
            except BaseException as error:
                abort(self._state, planned.plan)
                if isinstance(error, AllocationError):
                    error.evicted = self._evicted + error.evicted
                raise
            step.halved = None
            if self._commit(planned, copies):
                break
            if self._donate:
                return self._given_up(reading.length)
        added = arrays.nbytes(
            array for number, _, _ in planned.segments for array in copies.segments[number]
        ) + (0 if copies.checkpoint is None else image_figures(copies.checkpoint[1])[0])
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
            return self._result("already", length=reading.length)
        if outcome == "too_large":
            held = self._held(reading.length)
            return self._result("too_large", length=held, detail="it does not fit beside what is protected")
        return self._result("truncated", detail="no token stands before the media span")

    def _given_up(self, length: int) -> Stored:
        """The tree changed while the caller's cache was let go of: there is nothing to plan again with."""
        held = self._held(length)
        detail = "another store changed the tree while this cache was donated"
        return self._result("already" if held == length else "truncated", length=held, detail=detail)

    def _held(self, length: int) -> int:
        """Tokens of the key that are held already."""
        asked = self._asked
        with self._state.guard() as index:
            found = index.lookup(asked.key.head(length), asked.namespace, asked.within(length), length)
        return found.length

    def _copy(self, planned: Planned, reading: Reading, halved: Segment | None) -> Copies:
        state, prompt = self._state, reading.prompt
        images = prompt.images()
        tokens = planned.length - planned.matched
        nbytes = tokens * token_bytes(reading.layout) + image_figures(images)[0]
        self._evicted += state.relieve(0 if self._donate else nbytes)
        copies, evicted = state.allocating(
            lambda: cut(planned, prompt, images, halved, self._donate),
            nbytes,
            f"storing {tokens} tokens",
            again=not self._donate,
        )
        self._evicted += evicted
        return copies

    def _commit(self, planned: Planned, copies: Copies) -> bool:
        state, stamp = self._state, self._state.stamp()
        with state.guard() as index:
            committed = index.commit(cast("int", planned.plan), stamp)
            if not committed.stale:
                state.segments.put(copies.segments, copies.checkpoint)
            state.segments.remove(committed.dropped)
        return not committed.stale

    def _result(
        self, reason: StoreReason, *, length: int = 0, new_tokens: int = 0, nbytes: int = 0, detail: str = ""
    ) -> Stored:
        return Stored(length, new_tokens, nbytes, reason, self._evicted, detail)


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
