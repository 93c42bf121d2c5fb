"""ArraysCache (recurrent layers) and every unknown class: the whole state, copied."""

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
    """Mamba, gated delta nets, RWKV: a list of states that no token can be cut out of."""

    def offset(self, cache: Any) -> int | None:
        """0 before the first pass; afterwards it knows none."""
        return 0 if all(array is None for array in cache.cache) else None

    def static(self, cache: Any) -> Hashable:
        return (len(cache.cache),)

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        return tuple(_widths(array) for array in cache.cache)

    def image(self, cache: Any) -> Image:
        cls, slots = type(cache), list(cache.cache)
        held = [array for array in slots if array is not None]
        require_single(held, cls)
        extra = [cache.left_padding, cache.lengths]
        more = [array for array in extra if array is not None]
        require_single(more, cls)
        return Image(held + more, {"present": [array is not None for array in (*slots, *extra)]})

    def build(
        self,
        cls: type,
        static: Hashable,
        meta: Any,
        arrays: list[Array],
        length: int | None,  # noqa: ARG002 - never trimmable
    ) -> Any:
        (count,) = cast("tuple[int]", static)
        left = iter(arrays)
        values = [next(left) if there else None for there in meta["present"]]
        cache: Any = cls(count)
        cache.cache = values[:count]
        cache.left_padding, cache.lengths = values[count:]
        return cache

    def clear(self, cache: Any) -> None:
        cache.cache = [None] * len(cache.cache)


def _widths(array: Array | None) -> Hashable:
    """What stays the same however many tokens were run.

    Integers are the last tokens themselves, and fewer of them while there are no more. A
    convolution may keep fewer rows then, too; they are on the second axis of three.
    """
    if array is None or not mx.issubdtype(array.dtype, mx.floating):
        return None
    return array.ndim, *array.shape[1 if array.ndim > 3 else -1 :]


class Opaque:
    """A class that nothing is known about: all it keeps is copied, arrays and all.

    Its own ``state`` and ``from_state`` are not trusted with that: those of some classes forget
    a trim, fail when empty, or do not exist.
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
            raise unsupported(type(cache), "no arrays were found in it")
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
        """A class not known may not stand being emptied: its arrays go with the object."""


class Latents(Opaque):
    """deepseek_v41's LayerCache: a window and compressed latents, all ``(1, tokens, width)``."""

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        return tuple(
            value.shape[-1] if isinstance(value, mx.array) else None for value in vars(cache).values()
        )

    def image(self, cache: Any) -> Image:
        image = super().image(cache)
        require_single(image.arrays, type(cache))
        return image
