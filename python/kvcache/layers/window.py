"""RotatingKVCache and ChunkedKVCache (sliding-window layers): the last tokens, stored in checkpoints.

Until a window drops its first token, its image also serves every shorter length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx

from kvcache.layers.base import Image, Refusal, require_rows, require_single
from kvcache.layers.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kvcache.arrays import Array


class Window:
    """Keys, values and offset, which both classes have."""

    def offset(self, cache: Any) -> int:
        return 0 if cache.keys is None else whole(cache.offset, "offset", cache, reason="offset_mismatch")

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        if cache.keys is None:
            return None, None, None
        return cache.keys.shape[1], cache.keys.shape[-1], cache.values.shape[-1]

    def clear(self, cache: Any) -> None:
        cache.keys = cache.values = None
        cache.offset = 0

    def require_whole(self, cache: Any, rows: int) -> None:
        """Refuses a batch, too few rows, and keys and values left at different lengths."""
        sides = [cache.keys, cache.values]
        require_single(sides, type(cache))
        require_rows(sides, rows, type(cache))
        keys, values = (side.shape[-2] for side in sides)
        if keys != values:
            raise Refusal(
                "offset_mismatch",
                f"{type(cache).__name__} holds {keys} rows of keys but {values} of values: an update was "
                "interrupted",
            )


class Rotating(Window):
    """RotatingKVCache. After a long chunk its buffer exceeds the window; the image never does."""

    def static(self, cache: Any) -> Hashable:
        return self._sizes(cache)

    def _sizes(self, cache: Any) -> tuple[int, int]:
        max_size = whole(cache.max_size, "max_size", cache, least=1)
        keep = whole(cache.keep, "keep", cache)
        if keep >= max_size:
            raise Refusal(
                "unsupported_layer",
                f"keep of a {type(cache).__name__} must be below its window of {max_size}, found {keep}",
            )
        return max_size, keep

    def image(self, cache: Any) -> Image:
        offset, (max_size, keep) = self.offset(cache), self._sizes(cache)
        self.require_whole(cache, min(offset, max_size))
        rows = cache.keys.shape[-2]
        whole_window = offset <= max_size
        at = whole(cache._idx, "_idx", cache, reason="offset_mismatch")
        if at > rows:
            raise Refusal(
                "offset_mismatch",
                f"{type(cache).__name__} would write next at row {at} of {rows}: an update was interrupted",
            )
        if not whole_window and rows > max_size and at != rows:
            raise Refusal(
                "offset_mismatch",
                f"{type(cache).__name__} would write next at row {at} of {rows}: it was trimmed after it "
                "dropped tokens",
            )
        index = offset if whole_window else min(at, max_size)

        def view(array: Array) -> Array:
            if whole_window:
                return array[..., :offset, :]
            if rows <= max_size:
                return array
            # A buffer longer than the window ends with a chunk that was appended in order.
            last = array[..., rows - (max_size - keep) :, :]
            return mx.concatenate([array[..., :keep, :], last], axis=-2) if keep else last

        views = [view(cache.keys), view(cache.values)]
        return Image(
            views,
            {"offset": offset, "index": index},
            trimmable=whole_window,
            computed=bool(keep) and rows > max_size,
        )

    def build(self, cls: type, static: Hashable, meta: Any, arrays: list[Array], length: int | None) -> Any:
        max_size, keep = cast("tuple[int, int]", static)
        cache: Any = cls(max_size=max_size, keep=keep)
        cache.keys, cache.values = arrays
        cache.offset = meta["offset"] if length is None else length
        cache._idx = meta["index"] if length is None else length
        return cache

    def clear(self, cache: Any) -> None:
        super().clear(cache)
        cache._idx = 0


class Chunked(Window):
    """ChunkedKVCache, cut at the front as ``maybe_trim_front`` does before the next forward pass."""

    def static(self, cache: Any) -> Hashable:
        return (whole(cache.chunk_size, "chunk_size", cache, least=1),)

    def image(self, cache: Any) -> Image:
        offset = self.offset(cache)
        chunk_size = whole(cache.chunk_size, "chunk_size", cache, least=1)
        first = whole(cache.start_position, "start_position", cache, reason="offset_mismatch")
        if first > offset:
            raise Refusal(
                "offset_mismatch", f"{type(cache).__name__} starts at {first}, past its offset of {offset}"
            )
        valid = offset - first
        if first and valid < chunk_size:
            # The class always reports that it is trimmable, and speculative decoding relies on it.
            raise Refusal(
                "offset_mismatch",
                f"{type(cache).__name__} holds {valid} tokens of a chunk of {chunk_size}: it was trimmed "
                "after it dropped tokens",
            )
        self.require_whole(cache, valid)
        front = max(0, valid - chunk_size)
        start = first + front
        views = [array[..., front:valid, :] for array in (cache.keys, cache.values)]
        return Image(views, {"offset": offset, "start_position": start}, trimmable=start == 0)

    def build(self, cls: type, static: Hashable, meta: Any, arrays: list[Array], length: int | None) -> Any:
        (chunk_size,) = cast("tuple[int]", static)
        cache: Any = cls(chunk_size)
        cache.keys, cache.values = arrays
        cache.offset = meta["offset"] if length is None else length
        cache.start_position = meta["start_position"]
        return cache

    def clear(self, cache: Any) -> None:
        super().clear(cache)
        cache.start_position = 0
