"""The compressed prefix tree of a whole trace.

A node is a run of units that the same requests pass through, so what one unit of it is worth to a cache
every other is worth as well. Requests are sorted, and neighbours compared: what two neighbours share is a
path from the root (as a suffix tree is built from a suffix array and its common prefixes). Cost: one sort,
and one pass over the units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NONE: Final = -1


class PrefixTree:
    """Nodes are numbers; the root has none.

    Args:
        requests: Unit ids of each request, none negative.

    Attributes:
        starts: Depth in units at which each node's run begins.
        lengths: Units of each node's run.
    """

    def __init__(self, requests: Sequence[NDArray[np.int32]]) -> None:
        self.starts: list[int] = []
        self.lengths: list[int] = []
        self._parents: list[int] = []
        self._ends = [_NONE] * len(requests)
        # Big-endian bytes compare as the ids do.
        keys = [units.astype(">u4").tobytes() for units in requests]
        order = sorted(range(len(requests)), key=keys.__getitem__)
        del keys
        branch: list[int] = []  # from the root to the end of the request before
        before = np.zeros(0, np.int32)
        for request in order:
            units = requests[request]
            self._add(branch, _common(before, units), len(units))
            self._ends[request] = branch[-1] if branch else _NONE
            before = units

    @property
    def units(self) -> int:
        """Distinct units, which an unlimited cache would hold in the end."""
        return sum(self.lengths)

    def path(self, request: int) -> list[int]:
        """The nodes that make up a request, deepest first."""
        nodes = []
        node = self._ends[request]
        while node != _NONE:
            nodes.append(node)
            node = self._parents[node]
        return nodes

    def _add(self, branch: list[int], shared: int, length: int) -> None:
        """Moves the branch to a request that shares `shared` units with the one before."""
        above = _NONE
        while branch and self.starts[branch[-1]] >= shared:
            branch.pop()
        if branch:
            above = branch[-1]
            run = shared - self.starts[above]
            if run < self.lengths[above]:
                above = self._split(branch, run)
        if length > shared:
            branch.append(self._new(above, shared, length - shared))

    def _split(self, branch: list[int], run: int) -> int:
        """Gives the first units of the branch's last node a node of their own, which takes its place."""
        lower = branch.pop()
        upper = self._new(self._parents[lower], self.starts[lower], run)
        self._parents[lower] = upper
        self.starts[lower] += run
        self.lengths[lower] -= run
        branch.append(upper)
        return upper

    def _new(self, parent: int, start: int, length: int) -> int:
        self._parents.append(parent)
        self.starts.append(start)
        self.lengths.append(length)
        return len(self.starts) - 1


def _common(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    shorter = min(len(left), len(right))
    differs = left[:shorter] != right[:shorter]
    return int(differs.argmax()) if differs.any() else shorter
