"""What a prefix cache may hand out, from a plain list of everything that was stored.

Upper bounds always; exact lengths as long as nothing was dropped. No code is shared with the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# A token, or what stands for one token of a media span.
Key = int | tuple[str, int]


@dataclass(frozen=True)
class Media:
    """Tokens ``[start, start + length)`` show this picture."""

    start: int
    length: int
    picture: str

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True)
class Prompt:
    """Token ids with media.

    Attributes:
        ids: As the engine passes them, placeholders where media stand.
        media: In order.
    """

    ids: tuple[int, ...]
    media: tuple[Media, ...] = ()

    def keys(self) -> list[Key]:
        """What two prompts must agree in."""
        keys: list[Key] = list(self.ids)
        for span in self.media:
            keys[span.start : span.end] = [(span.picture, span.length)] * span.length
        return keys

    def content(self) -> list[int]:
        """What a model sees: a number per token, the picture's own where one stands."""
        content = list(self.ids)
        for span in self.media:
            content[span.start : span.end] = [1000 * ord(span.picture) + at for at in range(span.length)]
        return content

    def cut(self, length: int) -> Prompt:
        """The first tokens; media that are cut go."""
        return Prompt(self.ids[:length], tuple(span for span in self.media if span.end <= length))

    def back(self, at: int) -> int:
        """The last position at or before ``at`` that is not inside media."""
        for span in self.media:
            if span.start < at < span.end:
                return span.start
        return at


@dataclass
class Shelf:
    """What one namespace was given under one layout.

    Attributes:
        whole: Only complete entries can be used: the model has window or state layers.
        entries: Keys stored, and whether each serves shorter lengths too.
        exact: Nothing was dropped since it was empty.
    """

    whole: bool
    entries: dict[tuple[Key, ...], bool] = field(default_factory=dict)
    exact: bool = True

    def usable(self, prompt: Prompt) -> tuple[int, int]:
        """(longest reusable prefix, longest match) of all that was stored.

        A window that has not rotated is trimmed to where its own prompt parts from this one.
        """
        query = prompt.keys()
        matches = {entry: _common(entry, query) for entry in self.entries}
        matched = max(matches.values(), default=0)
        usable = prompt.back(min(matched, max(len(query) - 1, 0)))
        if not self.whole:
            return usable, matched
        ends = [len(entry) for entry in self.entries if matches[entry] == len(entry) <= usable]
        trimmed = [prompt.back(min(matches[entry], usable)) for entry, can in self.entries.items() if can]
        return max([0, *(end for end in ends if prompt.back(end) == end), *trimmed]), matched


def _common(one: Sequence[Key], other: Sequence[Key]) -> int:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
