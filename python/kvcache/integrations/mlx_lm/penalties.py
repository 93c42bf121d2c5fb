"""Logits processors on a warm cache."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def seeing(processors: Iterable[Callable[..., Any]], reused: Sequence[int]) -> list[Callable[..., Any]]:
    """The processors, shown ``reused`` before the tokens that the generator shows them.

    mlx-lm's generators know the tokens they ran. On a warm cache those are the rest of the prompt, and
    a repetition penalty that does not see the other tokens gives another answer than on a cold one.
    """
    if not len(reused):
        return list(processors)
    before = mx.array(list(reused))
    mx.eval(before)
    return [partial(_process, processor, before) for processor in processors]


def _process(processor: Callable[..., Any], before: mx.array, tokens: mx.array, logits: mx.array) -> Any:
    return processor(mx.concatenate([before.astype(tokens.dtype), tokens]), logits)
