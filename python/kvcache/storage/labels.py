"""Numbers for the labels of stores: the index counts labels by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvcache.arguments import shown
from kvcache.errors import ConfigError
from kvcache.stats import LabelFigures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache._core import LabelStats

# A cache has few labels. A caller that makes up a new one for every store must not leak memory.
_MAX_LABELS: Final = 1024


class Labels:
    """Numbers labels in order of first use. Not thread-safe."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def number(self, label: str) -> int:
        """The label's number; assigns one to a new label.

        Raises:
            ConfigError: The cache already has the maximum number of labels.
        """
        if label not in self._numbers:
            if len(self._numbers) >= _MAX_LABELS:
                raise ConfigError(
                    f"label {shown(label)} is new and this cache already has {_MAX_LABELS}, the maximum; "
                    "use a small fixed set of labels"
                )
            self._numbers[label] = len(self._numbers)
        return self._numbers[label]

    def figures(self, by_number: Sequence[LabelStats]) -> dict[str, LabelFigures]:
        """Converts the index's figures by number to figures by label."""
        by_label = {}
        for label, number in self._numbers.items():
            if number < len(by_number):
                held = by_number[number]
                by_label[label] = LabelFigures(held.sequences, held.entries, held.ntokens, held.nbytes)
        return by_label
