"""KVCache and ConcatenateKVCache (full-attention layers): keys and values, cut at any token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcache.layers.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvcache.arrays import Array


class KV:
    """``keys``, ``values`` and ``offset``; the buffers may be longer than the offset."""

    def offset(self, cache: Any) -> int:
        if cache.keys is None:
            return 0
        offset = cache.offset
        if type(offset) is int and offset >= 0:
            return offset
        return whole(offset, "offset", cache, reason="offset_mismatch")

    def arrays(self, cache: Any) -> list[Array]:
        return [cache.keys, cache.values]

    def static(self, cache: Any) -> Hashable:  # noqa: ARG002 - part of the contract
        return ()

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        heads = cache.keys.shape[1]
        return heads, cache.keys.shape[-1], cache.values.shape[-1]

    def capacity(self, length: int, remaining: int) -> int:
        return length - -remaining // 256 * 256  # mlx-lm grows its buffers in steps of 256

    def build(self, cls: type, static: Hashable, arrays: Sequence[Array], length: int) -> Any:  # noqa: ARG002
        cache: Any = cls()
        cache.keys, cache.values = arrays
        cache.offset = length
        return cache

    def clear(self, cache: Any) -> None:
        cache.keys = cache.values = None
        cache.offset = 0


class ConcatenateKV(KV):
    """The next update reads the offset off the buffers' length, so they get no spare room."""

    def capacity(self, length: int, remaining: int) -> int:  # noqa: ARG002
        return length
