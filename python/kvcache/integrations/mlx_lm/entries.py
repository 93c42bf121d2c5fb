"""What an insertion brings, and what an eviction by sequences takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcache.layers.base import Refusal
from kvcache.layers.prompt_cache import Prompt


@dataclass(frozen=True)
class Spans:
    """A prompt cache whose layers can all be cut at any token.

    Attributes:
        held: Tokens that every layer holds.
        out_of_step: Some layer holds more: a draft model's cache lags the main one's.
        token_bytes: Bytes of one token.
    """

    held: int
    out_of_step: bool
    token_bytes: int

    @classmethod
    def of(cls, prompt_cache: Any) -> Spans | None:
        """None where a layer is of another kind, holds nothing or cannot be stored."""
        try:
            prompt = Prompt(prompt_cache)
            offsets = [offset for offset in prompt.offsets if offset]
            if not prompt.spans_only or not offsets or len(offsets) < len(prompt.offsets):
                return None
            return cls(min(offsets), min(offsets) < max(offsets), prompt.layout().token_bytes)
        except Refusal:
            return None


def layers(prompt_cache: Any) -> list[Any]:
    """The layer caches as a list. A map or a generator could be read once only, and a store reads twice.

    Raises:
        TypeError: Not a list or tuple.
    """
    if not isinstance(prompt_cache, list | tuple):
        raise TypeError(f"prompt_cache must be a list of layer caches, found {type(prompt_cache).__name__}")
    return list(prompt_cache)


def counts_nothing(prompt_cache: list[Any]) -> bool:
    """Whether no layer says how many tokens it has run: all are recurrent."""
    try:
        return bool(prompt_cache) and not Prompt(prompt_cache).knows_length
    except Refusal:
        return False
