"""How far a prompt cache has come: tokens that all of its layers are known to have run.

A forward pass can be interrupted anywhere. Full-attention (span) layers count their tokens, so those of an
interrupted pass are at different offsets, and all of them have run the smallest. Sliding windows (window
layers) and recurrent states (state layers) do not show where they are. They count only where the caller
reported progress, and only if no update has begun since.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from kvcache.layers.base import Refusal, SpanAdapter
from kvcache.layers.marks import Marks, unmark
from kvcache.layers.prompt_cache import Prompt


class Progress:
    """Tracks one prompt cache.

    Attributes:
        local_spans_only: Whether every layer of this rank can be cut at any token.
        spans_only: Whether that is so on every rank; set once the ranks have agreed.
    """

    def __init__(self) -> None:
        self.local_spans_only = self.spans_only = True
        self._reported = 0
        self._marks: Marks | None = None

    def start(self, prompt_cache: list[Any]) -> None:
        """Looks at the layer caches of a request that begins."""
        self.local_spans_only = self.spans_only = _spans_only(prompt_cache)

    def report(self, tokens: int, prompt_cache: list[Any]) -> None:
        """Records the caller's statement that all layers have run ``tokens``."""
        marks = None
        if not self.spans_only:
            try:
                marks = Marks(Prompt(prompt_cache))
            except Refusal:
                # It cannot be stored, so there is nothing to watch.
                marks = None
        self._reported, self._marks = tokens, marks

    def storable(self, limit: int, prompt_cache: list[Any], *, interrupted: bool) -> int:
        """Tokens that all layers are known to have run, at most ``limit``; 0 if that is unknown.

        Args:
            limit: Tokens of the key.
            prompt_cache: The layer caches now.
            interrupted: Whether an exception ended the request.
        """
        try:
            prompt = Prompt(prompt_cache)
        except Refusal:
            return 0
        offsets = {offset for offset in prompt.offsets if offset is not None}
        if self.spans_only:
            length = min(limit, *offsets) if offsets else 0
            # The last layer counts rows before it writes them. The caller may have caught an exception in
            # between, so this is checked even if none ended the request.
            if length > self._reported and (interrupted or not _is_written(prompt, length)):
                return self._reported
            return length
        try:
            unchanged = self._marks is not None and self._marks.hold(prompt)
        except Refusal:
            unchanged = False
        finally:
            unmark(prompt)
        return self._reported if unchanged and offsets <= {self._reported} and self._reported <= limit else 0


def _is_written(prompt: Prompt, length: int) -> bool:
    """Whether every layer's last row holds something; rows not yet written are zero."""
    rows = [
        array[..., length - 1 : length, :]
        for adapter, cache in zip(prompt.adapters, prompt.caches, strict=True)
        if isinstance(adapter, SpanAdapter)
        for array in adapter.arrays(cache)
    ]
    # An array of width zero never holds anything.
    nonzero = [mx.any(row != 0) for row in rows if row.size]
    mx.eval(nonzero)
    return all(each.item() for each in nonzero)


def _spans_only(prompt_cache: list[Any]) -> bool:
    """Whether the layers can be cut at any token; layers that cannot be stored need no checkpoints either."""
    try:
        return Prompt(prompt_cache).spans_only
    except Refusal:
        return True
