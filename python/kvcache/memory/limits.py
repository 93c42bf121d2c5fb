"""Memory limits, resolved for the current device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import mlx.core as mx
import psutil

from kvcache.arguments import LARGEST, number, shown, whole
from kvcache.errors import ConfigError
from kvcache.memory.pressure import PressureSource
from kvcache.sizes import parse_size


def device_memory(info: dict[str, Any]) -> int | None:
    """The device's recommended working set in bytes, else its total memory; None if it reports neither."""
    for name in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        if info.get(name):
            return int(info[name])
    return None


def resolve_memory_limit(limit: float | str | None, info: dict[str, Any], system: int) -> int | None:
    """Converts a ``memory_limit`` to bytes.

    Args:
        limit: An int or a str is a size; a float above 0 and up to 1 is a fraction of the device's memory.
        info: The result of ``mx.device_info``.
        system: The machine's memory in bytes, for devices that report none.

    Raises:
        ConfigError: ``limit`` is neither a size nor a fraction.
    """
    if limit is None:
        return None
    if isinstance(limit, float):
        if not 0 < limit <= 1:
            raise ConfigError(
                f"memory_limit as a float is a fraction and must be above 0 and up to 1, found {limit}; pass "
                "an int for bytes"
            )
        return int((device_memory(info) or system) * limit)
    if isinstance(limit, str) and limit.rstrip().endswith("%"):
        raise ConfigError(f"memory_limit must be a size like '24GB' or a fraction like 0.8, found {limit!r}")
    return parse_size(limit, "memory_limit")


def resolve_max_buffers(limit: int | None, info: dict[str, Any]) -> int | None:
    """The maximum number of arrays; by default 80 % of the device's resource limit, if it reports one.

    MLX aborts the process at that limit (499,000 live buffers on Metal).
    """
    if limit is None:
        resources = info.get("resource_limit")
        return int(resources) * 4 // 5 if resources else None
    return whole("max_buffers", limit)


@dataclass(frozen=True)
class MemoryLimits:
    """All limits of a cache; None means no limit.

    Attributes:
        memory_limit: Limit on MLX's active memory in bytes.
        pressure: Another source of memory pressure; called without any lock held.
        max_bytes: Limit on the ledger in bytes.
        max_buffers: Limit on the number of MLX arrays.
    """

    memory_limit: int | None = None
    pressure: PressureSource | None = None
    max_bytes: int | None = None
    max_buffers: int | None = None

    @classmethod
    def of(
        cls,
        *,
        max_bytes: int | str | None,
        max_buffers: int | None,
        memory_limit: float | str | None,
        pressure: PressureSource | None,
    ) -> Self:
        """Resolves a caller's limits for this device.

        Raises:
            ConfigError: A limit is out of range or unreadable.
            TypeError: A limit has the wrong type, or ``pressure`` is not a pressure source.
        """
        if pressure is not None and (isinstance(pressure, type) or not isinstance(pressure, PressureSource)):
            raise TypeError(
                f"pressure must be an object with a method excess_bytes(), found {shown(pressure)}; "
                "pass an instance such as SystemMemoryPressure()"
            )
        device = mx.device_info()
        return cls(
            resolve_memory_limit(memory_limit, device, psutil.virtual_memory().total),
            pressure,
            None if max_bytes is None else parse_size(max_bytes, "max_bytes"),
            resolve_max_buffers(max_buffers, device),
        )

    @cached_property
    def measured(self) -> bool:
        """Whether any limit requires measuring memory."""
        return self.memory_limit is not None or self.pressure is not None

    def over(self, need: int) -> int:
        """Bytes by which allocating ``need`` more would exceed ``memory_limit``."""
        if self.memory_limit is None:
            return 0
        return max(0, int(mx.get_active_memory()) + need - self.memory_limit)

    def pressed(self) -> int:
        """The pressure source's excess bytes.

        Raises:
            TypeError: The source does not return a number.
            ConfigError: It returns NaN or infinity.
        """
        if self.pressure is None:
            return 0
        rule = "excess_bytes() of the pressure source must return a number"
        returned = self.pressure.excess_bytes()
        excess = number(rule, returned)
        if not math.isfinite(excess):
            raise ConfigError(
                f"excess_bytes() of the pressure source must be finite, found {shown(returned)}"
            )
        return min(max(0, int(excess)), LARGEST)
