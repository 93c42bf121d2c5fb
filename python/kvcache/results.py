"""What calls return."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from kvcache.errors import ConfigError
from kvcache.sizes import shown
from kvcache.texts import check_text

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


@dataclass(frozen=True)
class MediaSpan:
    """Tokens ``[start, start + length)`` stand for this content.

    Attributes:
        start: First token.
        length: Length in tokens, at least 1.
        digest: Content hash, including whatever changes the content's embedding (size, crop, ...).
            A text is the same digest as its UTF-8 bytes.
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
                f"found start={shown(self.start)}, length={shown(self.length)}"
            )
        if not isinstance(self.digest, bytes | str) or not self.digest:
            raise ConfigError(
                f"a media span needs a digest (bytes or str, not empty), found {shown(self.digest)}"
            )
        if isinstance(self.digest, str):
            check_text("MediaSpan.digest", self.digest)

    def key(self) -> tuple[int, int, bytes]:
        """The span as the index takes it: a text is its UTF-8 bytes."""
        return self.start, self.length, self.digest.encode() if isinstance(self.digest, str) else self.digest


def read_media(media: Iterable[MediaSpan], tokens: int) -> tuple[MediaSpan, ...]:
    """The spans of a prompt of ``tokens``, read once and in order of their start.

    Every call that takes ``media`` reads it here, so that all of them refuse the same.

    Raises:
        TypeError: No iterable of spans.
        ConfigError: Spans that overlap, or that end past the tokens.
    """
    if not isinstance(media, Iterable):
        raise TypeError(f"media must be an iterable of MediaSpan, found {type(media).__name__}")
    spans = tuple(media)
    for span in spans:
        if not isinstance(span, MediaSpan):
            raise TypeError(f"media must be an iterable of MediaSpan, found {type(span).__name__} in it")
    spans = tuple(sorted(spans, key=lambda span: span.start))
    for span, following in pairwise(spans):
        if span.start + span.length > following.start:
            raise ConfigError(
                f"media spans must not overlap: one is at [{span.start}, {shown(span.start + span.length)}), "
                f"the next one starts at {shown(following.start)}"
            )
    if spans and (end := spans[-1].start + spans[-1].length) > tokens:
        raise ConfigError(f"a media span ends at {shown(end)}, past the end of the {tokens} tokens")
    return spans


def media_keys(spans: Iterable[MediaSpan]) -> list[tuple[int, int, bytes]]:
    """The spans as the index takes them, in order of their start."""
    return [span.key() for span in sorted(spans, key=lambda span: span.start)]


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


# Two hits are never one: arrays of tokens are no truth values, and lists have no hash.
@dataclass(frozen=True, eq=False)
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
