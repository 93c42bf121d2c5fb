"""Logits processors that see the whole context, the part that was not run included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable

    Processor = Callable[[Any, mx.array], mx.array]


class WholeContext:
    """One processor, given the tokens before those that its engine knows.

    mlx-lm hands its processors the tokens that were run in this call: what a cache has spared is
    missing, with a draft model all of the prompt but its last token is. At the first call the tokens
    end where the context ends, so what is missing is all that comes before them.

    Args:
        processor: Takes tokens and logits, gives logits.
        context: The tokens so far; asked once, at the first call.
    """

    def __init__(self, processor: Processor, context: Callable[[], list[int]]) -> None:
        self._processor = processor
        self._context = context
        self._missing: list[int] | None = None
        self._before: mx.array | None = None

    def __call__(self, tokens: Any, logits: mx.array) -> mx.array:
        if self._missing is None:
            context = self._context()
            count = 0 if tokens is None else tokens.size if isinstance(tokens, mx.array) else len(tokens)
            self._missing = context[: max(0, len(context) - count)]
        return self._processor(self._joined(tokens), logits)

    def _joined(self, tokens: Any) -> Any:
        if not self._missing:
            return tokens
        if tokens is not None and not isinstance(tokens, mx.array):
            return [*self._missing, *tokens]
        dtype = mx.uint32 if tokens is None else tokens.dtype
        if self._before is None or self._before.dtype != dtype:
            self._before = mx.array(self._missing).astype(dtype)
        if tokens is None:
            return self._before
        before = self._before if tokens.ndim == 1 else self._before.reshape(1, -1)
        return mx.concatenate([before, tokens], axis=-1)
