"""Memory: limits and pressure (what must go) and reclaim (how it comes back)."""

from kvcache.memory.pressure import PressureSource, SystemMemoryPressure

__all__ = ["PressureSource", "SystemMemoryPressure"]
