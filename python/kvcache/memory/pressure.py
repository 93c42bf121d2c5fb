"""Sources of memory pressure: how many bytes must be freed."""

from __future__ import annotations

import os
from typing import Final, Protocol, runtime_checkable

import psutil

from kvcache.arguments import shown
from kvcache.errors import ConfigError

_GIB: Final = 2**30
# exo's thresholds by machine size: larger machines may be filled further.
_THRESHOLDS: Final = ((128 * _GIB, 0.85), (64 * _GIB, 0.80), (32 * _GIB, 0.75), (0, 0.70))
ENVIRONMENT: Final = "KVCACHE_MEMORY_THRESHOLD"


@runtime_checkable
class PressureSource(Protocol):
    """Reports how short of memory the machine is."""

    def excess_bytes(self) -> int:
        """Bytes that must be freed to relieve the pressure; 0 if there is none."""


class SystemMemoryPressure:
    """Reports pressure once more than a fraction of the machine's memory is in use.

    Args:
        threshold: The fraction, above 0 and up to 1. None: the environment variable
            ``KVCACHE_MEMORY_THRESHOLD``; if it is not set, by machine size as in exo: 0.85 from 128 GiB,
            0.80 from 64 GiB, 0.75 from 32 GiB, else 0.70.

    Raises:
        ConfigError: The threshold is not a fraction in that range.
    """

    def __init__(self, threshold: float | None = None) -> None:
        self.threshold = _threshold(threshold)

    def excess_bytes(self) -> int:
        """Bytes in use beyond the threshold."""
        memory = psutil.virtual_memory()
        return max(0, memory.total - memory.available - int(memory.total * self.threshold))

    def __repr__(self) -> str:
        return f"SystemMemoryPressure(threshold={self.threshold})"


def default_threshold(total: int) -> float:
    """The threshold for a machine of ``total`` bytes; 5 % less counts, since firmware reserves some."""
    for size, threshold in _THRESHOLDS:
        if total >= size * 0.95:
            return threshold
    return _THRESHOLDS[-1][1]


def _threshold(argument: float | None) -> float:
    name: str = "threshold"
    value: object = argument
    if argument is None:
        name, value = ENVIRONMENT, os.environ.get(ENVIRONMENT)
        if value is None:
            return default_threshold(psutil.virtual_memory().total)
    try:
        fraction = float(value)  # type: ignore[arg-type] # refused below if it does not convert
    except (TypeError, ValueError, OverflowError):
        fraction = -1.0
    if isinstance(value, bool) or not 0 < fraction <= 1:
        raise ConfigError(f"{name} must be a fraction above 0 and up to 1, found {shown(value)}")
    return fraction
