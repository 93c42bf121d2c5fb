"""Numbers that are read off a caller's layer caches."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from kvcache.layers.base import Refusal


class Mark(int):
    """An int that notes that something was added to it. Copies of it are plain ints.

    Attributes:
        used: Whether it was.
    """

    used = False

    def __add__(self, other: Any) -> Any:
        self.used = True
        return int.__add__(self, other)

    __radd__ = __add__

    def __reduce_ex__(self, _: Any) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


def whole(value: Any, what: str, cache: Any, *, reason: str = "unsupported_layer", least: int = 0) -> int:
    """A whole number of any type: a Python, numpy or mlx integer, or a float without a fraction.

    Args:
        value: As read.
        what: Its name, for the sentence.
        cache: The layer cache that it was read from.
        reason: Of the refusal.
        least: The smallest that makes sense.

    Raises:
        Refusal: A fraction, NaN, a text, a bool, or less than ``least``.
    """
    number = value
    if type(number) is not int:
        if isinstance(number, mx.array | np.ndarray):
            number = number.item() if number.size == 1 else None
        if isinstance(number, np.generic):
            number = number.item()
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int):
            number = None
    if number is None or number < least:
        raise Refusal(
            reason,
            f"{what} of a {type(cache).__name__} must be a whole number of at least {least}, found {value!r}",
        )
    return int(number)
