"""Numbers for the layouts of prompt caches: the index knows a layout by its number alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvcache.layers.base import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcache.layers.layout import Layout

# Layouts are few; more of them than this are those of models long gone.
_MOST: Final = 256


class Layouts:
    """Layouts by number and numbers by layout. Not thread-safe by itself.

    Args:
        live: The numbers that the index still uses.

    Attributes:
        by_number: Layouts by number; for reading.
    """

    def __init__(self, live: Callable[[], Iterable[int]]) -> None:
        self._live = live
        self.by_number: dict[int, Layout] = {}
        self._numbers: dict[Layout, list[int]] = {}
        self._next = 0
        # Bytes of the last checkpoint stored, by layout: what a session reserves for one.
        self._checkpoint_bytes: dict[int, int] = {}

    def number(self, layout: Layout) -> int:
        """The layout's newest number; a new one where it has none."""
        number = self.newest(layout)
        return self.add(layout) if number is None else number

    def newest(self, layout: Layout, limit: int | None = None) -> int | None:
        """The newest number of the layout, up to a limit.

        Among ranks a number means what all of them hold: one of them may quantise in mid-request what
        another has no layer for, and then goes on under a second number.
        """
        numbers = self._numbers.get(layout, ())
        return next((number for number in reversed(numbers) if limit is None or number <= limit), None)

    def add(self, layout: Layout) -> int:
        """A new number for the layout."""
        if len(self.by_number) >= _MOST:
            self._forget()
        number = self._next
        self._next += 1
        self.keep(number, layout)
        return number

    def keep(self, number: int, layout: Layout) -> None:
        """Makes the number mean the layout.

        A commit says so again: between two sections of a store, other stores may have had it forgotten.
        """
        if self.by_number.setdefault(number, layout) is layout and number not in (
            numbers := self._numbers.setdefault(layout, [])
        ):
            numbers.append(number)
            numbers.sort()

    def _forget(self) -> None:
        live = list(self._live())
        self.by_number = {number: self.by_number[number] for number in live if number in self.by_number}
        self._numbers = {}
        for number, layout in self.by_number.items():
            self._numbers.setdefault(layout, []).append(number)
        self._checkpoint_bytes = {number: self._checkpoint_bytes.get(number, 0) for number in live}

    def note_checkpoint(self, number: int, nbytes: int) -> None:
        """Remembers how large a checkpoint of this layout is."""
        self._checkpoint_bytes[number] = nbytes

    def checkpoint_bytes(self, number: int) -> int:
        """Bytes of the last checkpoint stored in this layout; 0 where none was."""
        return self._checkpoint_bytes.get(number, 0)

    def require_match(self, held: Iterable[int], layout: Layout) -> None:
        """Refuses a layout that cannot be of the model that these numbers are of.

        Raises:
            Refusal: ``layout_mismatch``.
        """
        for number in held:
            known = self.by_number[number]
            # Equal layouts of full-attention layers agree in all that a mismatch looks at.
            if (known.checkpointed or known != layout) and (why := known.mismatch(layout)):
                raise Refusal("layout_mismatch", f"this cache is of another model: {why}")
