"""MLX's counters."""

from __future__ import annotations

import mlx.core as mx


def active() -> int:
    return mx.get_active_memory()


def footprint() -> int:
    """Active and cached: what the machine is short of."""
    return mx.get_active_memory() + mx.get_cache_memory()


def peak_from_here() -> None:
    mx.reset_peak_memory()


def peak() -> int:
    return mx.get_peak_memory()
