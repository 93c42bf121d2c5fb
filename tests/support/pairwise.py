"""A small part of a product of parameters in which every pair of values still occurs."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    Pair = tuple[tuple[int, Hashable], tuple[int, Hashable]]


def covering(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """The numbers of rows that together hold every pair of values that any row holds, in ascending order.

    Greedy: the row with the most pairs that are still missing comes next, the first of several. So the same
    rows give the same choice in every process. Rows may be any part of a product.
    """
    missing = {pair for row in rows for pair in _pairs(row)}
    left = {number: set(_pairs(row)) for number, row in enumerate(rows)}
    chosen = []
    while missing:
        best = max(left, key=lambda number: (len(left[number] & missing), -number))
        missing -= left.pop(best)
        chosen.append(best)
    return sorted(chosen)


def _pairs(row: Sequence[Hashable]) -> Iterator[Pair]:
    return combinations(enumerate(row), 2)
