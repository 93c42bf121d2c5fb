"""What lookups and stores return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from kvcache.eviction import Eviction
from kvcache.media import MediaSpan  # noqa: TC001 - annotations are read by the documentation

Reason = Literal["hit", "no_entry", "no_checkpoint", "media", "too_short"]
StoreReason = Literal[
    "stored",
    "already",
    "unknown_length",
    "truncated",
    "too_large",
    "offset_mismatch",
    "layout_mismatch",
    "unsupported_layer",
    "key_too_short",
    "batched",
    "empty",
]


# Two hits are never one: arrays of tokens are no truth values, and lists have no hash.
@dataclass(frozen=True, eq=False, repr=False)
class Hit:
    """What a fetch or a peek found. Lengths are in tokens.

    Attributes:
        length: Tokens reused: 0 <= length <= len(tokens) - 1.
        prompt_cache: Ready to continue, the caller's own; None when length == 0 and from peek.
        remaining: tokens[length:], of the type that was given.
        reason: "hit", or why nothing is reused.
        matched: Tokens matched in the tree, at least length.
        checkpoint_at: A position where storing during this prefill would help later requests.
    """

    length: int
    prompt_cache: list[Any] | None
    remaining: Any
    reason: Reason
    matched: int
    checkpoint_at: int | None
    tokens: Any = None
    namespace: str = ""
    media: tuple[MediaSpan, ...] = ()

    def __bool__(self) -> bool:
        return self.length > 0

    def __repr__(self) -> str:
        """Without the tokens and the layers: a prompt of 100,000 tokens would fill a log with them."""
        return (
            f"Hit(length={self.length}, matched={self.matched}, reason={self.reason!r}, "
            f"checkpoint_at={self.checkpoint_at})"
        )


@dataclass(frozen=True)
class Stored:
    """What a store did.

    Attributes:
        length: Tokens now held for this key.
        new_tokens: Tokens of KV copied by this call.
        nbytes: Bytes added.
        reason: "stored", "already", or why less or nothing was stored.
        evicted: What was evicted to make room.
        detail: A sentence on a refusal; empty otherwise.
    """

    length: int
    new_tokens: int
    nbytes: int
    reason: StoreReason
    evicted: Eviction = field(default_factory=Eviction)
    detail: str = ""
