"""Argument checks. Each error is one sentence: what is required and what was found."""

from __future__ import annotations

import math
from numbers import Real
from typing import Final, TypeGuard

from kvcache.errors import ConfigError

# Far above any real value, and small enough that sums do not overflow 64 bits.
LARGEST: Final = 2**62
_MAX_SHOWN: Final = 80


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(name: str, value: object, least: int = 0) -> int:
    """Returns the value if it is an int from ``least`` to 2⁶².

    Raises:
        TypeError: The value is not an int.
        ConfigError: It is out of range.
    """
    if not is_whole(value):
        raise TypeError(f"{name} must be an int, found {type(value).__name__}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, found {shown(value)}")
    if value > LARGEST:
        raise ConfigError(f"{name} must be at most 2**62, found {shown(value)}")
    return value


def number(rule: str, value: object) -> float:
    """Converts a real number of any type to a float; one too large for a float becomes infinite.

    Args:
        rule: The requirement that starts the error message, such as "seconds must be a number".
        value: The value passed or returned.

    Raises:
        TypeError: The value is not a number, or is a bool.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{rule}, found {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > type(value)(0) else -math.inf  # type: ignore[call-arg]


def text(name: str, value: object) -> str:
    """Returns the value if it is a str that can be encoded.

    Raises:
        TypeError: The value is not a str.
        ConfigError: It has a lone surrogate, which may come from a file name or broken JSON.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, found {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} must be a str without lone surrogates, found one at position {error.start} of "
            f"{shown(value)}"
        ) from None
    return value


def shown(value: object) -> str:
    """A value's repr for an error message, shortened; never raises."""
    try:
        written = repr(value)
    except Exception:  # noqa: BLE001 - the repr of an int of more than 4,300 digits or of a caller's object
        return f"a value of type {type(value).__name__}"
    return written if len(written) <= _MAX_SHOWN else f"{written[: _MAX_SHOWN - 1]}…"
