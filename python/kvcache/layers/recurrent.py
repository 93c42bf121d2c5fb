"""ArraysCache and every class not known: the whole state, copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kvcache.layers.attributes import snapshot, unsupported
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
        require_single([array for array in extra if array is not None], cls)
        present = [array is not None for array in (*slots, *extra)]
        count = len(slots)  # the closure must not keep the caller's arrays

        def rebuild(arrays: list[Array], _: int | None) -> Any:
            left = iter(arrays)
            values = [next(left) if there else None for there in present]
            copy: Any = cls(count)
            copy.cache = values[:count]
            copy.left_padding, copy.lengths = values[count:]
            return copy

        return Image(held + [array for array in extra if array is not None], rebuild)

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
    """A class that nothing is known of: all it keeps is copied, arrays and all.

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
        kept, arrays = snapshot(cache)
        if not arrays:
            raise unsupported(type(cache), "no arrays were found in it")
        return Image(arrays, lambda copies, _: kept.rebuild(copies))

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
