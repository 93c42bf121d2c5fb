"""QuantizedKVCache (full-attention layers): keys and values, three arrays each (packed, scales, biases)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kvcache.layers.base import Refusal
from kvcache.layers.kv import KV
from kvcache.layers.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvcache.arrays import Array


class QuantizedKV(KV):
    """Keys and values are tuples, or lists as ``mx.quantize`` returns them."""

    def arrays(self, cache: Any) -> list[Array]:
        return [*cache.keys, *cache.values]

    def static(self, cache: Any) -> Hashable:
        return self._quantization(cache)

    def _quantization(self, cache: Any) -> tuple[int, int]:
        group_size = whole(cache.group_size, "group_size", cache, least=1)
        return group_size, whole(cache.bits, "bits", cache, least=1)

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        group_size, bits = self._quantization(cache)
        widths = []
        for packed, scales, *_ in (cache.keys, cache.values):
            width = scales.shape[-1] * group_size
            if packed.shape[-1] * 32 != width * bits:
                raise Refusal(
                    "unsupported_layer",
                    f"a {type(cache).__name__} claims {bits} bits in groups of {group_size}, but its packed "
                    f"values are {packed.shape[-1]} wide and its scales {scales.shape[-1]}",
                )
            widths.append(width)
        return cache.keys[0].shape[1], *widths

    def build(self, cls: type, static: Hashable, arrays: Sequence[Array], length: int) -> Any:
        group_size, bits = cast("tuple[int, int]", static)
        cache: Any = cls(group_size=group_size, bits=bits)
        half = len(arrays) // 2
        cache.keys, cache.values = tuple(arrays[:half]), tuple(arrays[half:])
        cache.offset = length
        return cache
