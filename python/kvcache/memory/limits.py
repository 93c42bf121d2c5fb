"""Limits on MLX's memory, resolved for the device at hand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kvcache.errors import ConfigError
from kvcache.sizes import LARGEST, parse_size, real, shown

if TYPE_CHECKING:
    from kvcache.memory.pressure import PressureSource


def device_memory(info: dict[str, Any]) -> int | None:
    """Bytes that the device recommends to stay under, else all it has; None where it tells neither."""
    for name in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        if info.get(name):
            return int(info[name])
    return None


def resolve_memory_limit(limit: float | str | None, info: dict[str, Any], system: int) -> int | None:
    """Bytes of a ``memory_limit``: a size, or a fraction of the device's memory.

    Args:
        limit: An int or a text is a size; a float from 0 to 1 is a fraction.
        info: What ``mx.device_info`` reports.
        system: The machine's memory in bytes, for devices that report none.

    Raises:
        ConfigError: Neither a size nor a fraction.
    """
    if limit is None:
        return None
    if isinstance(limit, float):
        if not 0 < limit <= 1:
            raise ConfigError(f"memory_limit as a fraction must be above 0 and up to 1, found {limit}")
        return int((device_memory(info) or system) * limit)
    return parse_size(limit, "memory_limit")


def resolve_max_buffers(limit: int | None, info: dict[str, Any]) -> int | None:
    """The number of arrays to stay under: 80 % of what the device can have, where it says so.

    MLX aborts the process at the device's resource limit (499,000 live buffers on Metal).
    """
    if limit is None:
        resources = info.get("resource_limit")
        return int(resources) * 4 // 5 if resources else None
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"max_buffers must be an int, found {type(limit).__name__}")
    if not 0 <= limit <= LARGEST:
        raise ConfigError(f"max_buffers must be from 0 to {LARGEST}, found {shown(limit)}")
    return limit


@dataclass(frozen=True)
class MemoryLimits:
    """What is measured, beside the ledger's own limits.

    Attributes:
        memory_limit: MLX active memory in bytes.
        pressure: Another source; asked without any lock held.
    """

    memory_limit: int | None = None
    pressure: PressureSource | None = None

    def over(self, need: int) -> int:
        """Bytes by which ``need`` more would be over ``memory_limit``."""
        if self.memory_limit is None:
            return 0
        return max(0, int(mx.get_active_memory()) + need - self.memory_limit)

    def pressed(self) -> int:
        """Bytes that the pressure source wants gone.

        Raises:
            TypeError: The source returns no number.
            ConfigError: It returns NaN or infinity.
        """
        if self.pressure is None:
            return 0
        excess = self.pressure.excess_bytes()
        if isinstance(excess, bool) or not isinstance(excess, Real):
            raise TypeError(
                f"excess_bytes() of the pressure source must return a number, found {type(excess).__name__}"
            )
        if not math.isfinite(real(excess)):
            raise ConfigError(f"excess_bytes() of the pressure source must be finite, found {shown(excess)}")
        return min(max(0, int(excess)), LARGEST)
