"""Store: read the caller's cache, plan, make room, copy, commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kvcache import arrays
from kvcache.copying import Copies, cut
from kvcache.errors import AllocationError
from kvcache.layers.base import Refusal
from kvcache.layers.prompt import Prompt, segment_buffers, token_bytes
from kvcache.results import Eviction, Stored
from kvcache.segments import image_figures

if TYPE_CHECKING:
    from kvcache._core import Planned, Tokens
    from kvcache.arrays import Array
    from kvcache.layers.layout import Layout
    from kvcache.results import StoreReason
    from kvcache.segments import Segment
    from kvcache.state import State


class Store:
    """One call of store.

    Args:
        state: The cache's inside.
        key: The tokens.
        namespace: What must never mix with others.
        spans: Media, in order.
        label: Counted by label.
        donate: The caller's layers are let go of one by one.
    """

    def __init__(
        self,
        state: State,
        key: Tokens,
        namespace: str,
        spans: list[tuple[int, int, bytes]],
        label: str,
        donate: bool,
    ) -> None:
        self._state = state
        self._key = key
        self._namespace = namespace
        self._spans = spans
        self._label = label
        self._donate = donate
        self._evicted = Eviction()

    def run(self, prompt_cache: Any, length: int | None) -> Stored:
        """Stores ``prompt_cache``, or says why not."""
        try:
            prompt = Prompt(prompt_cache)
            asked = prompt.length(len(self._key), length)
            layout = prompt.layout()
            stored = self._store(prompt, layout, asked)
        except Refusal as refusal:
            stored = self._result(cast("StoreReason", refusal.reason), detail=refusal.detail)
        with self._state.guard():
            self._state.counters.stored(self._namespace, stored)
        return stored

    def _store(self, prompt: Prompt, layout: Layout, asked: int) -> Stored:
        """Plans and copies until a commit finds the tree as the plan saw it."""
        length = self._outside_media(asked)
        if length < asked and not prompt.spans_only:
            raise Refusal(
                "truncated", f"token {asked} is inside a media span, where no checkpoint can be used"
            )
        while True:
            planned, halved, dropped = self._plan(prompt, layout, length)
            try:
                if planned.evicted:
                    self._evicted += self._state.finish(planned.evicted, dropped)
                if planned.outcome != "ready":
                    return self._without_copy(planned.outcome, prompt, length)
                copies = self._copy(planned, prompt, layout, halved)
            except BaseException as error:
                self._abort(planned)
                if isinstance(error, AllocationError):
                    error.evicted = self._evicted + error.evicted
                raise
            halved = None
            if self._commit(planned, copies):
                break
            if self._donate:
                return self._given_up(length)
        added = arrays.nbytes(
            array for number, _, _ in planned.segments for array in copies.segments[number]
        ) + (0 if copies.checkpoint is None else image_figures(copies.checkpoint[1])[0])
        return self._result(
            "stored" if planned.length == asked else "truncated",
            length=planned.length,
            new_tokens=planned.length - planned.matched,
            nbytes=added,
        )

    def _outside_media(self, length: int) -> int:
        for start, span, _ in self._spans:
            if start < length < start + span:
                return start
        return length

    def _media(self, length: int) -> list[tuple[int, int, bytes]]:
        """The spans of the first ``length`` tokens."""
        return [span for span in self._spans if span[0] + span[1] <= length]

    def _plan(
        self, prompt: Prompt, layout: Layout, length: int
    ) -> tuple[Planned, Segment | None, list[Array]]:
        """The plan, the segment that it splits, and the arrays of what was evicted for it."""
        state, stamp = self._state, self._state.stamp()
        nbytes, buffers, trimmable = image_figures(prompt.images())
        with state.guard() as index:
            why = state.mismatch(self._namespace, layout)
            if why:
                raise Refusal("layout_mismatch", f"this cache is of another model: {why}")
            number = state.layout_id(layout)
            if layout.checkpointed:
                state.checkpoint_bytes[number] = nbytes
            planned = index.plan(
                self._key,
                length,
                namespace=self._namespace,
                media=self._media(length),
                layout=number,
                bytes_per_token=token_bytes(layout),
                segment_buffers=segment_buffers(layout),
                checkpoint=(nbytes, buffers, trimmable) if layout.checkpointed else None,
                label=state.label_id(self._label),
                stamp=stamp,
            )
            halved = None if planned.split is None else list(state.segments.segment(planned.split[0]))
            dropped = state.segments.remove(planned.evicted)
        return planned, halved, dropped

    def _without_copy(self, outcome: str, prompt: Prompt, length: int) -> Stored:
        if outcome == "already":
            if self._donate:
                prompt.clear()
            return self._result("already", length=length)
        if outcome == "too_large":
            held = self._held(length)
            return self._result("too_large", length=held, detail="it does not fit beside what is protected")
        return self._result("truncated", detail="no token stands before the media span")

    def _given_up(self, length: int) -> Stored:
        """The tree changed while the caller's cache was let go of: there is nothing to plan again with."""
        held = self._held(length)
        detail = "another store changed the tree while this cache was donated"
        return self._result("already" if held == length else "truncated", length=held, detail=detail)

    def _held(self, length: int) -> int:
        """Tokens of the key that are held already."""
        media = self._media(length)
        with self._state.guard() as index:
            return index.lookup(self._key.head(length), self._namespace, media, length).length

    def _copy(self, planned: Planned, prompt: Prompt, layout: Layout, halved: Segment | None) -> Copies:
        state = self._state
        images = prompt.images()
        tokens = planned.length - planned.matched
        nbytes = tokens * token_bytes(layout) + image_figures(images)[0]
        self._evicted += state.relieve(0 if self._donate else nbytes)
        copies, evicted = state.allocating(
            lambda: cut(planned, prompt, images, halved, self._donate),
            nbytes,
            f"storing {tokens} tokens",
            again=not self._donate,
        )
        self._evicted += evicted
        return copies

    def _abort(self, planned: Planned) -> None:
        state = self._state
        with state.lock:
            if not state.closed and planned.plan is not None:
                state.segments.remove(state.index.abort(planned.plan))

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
