"""Everything that was stored under one layout: what may be handed out, and how many tokens it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.layers import List
from tests.support.oracle import Shelf

if TYPE_CHECKING:
    from tests.support.oracle import Key, Prompt
    from tests.support.poskv import PosKV


@dataclass
class Given:
    """A shelf with a dict per token beside it.

    Attributes:
        model: What filled the caches.
        shelf: What may be handed out.
        tokens: Different prefixes stored, which is what a cache holds that lost nothing.
        chain: Each entry goes on from all others.
        moved: Entries were added that may never have been stored, or be gone: figures are upper bounds.
    """

    model: PosKV
    shelf: Shelf = field(init=False)
    tokens: int = 0
    chain: bool = True
    _tree: dict[Key, Any] = field(default_factory=dict)
    _longest: tuple[Key, ...] = ()

    def __post_init__(self) -> None:
        self.shelf = Shelf(not self.model.spans)

    @property
    def exact(self) -> bool:
        """Nothing was dropped."""
        return self.shelf.exact

    def lost(self) -> None:
        """Something was dropped, or may have been."""
        self.shelf.exact = False

    def add(self, prompt: Prompt) -> int:
        """Notes a store. Returns the tokens that were not there before."""
        keys = tuple(prompt.keys())
        if not keys:
            return 0
        whole = all(_whole(layer, len(keys)) for layer in self.model.layers)
        self.shelf.entries[keys] = whole
        short, long = sorted((keys, self._longest), key=len)
        self.chain = self.chain and long[: len(short)] == short
        self._longest = long
        at, new = self._tree, 0
        for key in keys:
            if key not in at:
                at[key] = {}
                new += 1
            at = at[key]
        self.tokens += new
        return new

    def alone(self, prompt: Prompt, length: int) -> bool:
        """Whether no entry has all of the first ``length`` tokens and goes on, or shares only a part."""
        keys = tuple(prompt.cut(length).keys())
        return all(
            entry == keys[: len(entry)] or entry[:length] == keys == entry for entry in self.shelf.entries
        )


def _whole(layer: Any, length: int) -> bool:
    """Whether the layer's cache has all tokens from the first, in order."""
    if isinstance(layer, List):
        return all(_whole(member, length) for member in layer.members)
    return layer.spans or length <= getattr(layer, "window", getattr(layer, "chunk", -1))
