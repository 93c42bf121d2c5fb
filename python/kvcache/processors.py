"""Logits processors that see the whole context, including the cached part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable

    Processor = Callable[[Any, mx.array], mx.array]


class WholeContext:
    """Wraps a processor and prepends the tokens that its engine does not pass.

    mlx-lm passes its processors only the tokens run in the current call: the cached prefix is missing, and
    with a draft model the whole prompt except its last token. At the first call, the tokens passed are the
    end of the context, so everything before them is missing.

    Args:
        processor: Takes tokens and logits, returns logits.
        context: Returns the tokens so far; called once, at the first call.
    """

    def __init__(self, processor: Processor, context: Callable[[], list[int]]) -> None:
        self._processor = processor
        self._context = context
        self._missing: list[int] | None = None
        self._prefix: mx.array | None = None

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
        if self._prefix is None or self._prefix.dtype != dtype:
            self._prefix = mx.array(self._missing).astype(dtype)
        if tokens is None:
            return self._prefix
        prefix = self._prefix if tokens.ndim == 1 else self._prefix.reshape(1, -1)
        return mx.concatenate([prefix, tokens], axis=-1)
