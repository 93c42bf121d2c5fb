"""The only place where tests look inside a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.memory.limits import MemoryLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    import mlx.core as mx

    from kvcache import KVPrefixCache, PressureSource
    from kvcache._core import CacheIndex, SectionLock
    from kvcache.layers.base import Image
    from kvcache.ranks.group import Ranks
    from kvcache.storage.contents import Contents
    from kvcache.storage.segments import Segment


def contents(cache: KVPrefixCache) -> Contents:
    """Index, arrays and lock."""
    return cache._context.contents


def index(cache: KVPrefixCache) -> CacheIndex:
    """The native index."""
    return cache._context.contents.index


def lock(cache: KVPrefixCache) -> SectionLock:
    """The cache's lock."""
    return cache._context.contents.lock


def ranks(cache: KVPrefixCache) -> Ranks:
    """What agrees with other ranks, and counts how often."""
    return cache._context.ranks


def closed(cache: KVPrefixCache) -> bool:
    """Whether the cache was closed."""
    return cache._context.contents.closed


def limit(cache: KVPrefixCache, memory_limit: int | None, pressure: PressureSource | None = None) -> None:
    """Other limits on MLX's memory than the cache was made with."""
    cache._context.limits = MemoryLimits(memory_limit, pressure)


def memory_limit(cache: KVPrefixCache) -> int | None:
    """The limit on MLX's active memory."""
    return cache._context.limits.memory_limit


def segments(cache: KVPrefixCache) -> dict[int, Segment]:
    """Parts by segment id."""
    return cache._context.contents.segments.parts


def checkpoints(cache: KVPrefixCache) -> dict[int, list[Image]]:
    """Images by checkpoint id."""
    return cache._context.contents.segments.images


def stored_arrays(cache: KVPrefixCache) -> Iterator[mx.array]:
    """Every array that a cache holds."""
    for segment in segments(cache).values():
        for part in segment:
            yield from part
    for checkpoint in checkpoints(cache).values():
        for image in checkpoint:
            yield from image.arrays
