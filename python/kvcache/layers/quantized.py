"""QuantizedKVCache: keys and values are three arrays each (packed, scales, biases)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kvcache.layers.kv import KV

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvcache.arrays import Array


class QuantizedKV(KV):
    """The parts come as tuples or lists, since ``mx.quantize`` returns a list."""

    def arrays(self, cache: Any) -> list[Array]:
        return [*cache.keys, *cache.values]

    def static(self, cache: Any) -> Hashable:
        return int(cache.group_size), int(cache.bits)

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        keys, values = cache.keys[0], cache.values[0]
        widths = (round(array.shape[-1] * 32 / cache.bits) for array in (keys, values))
        return keys.shape[1], *widths

    def build(self, cls: type, static: Hashable, arrays: Sequence[Array], length: int) -> Any:
        group_size, bits = cast("tuple[int, int]", static)
        cache: Any = cls(group_size=group_size, bits=bits)
        half = len(arrays) // 2
        cache.keys, cache.values = tuple(arrays[:half]), tuple(arrays[half:])
        cache.offset = length
        return cache
