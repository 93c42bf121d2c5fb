"""Numbers for the labels of stores: the index counts by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvcache.errors import ConfigError
from kvcache.stats import LabelFigures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache._core import LabelStats

# Labels are few; more of them are a caller's mistake that must not grow for ever.
_MOST: Final = 1024


class Labels:
    """Labels by the order in which they were first used. Not thread-safe by itself."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def number(self, label: str) -> int:
        """The label's number.

        Raises:
            ConfigError: More labels than a cache takes.
        """
        if label not in self._numbers:
            if len(self._numbers) >= _MOST:
                raise ConfigError(f"labels are for a few kinds of stores, not for {_MOST} of them")
            self._numbers[label] = len(self._numbers)
        return self._numbers[label]

    def figures(self, counted: Sequence[LabelStats]) -> dict[str, LabelFigures]:
        """The index's figures of each number, by label."""
        found = {}
        for label, number in self._numbers.items():
            if number < len(counted):
                held = counted[number]
                found[label] = LabelFigures(held.sequences, held.entries, held.ntokens, held.nbytes)
        return found
