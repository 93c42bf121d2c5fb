"""The results of lookups and stores."""

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


# No generated __eq__ or __hash__: comparing arrays gives no truth value, and lists are not hashable.
@dataclass(frozen=True, eq=False, repr=False)
class Hit:
    """The result of a fetch or a peek. Lengths are in tokens.

    Attributes:
        length: Tokens reused: 0 <= length <= len(tokens) - 1.
        prompt_cache: Layer caches ready to continue, owned by the caller; None if length is 0, and from a
            peek.
        remaining: tokens[length:], in the type of the argument.
        reason: "hit", or why nothing is reused.
        matched: Tokens matched in the tree, at least length.
        checkpoint_at: A position at which a store during this prefill would help later requests, or None.
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
        """Omits the tokens and the layers, which would flood a log."""
        return (
            f"Hit(length={self.length}, matched={self.matched}, reason={self.reason!r}, "
            f"checkpoint_at={self.checkpoint_at})"
        )


@dataclass(frozen=True)
class Stored:
    """The result of a store.

    Attributes:
        length: Tokens now held for this key.
        new_tokens: Tokens of KV copied by this call.
        nbytes: Bytes added.
        reason: "stored", "already", or why less or nothing was stored.
        evicted: What was evicted to make room.
        detail: One sentence that explains a refusal; empty otherwise.
    """

    length: int
    new_tokens: int
    nbytes: int
    reason: StoreReason
    evicted: Eviction = field(default_factory=Eviction)
    detail: str = ""
