"""Numbers read off a caller's layer caches."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from kvcache.arguments import shown
from kvcache.layers.base import Refusal


class Mark(int):
    """An int that records whether it was used in an addition. Its copies are plain ints.

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


def whole(value: Any, name: str, cache: Any, *, reason: str = "unsupported_layer", least: int = 0) -> int:
    """Converts a whole number to an int: a Python, numpy or mlx integer, or a float without a fraction.

    Args:
        value: The value read.
        name: Its name, for the message.
        cache: The layer cache that it was read from.
        reason: The reason of the refusal.
        least: The smallest valid value.

    Raises:
        Refusal: A fraction, NaN, a str, a bool, or less than ``least``.
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
            f"{name} of a {type(cache).__name__} must be a whole number of at least {least}, "
            f"found {shown(value)}",
        )
    return int(number)
