"""A caller's prompt cache, read: its layout, its length, and views of what is to be copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kvcache.layers.base import Image, ImageAdapter, Refusal, SpanAdapter, require_rows, require_single
from kvcache.layers.layout import ImageLeaf, Layout, Leaf, Shape, SpanLeaf
from kvcache.layers.registry import adapter_of, is_batched, is_list

if TYPE_CHECKING:
    from kvcache.arrays import Array
    from kvcache.layers.registry import Adapter


class Prompt:
    """The layer caches of one sequence, flattened. Changes nothing; copies nothing.

    Raises:
        TypeError: The prompt cache is no list.
        Refusal: Some layer cannot be stored.
    """

    def __init__(self, prompt_cache: Any) -> None:
        if not isinstance(prompt_cache, list | tuple):
            raise TypeError(
                "prompt_cache must be a list of layer caches as make_prompt_cache gives, "
                f"found {type(prompt_cache).__name__}"
            )
        self.caches: list[Any] = []
        self.adapters: list[Adapter] = []
        self._list_cls: type | None = None
        self._shape = tuple(self._flatten(member) for member in prompt_cache)
        self.offsets = [
            adapter.offset(cache) for adapter, cache in zip(self.adapters, self.caches, strict=True)
        ]

    def _flatten(self, cache: Any) -> Shape:
        cls = type(cache)
        if is_list(cls):
            self._list_cls = cls
            return tuple(self._flatten(member) for member in cache.caches)
        if is_batched(cls):
            raise Refusal(
                "batched", f"{cls.__name__} holds several sequences; store what its extract() gives"
            )
        self.caches.append(cache)
        self.adapters.append(adapter_of(cls))
        return len(self.caches) - 1

    @property
    def spans_only(self) -> bool:
        """Whether every layer can be cut at any token."""
        return all(isinstance(adapter, SpanAdapter) for adapter in self.adapters)

    @property
    def knows_length(self) -> bool:
        """Whether some layer counts its tokens."""
        return any(offset is not None for offset in self.offsets)

    def length(self, tokens: int, asked: int | None) -> int:
        """How many tokens of a key of ``tokens`` this cache is to be stored for.

        The layers' common offset; ``tokens`` where no layer knows one; ``asked`` where the caller
        says so and every layer can be cut there.

        Raises:
            Refusal: ``offset_mismatch``, ``key_too_short`` or ``empty``.
        """
        known = [offset for offset in self.offsets if offset is not None]
        if not self.caches or (known and not any(known)):
            raise Refusal("empty", "the prompt cache holds no tokens")
        low, high = (min(known), max(known)) if known else (tokens, tokens)
        if low < 0:
            raise Refusal("offset_mismatch", f"a layer claims {low} tokens")
        if asked is not None:
            if asked > low or (asked < high and not self.spans_only):
                can = (
                    f"every layer can be cut at up to {low}"
                    if self.spans_only
                    else "this cache cannot be cut"
                )
                raise Refusal("offset_mismatch", f"length={asked} asked, but {can} (offsets {low} to {high})")
            low = high = asked
        if low != high:
            raise Refusal(
                "offset_mismatch",
                f"the layers are out of step: offsets from {low} to {high}; say length= to cut span layers",
            )
        if low > tokens:
            raise Refusal("key_too_short", f"{tokens} tokens are too few for a cache that holds {low}")
        if low == 0:
            raise Refusal("empty", "the prompt cache holds no tokens")
        return low

    def layout(self) -> Layout:
        """Raises ``Refusal`` for a batch or for arrays that are no KV."""
        pairs = zip(self.adapters, self.caches, strict=True)
        leaves = tuple(_leaf(adapter, cache) for adapter, cache in pairs)
        return Layout(leaves, self._shape, self._list_cls)

    def images(self) -> list[Image]:
        """The window and state layers, in order. Raises ``Refusal`` where one cannot be copied."""
        pairs = zip(self.adapters, self.caches, strict=True)
        return [adapter.image(cache) for adapter, cache in pairs if isinstance(adapter, ImageAdapter)]

    def arrays(self) -> list[Array]:
        """All that a store may copy, as views."""
        pairs = zip(self.adapters, self.caches, strict=True)
        return [
            array
            for adapter, cache in pairs
            for array in (
                adapter.arrays(cache) if isinstance(adapter, SpanAdapter) else adapter.image(cache).arrays
            )
        ]

    def clear(self) -> None:
        """Lets go of all arrays: the prompt cache was donated."""
        for adapter, cache in zip(self.adapters, self.caches, strict=True):
            adapter.clear(cache)


def _leaf(adapter: Adapter, cache: Any) -> Leaf:
    cls = type(cache)
    if isinstance(adapter, ImageAdapter):
        return ImageLeaf(cls, adapter.static(cache), adapter.signature(cache))
    buffers = adapter.arrays(cache)
    for buffer in buffers:
        shape = buffer.shape if isinstance(buffer, mx.array) else None
        if shape is None or len(shape) != 4:
            found = type(buffer).__name__ if shape is None else f"arrays of shape {shape}"
            raise Refusal(
                "unsupported_layer",
                f"{cls.__module__}.{cls.__qualname__} holds {found}; "
                "a span layer's arrays are (1, heads, tokens, width)",
            )
    require_single(buffers, cls)
    require_rows(buffers, adapter.offset(cache), cls)
    specs = tuple((buffer.shape[1], buffer.shape[-1], buffer.dtype) for buffer in buffers)
    return SpanLeaf(cls, adapter.static(cache), specs, adapter.signature(cache), adapter)


def leaf_bytes(leaf: SpanLeaf) -> int:
    """Bytes of one token's KV in a span layer."""
    return sum(heads * width * dtype.size for heads, width, dtype in leaf.arrays)


def token_bytes(layout: Layout) -> int:
    """Bytes of one token's KV over all span layers."""
    return sum(map(leaf_bytes, layout.spans))


def segment_buffers(layout: Layout) -> int:
    """Arrays of one segment."""
    return sum(len(leaf.arrays) for leaf in layout.spans)
