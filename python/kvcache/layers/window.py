"""RotatingKVCache and ChunkedKVCache: the last tokens only, kept whole in checkpoints.

Until a window has dropped its first token, its image serves every shorter length too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kvcache.layers.base import Image, require_rows, require_single

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kvcache.arrays import Array


class _Window:
    """What both windows share: keys, values, offset."""

    def offset(self, cache: Any) -> int:
        return 0 if cache.keys is None else int(cache.offset)

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        if cache.keys is None:
            return None, None, None
        return cache.keys.shape[1], cache.keys.shape[-1], cache.values.shape[-1]

    def clear(self, cache: Any) -> None:
        cache.keys = cache.values = None
        cache.offset = 0


class Rotating(_Window):
    """After a long chunk the buffer holds more rows than the window; the image does not."""

    def static(self, cache: Any) -> Hashable:
        return cache.max_size, cache.keep

    def image(self, cache: Any) -> Image:
        cls, offset, keep, max_size = type(cache), cache.offset, cache.keep, cache.max_size
        require_single([cache.keys, cache.values], cls)
        require_rows([cache.keys, cache.values], min(offset, max_size), cls)
        rows = cache.keys.shape[-2]
        whole = offset <= max_size
        index = offset if whole else min(cache._idx, max_size)

        def view(array: Array) -> Array:
            if whole:
                return array[..., :offset, :]
            if rows <= max_size:
                return array
            # Rows beyond the window stand behind a chunk that was appended in order.
            last = array[..., rows - (max_size - keep) :, :]
            return mx.concatenate([array[..., :keep, :], last], axis=-2) if keep else last

        def rebuild(arrays: list[Array], length: int | None) -> Any:
            copy: Any = cls(max_size=max_size, keep=keep)
            copy.keys, copy.values = arrays
            copy.offset = offset if length is None else length
            copy._idx = index if length is None else length
            return copy

        computed = bool(keep) and rows > max_size
        return Image([view(cache.keys), view(cache.values)], rebuild, trimmable=whole, computed=computed)

    def clear(self, cache: Any) -> None:
        super().clear(cache)
        cache._idx = 0


class Chunked(_Window):
    """Cut at the front as ``maybe_trim_front`` will do before the next forward pass."""

    def static(self, cache: Any) -> Hashable:
        return (cache.chunk_size,)

    def image(self, cache: Any) -> Image:
        cls, offset, chunk_size = type(cache), cache.offset, cache.chunk_size
        require_single([cache.keys, cache.values], cls)
        valid = offset - cache.start_position
        require_rows([cache.keys, cache.values], valid, cls)
        front = max(0, valid - chunk_size)
        start = cache.start_position + front

        def rebuild(arrays: list[Array], length: int | None) -> Any:
            copy: Any = cls(chunk_size)
            copy.keys, copy.values = arrays
            copy.offset = offset if length is None else length
            copy.start_position = start
            return copy

        views = [array[..., front:valid, :] for array in (cache.keys, cache.values)]
        return Image(views, rebuild, trimmable=start == 0)

    def clear(self, cache: Any) -> None:
        super().clear(cache)
        cache.start_position = 0
