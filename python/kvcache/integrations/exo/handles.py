"""Handles: the numbers by which exo's engine names what it stored.

exo's own are positions in a list, which an eviction shifts. Here a number is given out once and
stays with its prompt, even after the KV is evicted. Prompts are kept as bytes in sorted order, so the
one that shares most with a query is next to it: O(log handles) comparisons, each at the speed
of ``memcmp``, plus one pass over what is shared.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvcache._core import SectionLock

if TYPE_CHECKING:
    from kvcache.integrations.exo.request import Request

# Handles remembered, and tokens of their prompts at 8 bytes each (64 MiB): more than a large machine
# holds KV for. Without a bound, an engine that runs for months would remember every prompt.
MOST_HANDLES: Final = 1024
MOST_TOKENS: Final = 1 << 23

WORD: Final = 4


@dataclass(frozen=True)
class Entry:
    """The prompt a handle refers to.

    Attributes:
        request: The prompt.
        held: Tokens of it whose KV was stored.
        prefill_tps: As the engine measured it.
    """

    request: Request
    held: int
    prefill_tps: float


class Handles:
    """Numbers for prompts, bounded in number; the least recently used are forgotten. Thread-safe."""

    def __init__(self, most: int = MOST_HANDLES, most_tokens: int = MOST_TOKENS) -> None:
        self._most = most
        self._most_tokens = most_tokens
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._sorted: list[tuple[bytes, int]] = []
        self._bytes = 0
        self._next = 0
        self._lock = SectionLock()

    def match(self, request: Request, length: int) -> tuple[int, Entry, int]:
        """The handle whose prompt shares most with ``request``, of which ``length`` tokens are reused.

        If no remembered prompt shares that much, a new handle is made for the reused tokens.

        Returns:
            The handle, its entry, and the number of tokens shared.
        """
        with self._lock:
            at = bisect_left(self._sorted, (request.words, -1))
            shared, handle = 0, None
            for words, number in self._sorted[max(0, at - 1) : at + 1]:
                if (found := _shared(request.words, words)) > shared:
                    shared, handle = found, number
            if handle is None or shared < length:
                shared, handle = length, self._add(Entry(request.head(length), length, 0.0))
            self._entries.move_to_end(handle)
            return handle, self._entries[handle], shared

    def add(self, entry: Entry) -> int:
        """A handle for a stored prompt: the one it has, or a new one."""
        with self._lock:
            return self._add(entry)

    def update(self, handle: int, entry: Entry) -> int:
        """Moves the handle on to a prompt that continues its own; another prompt gets its own handle.

        Returns:
            The handle of ``entry``'s prompt.
        """
        with self._lock:
            old = self._entries.get(handle)
            if old is None or not entry.request.words.startswith(old.request.words[: old.held * WORD]):
                return self._add(entry)
            self._remove(handle)
            return self._put(handle, entry)

    def entry(self, handle: int) -> Entry | None:
        """The handle's entry; None if it was forgotten.

        Raises:
            TypeError: The handle is not an int.
            IndexError: No such handle was ever given out.
        """
        if isinstance(handle, bool) or not isinstance(handle, int):
            raise TypeError(f"an index is an int, found {type(handle).__name__}")
        with self._lock:
            if not 0 <= handle < self._next:
                raise IndexError(f"index {handle} was never handed out; {self._next} were so far")
            return self._entries.get(handle)

    def entries(self) -> list[tuple[int, Entry]]:
        """Handles and entries in order of their making."""
        with self._lock:
            return sorted(self._entries.items(), key=lambda item: item[0])

    def clear(self) -> None:
        """Forgets all prompts. Their handles are not given out again."""
        with self._lock:
            self._entries.clear()
            self._sorted.clear()
            self._bytes = 0

    def _add(self, entry: Entry) -> int:
        words = entry.request.words
        at = bisect_left(self._sorted, (words, -1))
        if at < len(self._sorted) and self._sorted[at][0] == words:
            handle = self._sorted[at][1]
            self._remove(handle)
            return self._put(handle, entry)
        handle, self._next = self._next, self._next + 1
        return self._put(handle, entry)

    def _put(self, handle: int, entry: Entry) -> int:
        self._entries[handle] = entry
        insort(self._sorted, (entry.request.words, handle))
        self._bytes += len(entry.request.words)
        while len(self._entries) > self._most or (
            len(self._entries) > 1 and self._bytes > self._most_tokens * WORD
        ):
            self._remove(next(iter(self._entries)))
        return handle

    def _remove(self, handle: int) -> None:
        words = self._entries.pop(handle).request.words
        del self._sorted[bisect_left(self._sorted, (words, handle))]
        self._bytes -= len(words)


class Rates(Mapping[int, float]):
    """``prefill_tps[index]``: tokens a second of the prefill that was stored under a handle.

    0.0 for a handle that was forgotten; ``IndexError`` for one that was never given out.
    """

    def __init__(self, handles: Handles) -> None:
        self._handles = handles

    def __getitem__(self, index: int) -> float:
        entry = self._handles.entry(index)
        return 0.0 if entry is None else entry.prefill_tps

    def __iter__(self) -> Iterator[int]:
        return iter([handle for handle, _ in self._handles.entries()])

    def __len__(self) -> int:
        return len(self._handles.entries())


def _shared(one: bytes, other: bytes) -> int:
    """How many leading words are equal."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size // WORD
    a, b = (np.frombuffer(each, np.uint32, size // WORD) for each in (one, other))
    differ: Any = a != b
    return int(differ.argmax())
