"""What mlx-lm's server passes as keys: models of any hashable kind, and images as negative ids."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from kvcache.media import MediaSpan

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class Namespaces:
    """One namespace for each model, regardless of its repr: equal models share one, others never do."""

    def __init__(self) -> None:
        # No lock, which a finalizer could find held by its own thread: each step is one of the dict's.
        self._names: dict[Hashable, str] = {}
        self._numbers = count()

    def of(self, model: Hashable) -> str:
        """The model's namespace.

        Raises:
            TypeError: The model cannot be hashed.
        """
        try:
            hash(model)
        except TypeError as error:
            raise TypeError(f"model must be hashable, found {type(model).__name__}") from error
        # The number alone keeps them apart; the text, which may hold anything, is for people.
        known = self._names.get(model)
        return known or self._names.setdefault(model, f"{next(self._numbers)}: {model!a}")

    def items(self) -> list[tuple[Hashable, str]]:
        """All models seen so far with their namespaces."""
        return list(self._names.copy().items())


def plain(tokens: Any) -> Sequence[int]:
    """Tokens as a list or tuple.

    Raises:
        TypeError: They are neither a sequence nor an array; a map or a generator could be read once only.
    """
    if isinstance(tokens, list | tuple):
        return tokens
    read = getattr(tokens, "tolist", None)
    if read is None or isinstance(tokens, str | bytes | bytearray):
        raise TypeError(
            f"tokens must be a list, a tuple or an array, found {type(tokens).__name__}; pass list(...)"
        )
    return list(read())


def split_images(tokens: Sequence[int]) -> tuple[Sequence[int], list[MediaSpan]]:
    """Token ids without images, and the images as spans.

    mlx-lm's server writes an image's patch tokens as a negative number made from its content.
    """
    if not tokens or min(tokens) >= 0:
        return tokens, []
    ids, spans, start = list(tokens), [], 0
    while start < len(ids):
        end = start + 1
        if (content := ids[start]) < 0:
            while end < len(ids) and ids[end] == content:
                end += 1
            spans.append(MediaSpan(start, end - start, str(content)))
            ids[start:end] = [0] * (end - start)
        start = end
    return ids, spans
