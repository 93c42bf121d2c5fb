"""Sizes in bytes, as people write them."""

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
# More digits than any size has; Python converts no text of more than 4,300.
_DIGITS: Final = 300
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII)


def parse_size(size: int | str, name: str = "size") -> int:
    """Bytes of a size such as ``4_000_000_000``, ``"4GB"`` or ``"512 MiB"``.

    ``B, kB, KB, MB, GB, TB`` are powers of 1000, ``KiB, MiB, GiB, TiB`` of 1024. Case does not
    matter.

    Args:
        size: An int is bytes.
        name: What the size is for, for the error's sentence.

    Raises:
        ConfigError: The text is no size, or the size is negative or beyond 2⁶².
        TypeError: Neither int nor str.
    """
    if not (is_whole(size) or isinstance(size, str)):
        raise TypeError(f"{name} must be an int (bytes) or a text like '4GB', found {type(size).__name__}")
    if isinstance(size, int):
        nbytes = size
    else:
        found = _SIZE.fullmatch(size.lower())
        if found is None or found[2] not in _UNITS:
            raise ConfigError(f"{name} must be a size like '4GB' or '512MiB', found {shown(size)}")
        number, factor = found[1], _UNITS[found[2]]
        if len(number) > _DIGITS:
            nbytes = LARGEST + 1
        else:
            nbytes = int(number) * factor if "." not in number else round(float(number) * factor)
    if not 0 <= nbytes <= LARGEST:
        raise ConfigError(f"{name} must be from 0 to {LARGEST} bytes, found {shown(size)}")
    return nbytes


def format_size(nbytes: float) -> str:
    """A size for people, in powers of 1000."""
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
