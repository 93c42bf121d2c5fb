"""Spans of a prompt that represent images, audio and other content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from kvcache.arguments import is_whole, shown, text
from kvcache.errors import ConfigError


@dataclass(frozen=True)
class MediaSpan:
    """Content that the tokens ``[start, start + length)`` represent.

    Attributes:
        start: Position of the first token.
        length: Length in tokens, at least 1.
        digest: Hash of the content and of everything that changes its embedding (size, crop, ...). A str is
            the same digest as its UTF-8 bytes.
    """

    start: int
    length: int
    digest: bytes | str

    def __post_init__(self) -> None:
        for name in ("start", "length"):
            value = getattr(self, name)
            if not is_whole(value):
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
            text("MediaSpan.digest", self.digest)

    def key(self) -> tuple[int, int, bytes]:
        """The span in the form that the index takes, with the digest as bytes."""
        return self.start, self.length, self.digest.encode() if isinstance(self.digest, str) else self.digest


def read_media(media: Iterable[MediaSpan], tokens: int) -> tuple[MediaSpan, ...]:
    """Reads the media spans of a prompt of ``tokens`` tokens once, and sorts them by start.

    Every call that takes ``media`` uses this function, so all of them accept the same values.

    Raises:
        TypeError: ``media`` is not an iterable of spans.
        ConfigError: Spans overlap or end past the tokens.
    """
    if isinstance(media, MediaSpan):
        raise TypeError("media must be an iterable of MediaSpan, found a single one; pass it in a list")
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
                f"media spans must not overlap: one covers [{span.start}, {shown(span.start + span.length)}) "
                f"and the next starts at {shown(following.start)}"
            )
    if spans and (end := spans[-1].start + spans[-1].length) > tokens:
        raise ConfigError(f"a media span ends at {shown(end)}, past the end of the {tokens} tokens")
    return spans


def media_keys(spans: Iterable[MediaSpan]) -> list[tuple[int, int, bytes]]:
    """The spans in the form that the index takes, sorted by start."""
    return [span.key() for span in sorted(spans, key=lambda span: span.start)]
