"""Counts what is asked of Python's collector and of MLX's pool."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Reclaims:
    """Calls so far."""

    collections: int = 0
    clearings: int = 0


@pytest.fixture
def reclaims() -> Iterator[Reclaims]:
    counted = Reclaims()
    collect, clear = gc.collect, mx.clear_cache

    def counted_collect(*arguments: int) -> int:
        counted.collections += 1
        return collect(*arguments)

    def counted_clear() -> None:
        counted.clearings += 1
        clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", counted_collect)
        patch.setattr(mx, "clear_cache", counted_clear)
        yield counted


@pytest.fixture
def pool() -> None:
    """MLX's pool as it is by default: what is dropped stays cached until somebody clears it."""
    mx.set_cache_limit(1 << 30)
