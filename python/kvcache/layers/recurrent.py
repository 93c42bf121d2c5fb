"""ArraysCache (recurrent layers) and unknown classes: the whole state is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx

from kvcache.layers.attributes import rebuild, snapshot, unsupported
from kvcache.layers.base import Image, require_single
from kvcache.layers.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kvcache.arrays import Array


class Arrays:
    """Mamba, gated delta nets, RWKV: a list of states, from which no token can be removed."""

    def offset(self, cache: Any) -> int | None:
        """0 before the first pass, unknown afterwards."""
        return 0 if all(array is None for array in cache.cache) else None

    def static(self, cache: Any) -> Hashable:
        return (len(cache.cache),)

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        return tuple(_widths(array) for array in cache.cache)

    def image(self, cache: Any) -> Image:
        cls, slots = type(cache), list(cache.cache)
        states = [array for array in slots if array is not None]
        require_single(states, cls)
        padding = [cache.left_padding, cache.lengths]
        paddings = [array for array in padding if array is not None]
        require_single(paddings, cls)
        return Image(states + paddings, {"present": [array is not None for array in (*slots, *padding)]})

    def build(
        self,
        cls: type,
        static: Hashable,
        meta: Any,
        arrays: list[Array],
        length: int | None,  # noqa: ARG002 - never trimmable
    ) -> Any:
        (count,) = cast("tuple[int]", static)
        remaining = iter(arrays)
        values = [next(remaining) if present else None for present in meta["present"]]
        cache: Any = cls(count)
        cache.cache = values[:count]
        cache.left_padding, cache.lengths = values[count:]
        return cache

    def clear(self, cache: Any) -> None:
        cache.cache = [None] * len(cache.cache)


def _widths(array: Array | None) -> Hashable:
    """The dimensions that do not depend on how many tokens were run.

    Integer arrays hold the last token ids, and fewer of them early on. A convolution may then hold fewer
    rows, too; those are the second of three axes.
    """
    if array is None or not mx.issubdtype(array.dtype, mx.floating):
        return None
    return array.ndim, *array.shape[1 if array.ndim > 3 else -1 :]


class Opaque:
    """An unknown class: all its attributes and arrays are copied.

    Its own ``state`` and ``from_state`` are not used: in some classes they forget a trim, fail on an empty
    cache, or do not exist.
    """

    def offset(self, cache: Any) -> int | None:
        offset = getattr(cache, "offset", None)
        if offset is None or callable(offset):
            return None
        return whole(offset, "offset", cache, reason="offset_mismatch")

    def static(self, cache: Any) -> Hashable:  # noqa: ARG002 - nothing is known
        return ()

    def signature(self, cache: Any) -> tuple[Hashable, ...]:  # noqa: ARG002 - nothing is known
        return ()

    def image(self, cache: Any) -> Image:
        meta, arrays = snapshot(cache)
        if not arrays:
            raise unsupported(type(cache), "it holds no arrays")
        return Image(arrays, meta)

    def build(
        self,
        cls: type,
        static: Hashable,  # noqa: ARG002 - nothing is known
        meta: Any,
        arrays: list[Array],
        length: int | None,  # noqa: ARG002 - never trimmable
    ) -> Any:
        return rebuild(cls, meta, arrays)

    def clear(self, cache: Any) -> None:
        """Does nothing: an unknown class may not work once emptied. Its arrays are freed with the object."""


class Latents(Opaque):
    """deepseek_v41's LayerCache: a window and compressed latents, each ``(1, tokens, width)``."""

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        return tuple(
            value.shape[-1] if isinstance(value, mx.array) else None for value in vars(cache).values()
        )

    def image(self, cache: Any) -> Image:
        image = super().image(cache)
        require_single(image.arrays, type(cache))
        return image
