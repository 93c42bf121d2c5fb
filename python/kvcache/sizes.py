"""Sizes in bytes, parsed from and formatted as text."""

from __future__ import annotations

import re
from typing import Final

from kvcache.arguments import LARGEST, is_whole, shown
from kvcache.errors import ConfigError

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
# No valid size has this many digits; Python refuses to convert more than 4,300.
_MAX_DIGITS: Final = 300
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII)


def parse_size(size: int | str, name: str = "size") -> int:
    """Parses a size such as ``4_000_000_000``, ``"4GB"`` or ``"512 MiB"`` into bytes.

    ``B, kB, KB, MB, GB, TB`` are powers of 1000, ``KiB, MiB, GiB, TiB`` powers of 1024. Case does not matter.

    Args:
        size: An int in bytes, or a str.
        name: The parameter's name, for the error message.

    Raises:
        ConfigError: The str is not a size, or the size is negative or exceeds 4 EiB (2⁶² bytes).
        TypeError: The size is neither an int nor a str.
    """
    if not (is_whole(size) or isinstance(size, str)):
        raise TypeError(f"{name} must be an int (bytes) or a str like '4GB', found {type(size).__name__}")
    if isinstance(size, int):
        nbytes = size
    else:
        match = _SIZE.fullmatch(size.lower())
        if match is None or match[2] not in _UNITS:
            raise ConfigError(f"{name} must be a size like '4GB' or '512MiB', found {shown(size)}")
        number, factor = match[1], _UNITS[match[2]]
        if len(number) > _MAX_DIGITS:
            nbytes = LARGEST + 1
        else:
            nbytes = int(number) * factor if "." not in number else round(float(number) * factor)
    if not 0 <= nbytes <= LARGEST:
        raise ConfigError(f"{name} must be from 0 to 4 EiB (2**62 bytes), found {shown(size)}")
    return nbytes


def format_size(nbytes: float) -> str:
    """Formats a size for people, in powers of 1000."""
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
