"""What tests read of a cache's inside, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.core as mx

    from kvcache import KVPrefixCache


def stored_arrays(cache: KVPrefixCache) -> Iterator[mx.array]:
    """Every array that a cache holds."""
    store = cache._state.segments
    for segment in store._segments.values():
        for part in segment:
            yield from part
    for checkpoint in store._checkpoints.values():
        for image in checkpoint:
            yield from image.arrays
