"""Numbers for the layouts of prompt caches: the index knows a layout only by its number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvcache.layers.base import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcache.layers.layout import Layout

# A cache holds few layouts. Beyond this many, most belong to models that are no longer in use.
_MAX_LAYOUTS: Final = 256


class Layouts:
    """Layouts by number and numbers by layout. Not thread-safe.

    Args:
        live: Returns the numbers that the index still uses.

    Attributes:
        by_number: Layouts by number; read-only.
    """

    def __init__(self, live: Callable[[], Iterable[int]]) -> None:
        self._live = live
        self.by_number: dict[int, Layout] = {}
        self._numbers: dict[Layout, list[int]] = {}
        self._next = 0
        # Bytes of the last checkpoint stored, by layout: a session reserves this much for the next one.
        self._checkpoint_bytes: dict[int, int] = {}

    def number(self, layout: Layout) -> int:
        """The layout's newest number; assigns one if it has none."""
        number = self.newest(layout)
        return self.add(layout) if number is None else number

    def newest(self, layout: Layout, limit: int | None = None) -> int | None:
        """The layout's newest number, at most ``limit``; None if it has none.

        In a group, a number denotes the layouts of all ranks together. If one rank quantises its layers in
        mid-request and another has none to quantise, the unchanged layout gets a second number.
        """
        numbers = self._numbers.get(layout, ())
        return next((number for number in reversed(numbers) if limit is None or number <= limit), None)

    def add(self, layout: Layout) -> int:
        """Assigns a new number to the layout."""
        if len(self.by_number) >= _MAX_LAYOUTS:
            self._forget()
        number = self._next
        self._next += 1
        self.keep(number, layout)
        return number

    def keep(self, number: int, layout: Layout) -> None:
        """Binds the number to the layout.

        A commit repeats this: between two critical sections of a store, another store may have forgotten
        an unused number.
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
        """Records the size of a checkpoint of this layout."""
        self._checkpoint_bytes[number] = nbytes

    def checkpoint_bytes(self, number: int) -> int:
        """Bytes of the last checkpoint stored in this layout; 0 if there was none."""
        return self._checkpoint_bytes.get(number, 0)

    def require_match(self, held: Iterable[int], layout: Layout) -> None:
        """Refuses a layout that cannot belong to the same model as the layouts with these numbers.

        Raises:
            Refusal: ``layout_mismatch``.
        """
        for number in held:
            known = self.by_number[number]
            # Equal layouts of full-attention layers agree in everything that `mismatch` compares.
            if (known.checkpointed or known != layout) and (difference := known.mismatch(layout)):
                raise Refusal(
                    "layout_mismatch",
                    f"this prompt cache belongs to another model than the namespace's: {difference}; "
                    "use one namespace per model",
                )
