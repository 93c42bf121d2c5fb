"""Rows of keys and values that spell out token, position, layer, side and head.

They do so in digits of base 16, which are exact in every dtype, and in 4 bits too where a group holds
both a 0 and a 15."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


WIDTH = 32


_DIGITS = 6


_POWERS = 16 ** np.arange(_DIGITS)


class Layer(Protocol):
    """One layer of a model that writes down what it sees."""

    spans: bool

    def fresh(self) -> Any: ...

    def grow(self, cache: Any, tokens: Sequence[int], start: int) -> None:
        """Appends as a forward pass would."""

    def length(self, cache: Any) -> int:
        """Tokens that went in."""

    def tokens(self, cache: Any) -> list[int] | None:
        """The tokens read back, all of them; None where only the last ones or a fold are left."""

    def check(self, cache: Any, tokens: Sequence[int]) -> None:
        """Asserts that exactly ``tokens`` went in."""

    def numbered(self, number: int) -> None:
        """Says which layer this is, so that two layers are not taken for each other."""

    def nbytes(self, length: int) -> int:
        """Bytes that ``length`` tokens need, no row too many."""

    def roomy(self, length: int, remaining: int) -> int:
        """The same with room for ``remaining`` more where the class over-allocates."""


def encode(tokens: Sequence[int], positions: Sequence[int], number: int, side: int, heads: int) -> np.ndarray:
    """Rows for the tokens at these positions: ``(1, heads, len(tokens), WIDTH)``."""
    rows = np.zeros((1, heads, len(tokens), WIDTH), np.float32)
    rows[..., 1] = 15
    rows[..., 2 : 2 + _DIGITS] = np.array(tokens, int).reshape(-1, 1) // _POWERS % 16
    rows[..., 2 + _DIGITS : 2 + 2 * _DIGITS] = np.array(positions, int).reshape(-1, 1) // _POWERS % 16
    rows[..., -3], rows[..., -2] = number, side
    rows[..., -1] = np.arange(heads).reshape(1, -1, 1)
    return rows


def decode(array: mx.array, number: int, side: int) -> tuple[list[int], list[int]]:
    """Tokens and positions of rows, which must be this layer's, whole and the same in all heads."""
    rows = np.array(array.astype(mx.float32))
    one, heads = rows.shape[:2]
    assert one == 1
    tokens = (rows[0, 0, :, 2 : 2 + _DIGITS] @ _POWERS).astype(int).tolist()
    positions = (rows[0, 0, :, 2 + _DIGITS : 2 + 2 * _DIGITS] @ _POWERS).astype(int).tolist()
    expected = encode(tokens, positions, number, side, heads)
    assert np.array_equal(rows, expected), f"rows that side {side} of layer {number} never wrote"
    return tokens, positions
