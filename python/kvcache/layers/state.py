"""ArraysCache and every class not known: the whole state, copied."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kvcache.layers.base import Image, Refusal, require_single

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kvcache.arrays import Array

_PLAIN = (int, float, complex, str, bytes, bool, type(None), enum.Enum, mx.Dtype)


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
    convolution may keep fewer rows then, too; those stand on the second axis of three.
    """
    if array is None or not mx.issubdtype(array.dtype, mx.floating):
        return None
    return array.ndim, *array.shape[1 if array.ndim > 3 else -1 :]


class Opaque:
    """A class that nothing is known of: its attributes are copied, arrays and all.

    Its own ``state`` and ``from_state`` are not trusted with that: those of some classes forget
    a trim, fail when empty, or do not exist.
    """

    def offset(self, cache: Any) -> int | None:
        offset = getattr(cache, "offset", None)
        return offset if isinstance(offset, int) and not isinstance(offset, bool) else None

    def static(self, cache: Any) -> Hashable:  # noqa: ARG002 - nothing is known
        return ()

    def signature(self, cache: Any) -> tuple[Hashable, ...]:  # noqa: ARG002 - nothing is known
        return ()

    def image(self, cache: Any) -> Image:
        arrays: list[Array] = []
        cls = type(cache)
        if not hasattr(cache, "__dict__"):
            raise _unsupported(cls, "it keeps no attributes that could be copied")
        plan = _collect(vars(cache), arrays, cls, depth=0)
        if not arrays:
            raise _unsupported(cls, "no arrays were found in its attributes")

        def rebuild(copies: list[Array], _: int | None) -> Any:
            copy: Any = object.__new__(cls)
            copy.__dict__.update(_rebuild(plan, copies))
            return copy

        return Image(arrays, rebuild)

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


class _Slot:
    """Stands for the array with this number."""

    def __init__(self, number: int) -> None:
        self.number = number


def _unsupported(cls: type, why: str) -> Refusal:
    return Refusal(
        "unsupported_layer",
        f"{cls.__module__}.{cls.__qualname__} cannot be copied: {why}; "
        "kvcache.layers.register tells how it can",
    )


def _collect(value: Any, arrays: list[Array], cls: type, depth: int) -> Any:
    if isinstance(value, mx.array):
        arrays.append(value)
        return _Slot(len(arrays) - 1)
    if isinstance(value, _PLAIN):
        return value
    if depth < 8:
        if type(value) in (list, tuple):
            return type(value)(_collect(item, arrays, cls, depth + 1) for item in value)
        if type(value) is dict:
            return {key: _collect(item, arrays, cls, depth + 1) for key, item in value.items()}
    raise _unsupported(cls, f"it holds a {type(value).__qualname__}")


def _rebuild(plan: Any, arrays: list[Array]) -> Any:
    if isinstance(plan, _Slot):
        return arrays[plan.number]
    if isinstance(plan, list | tuple):
        return type(plan)(_rebuild(item, arrays) for item in plan)
    if isinstance(plan, dict):
        return {key: _rebuild(item, arrays) for key, item in plan.items()}
    return plan
