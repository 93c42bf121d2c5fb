"""What mlx-lm's server passes as keys: models of any hashable kind, and images as negative ids."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from kvcache.media import MediaSpan

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

# Ends remembered; what is older is counted as a sequence of its own.
_ENDS: Final = 1024


class Namespaces:
    """One namespace for each model, whatever it prints as: equal models share one, others never do."""

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


class Ends:
    """Where sequences ended that a longer one may continue, by digest: no tokens are kept.

    The caller holds a lock.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[str, int, bytes], None] = OrderedDict()
        self._lengths: dict[str, Counter[int]] = {}

    def add(self, namespace: str, tokens: Sequence[int]) -> list[int]:
        """Notes the end of ``tokens``; O(len(tokens) + ends).

        Returns:
            The lengths of noted sequences that ``tokens`` continues. They are forgotten.
        """
        buffer = memoryview(array("q", tokens)).cast("B")
        digest, done, covered = hashlib.blake2b(digest_size=16), 0, []
        known = sorted(length for length in self._lengths.get(namespace, ()) if length < len(tokens))
        for length in known:
            digest.update(buffer[done * 8 : length * 8])
            done = length
            end = (namespace, length, digest.digest())
            if end in self._ends:
                self._forget(end)
                covered.append(length)
        digest.update(buffer[done * 8 :])
        end = (namespace, len(tokens), digest.digest())
        if end in self._ends:
            self._ends.move_to_end(end)
        else:
            self._ends[end] = None
            self._lengths.setdefault(namespace, Counter())[len(tokens)] += 1
        if len(self._ends) > _ENDS:
            self._forget(next(iter(self._ends)))
        return covered

    def _forget(self, end: tuple[str, int, bytes]) -> None:
        namespace, length, _ = end
        del self._ends[end]
        lengths = self._lengths[namespace]
        lengths[length] -= 1
        if not lengths[length]:
            del lengths[length]
        if not lengths:
            del self._lengths[namespace]
