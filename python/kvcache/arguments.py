"""Checks of what callers pass: one sentence each, with what was asked and what was found."""

from __future__ import annotations

import math
from numbers import Real
from typing import Final, TypeGuard

from kvcache.errors import ConfigError

LARGEST: Final = 2**62
_SHOWN: Final = 80


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is an int; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(name: str, value: object, least: int = 0) -> int:
    """The value, if it is an int from ``least`` to 2⁶².

    Raises:
        TypeError: Not an int.
        ConfigError: Out of range.
    """
    if not is_whole(value):
        raise TypeError(f"{name} must be an int, found {type(value).__name__}")
    if not least <= value <= LARGEST:
        raise ConfigError(f"{name} must be from {least} to {LARGEST}, found {shown(value)}")
    return value


def number(rule: str, value: object) -> float:
    """The value as a float, if it is a real number of any type; one too large for a float is infinite.

    Args:
        rule: What is asked, for the sentence: "seconds must be a number".
        value: What was passed or returned.

    Raises:
        TypeError: Not a number; a bool is none.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{rule}, found {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > type(value)(0) else -math.inf  # type: ignore[call-arg]


def text(name: str, value: object) -> str:
    """The value, if it is a text that has bytes.

    Raises:
        TypeError: Not a text.
        ConfigError: A lone surrogate, as file names and broken JSON bring them.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, found {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} must be a text without lone surrogates, found one at position {error.start} of "
            f"{shown(value)}"
        ) from None
    return value


def shown(value: object) -> str:
    """How a value looks in a sentence: shortened, and whatever it is."""
    try:
        written = repr(value)
    except Exception:  # noqa: BLE001 - an int of more than 4,300 digits, or an object of the caller's
        return f"a value of type {type(value).__name__}"
    return written if len(written) <= _SHOWN else f"{written[: _SHOWN - 1]}…"
