"""What calls return."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kvcache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

Reason = Literal["hit", "no_entry", "no_checkpoint", "media", "too_short"]
StoreReason = Literal[
    "stored",
    "already",
    "truncated",
    "too_large",
    "offset_mismatch",
    "layout_mismatch",
    "unsupported_layer",
    "key_too_short",
    "batched",
    "empty",
]


@dataclass(frozen=True)
class MediaSpan:
    """Tokens ``[start, start + length)`` stand for this content.

    Attributes:
        start: First token.
        length: Length in tokens, at least 1.
        digest: Content hash, including whatever changes the content's embedding (size, crop, ...).
    """

    start: int
    length: int
    digest: bytes | str

    def __post_init__(self) -> None:
        for name in ("start", "length"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"MediaSpan.{name} must be an int, found {type(value).__name__}")
        if self.start < 0 or self.length < 1:
            raise ConfigError(
                "a media span needs start >= 0 and length >= 1, "
                f"found start={self.start}, length={self.length}"
            )
        if not isinstance(self.digest, bytes | str) or not self.digest:
            raise ConfigError(f"a media span needs a digest (bytes or str, not empty), found {self.digest!r}")

    def key(self) -> tuple[int, int, bytes]:
        """The span as the index takes it. Text and bytes never stand for the same content."""
        if isinstance(self.digest, str):
            return self.start, self.length, b"s" + self.digest.encode()
        return self.start, self.length, b"b" + self.digest


def media_keys(media: Sequence[MediaSpan]) -> list[tuple[int, int, bytes]]:
    """The spans as the index takes them, in order of their start."""
    if not isinstance(media, Iterable):
        raise TypeError(f"media must be a sequence of MediaSpan, found {type(media).__name__}")
    for span in media:
        if not isinstance(span, MediaSpan):
            raise TypeError(f"media must be a sequence of MediaSpan, found {type(span).__name__}")
    return [span.key() for span in sorted(media, key=lambda span: span.start)]


@dataclass(frozen=True)
class Eviction:
    """What an eviction dropped, and what came back.

    Attributes:
        segments: Segments of KV dropped.
        checkpoints: Checkpoints dropped.
        tokens: Tokens of KV dropped.
        nbytes: Bytes dropped, by the ledger.
        freed: Bytes that came back: MLX active + cached memory before - after, whatever the
            collection and the cleared pool gave back.
        cycles: Eviction cycles: each drops, collects, clears and measures once.
        seconds: Time spent in reclaim.
    """

    segments: int = 0
    checkpoints: int = 0
    tokens: int = 0
    nbytes: int = 0
    freed: int = 0
    cycles: int = 0
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.segments > 0 or self.checkpoints > 0

    def __add__(self, other: Eviction) -> Eviction:
        return Eviction(
            segments=self.segments + other.segments,
            checkpoints=self.checkpoints + other.checkpoints,
            tokens=self.tokens + other.tokens,
            nbytes=self.nbytes + other.nbytes,
            freed=self.freed + other.freed,
            cycles=self.cycles + other.cycles,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True)
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
    tokens: Any = field(repr=False, default=None)
    namespace: str = field(repr=False, default="")
    media: tuple[MediaSpan, ...] = field(repr=False, default=())

    def __bool__(self) -> bool:
        return self.length > 0


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
