"""Memory: limits and pressure (how much to free) and reclaim (how to free it)."""

from kvcache.memory.pressure import PressureSource, SystemMemoryPressure

__all__ = ["PressureSource", "SystemMemoryPressure"]
