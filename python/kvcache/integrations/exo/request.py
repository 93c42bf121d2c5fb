"""A prompt as exo's engine passes it: a token array and media regions, read by their attributes."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvcache._core import Tokens
from kvcache.media import MediaSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# The digest of an unidentified region. Never stored, so it matches nothing.
_UNIDENTIFIED: Final = b"unidentified"
_MEDIA_BIT: Final = 1 << 31


class Request:
    """A prompt with its media.

    Attributes:
        tokens: Its ids, in memory of its own.
        spans: The regions whose content is identified, in order.
        known: Tokens before the first region that is not: one without a hash, out of range, or in
            overlapping another. Nothing after it is stored or reused.

    Raises:
        TokenError: A token id that is out of range.
        TypeError: Tokens of another type.
    """

    def __init__(self, prompt_tokens: Any, regions: Sequence[Any] | None) -> None:
        Tokens(prompt_tokens)
        self.tokens: NDArray[np.int32] = np.array(prompt_tokens).reshape(-1).astype(np.int32)
        self.spans, self.known = _read(regions or (), len(self.tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def asked(self) -> list[MediaSpan]:
        """The spans to look up with: what is not identified matches nothing."""
        if self.known == len(self):
            return self.spans
        return [*self.spans, MediaSpan(self.known, len(self) - self.known, _UNIDENTIFIED)]

    def before(self, length: int) -> int:
        """The last position up to ``length`` that can be stored: known, and inside no span."""
        length = min(length, self.known)
        for span in self.spans:
            if span.start < length < span.start + span.length:
                return span.start
        return length

    def head(self, length: int) -> Request:
        """The first ``length`` tokens, never cut inside a span."""
        part = object.__new__(Request)
        part.tokens = self.tokens[:length].copy()
        part.spans = [span for span in self.spans if span.start + span.length <= length]
        part.known = min(self.known, length)
        return part

    @cached_property
    def words(self) -> bytes:
        """All that is known, four bytes a token.

        Each token of a span is a hash of the whole span: another image is another word.
        """
        words = self.tokens[: self.known].astype(np.uint32)
        for span in self.spans:
            digest = hashlib.blake2b(b"%d " % span.length + span.key()[2], digest_size=4).digest()
            words[span.start : span.start + span.length] = int.from_bytes(digest) | _MEDIA_BIT
        return words.tobytes()


def _read(regions: Sequence[Any], tokens: int) -> tuple[list[MediaSpan], int]:
    """The identified spans, and how many tokens precede the first that is not."""
    spans: list[MediaSpan] = []
    free = 0
    for region in sorted(regions, key=lambda region: region.start_pos):
        start, end = region.start_pos, region.end_pos
        if start >= tokens:
            break
        if not region.content_hash or start < free or not start < end <= tokens:
            known = max(0, start)
            while spans and spans[-1].start + spans[-1].length > known:
                known = spans.pop().start
            return spans, known
        spans.append(MediaSpan(start, end - start, region.content_hash))
        free = end
    return spans, tokens
