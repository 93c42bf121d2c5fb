"""Reads a caller's prompt cache: its layout, its length, and views of the arrays to copy."""

from __future__ import annotations

import json
import operator
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kvcache.arrays import detach
from kvcache.errors import InternalError
from kvcache.layers.attributes import snapshot, unsupported
from kvcache.layers.base import Image, Refusal, SpanAdapter, require_rows, require_single
from kvcache.layers.data import require_json
from kvcache.layers.layout import ImageLeaf, Layout, Leaf, Shape, SpanLeaf
from kvcache.layers.numbers import whole
from kvcache.layers.recurrent import Opaque
from kvcache.layers.registry import adapter_of, is_batched, is_known, is_list
from kvcache.layers.window import Window

if TYPE_CHECKING:
    from kvcache.arrays import Array
    from kvcache.layers.registry import Adapter


class Prompt:
    """The layer caches of one sequence, flattened. Neither changes nor copies anything.

    An instance serves one store and caches what it reads.

    Raises:
        TypeError: The prompt cache is not a list.
        Refusal: Some layer cannot be stored.
    """

    def __init__(self, prompt_cache: Any) -> None:
        if not isinstance(prompt_cache, list | tuple):
            raise TypeError(
                "prompt_cache must be a list of layer caches, as from make_prompt_cache, "
                f"found {type(prompt_cache).__name__}"
            )
        self.caches: list[Any] = []
        self.adapters: list[Adapter] = []
        self._list_cls: type | None = None
        self._numbers: dict[int, int] = {}
        self._images: list[Image] | None = None
        self._shape = tuple(self._flatten(member) for member in prompt_cache)
        self.offsets = [
            _offset(adapter, cache) for adapter, cache in zip(self.adapters, self.caches, strict=True)
        ]

    def _flatten(self, cache: Any) -> Shape:
        cls = type(cache)
        # Layers that share KV have the same cache object in several places: it is one leaf.
        if id(cache) in self._numbers:
            return self._numbers[id(cache)]
        if is_list(cls):
            self._list_cls = cls
            return tuple(self._flatten(member) for member in cache.caches)
        if is_batched(cls):
            raise Refusal(
                "batched",
                f"{cls.__name__} holds several sequences; store each one that its extract() returns",
            )
        self.caches.append(cache)
        self.adapters.append(adapter_of(cls))
        self._numbers[id(cache)] = number = len(self.caches) - 1
        return number

    @property
    def spans_only(self) -> bool:
        """Whether every layer can be cut at any token."""
        return all(isinstance(adapter, SpanAdapter) for adapter in self.adapters)

    @property
    def knows_length(self) -> bool:
        """Whether some layer counts its tokens."""
        return any(offset is not None for offset in self.offsets)

    def length(self, tokens: int, requested: int | None) -> int:
        """How many tokens of a key of ``tokens`` to store.

        The layers' common offset, or ``requested`` if every layer can be cut there. If no layer knows its
        offset, ``requested``; without it the whole key for now, since in a group a layer of another rank may
        know the length.

        Raises:
            Refusal: ``offset_mismatch``, ``key_too_short`` or ``empty``.
        """
        known = [offset for offset in self.offsets if offset is not None]
        if not self.caches or (known and not any(known)):
            raise Refusal("empty", "the prompt cache holds no tokens; run the model on it before the store")
        if known:
            low, high = min(known), max(known)
        else:
            low = high = tokens if requested is None else requested
        if requested is not None:
            if requested > low or (requested < high and not self.spans_only):
                limit = f"can be cut only up to {low}" if self.spans_only else "cannot all be cut"
                raise Refusal(
                    "offset_mismatch",
                    f"length={requested} was requested, but the layers have offsets from {low} to {high} and "
                    f"{limit}",
                )
            low = high = requested
        if low != high:
            raise Refusal(
                "offset_mismatch",
                f"the layers are out of step, with offsets from {low} to {high}; pass length= to cut "
                "full-attention layers",
            )
        if low > tokens:
            raise Refusal(
                "key_too_short",
                f"{tokens} tokens are too few for a cache that holds {low}; pass all tokens that were run",
            )
        if low == 0:
            raise Refusal("empty", "no tokens to store: the key is empty or length is 0")
        return low

    def layout(self) -> Layout:
        """The layers' layout. Raises ``Refusal`` for a batch, or for arrays that cannot be KV."""
        pairs = zip(self.adapters, self.caches, strict=True)
        leaves = tuple(_leaf(adapter, cache) for adapter, cache in pairs)
        return Layout(leaves, self._shape, self._list_cls)

    def images(self) -> list[Image]:
        """The window and state layers in order; read once. Raises ``Refusal`` if one cannot be copied."""
        if self._images is None:
            pairs = zip(self.adapters, self.caches, strict=True)
            self._images = [
                adapter.image(cache) for adapter, cache in pairs if not isinstance(adapter, SpanAdapter)
            ]
        return self._images

    def forget_images(self) -> None:
        """Releases the images' arrays; computed ones are as large as their copies."""
        for image in self._images or ():
            image.arrays.clear()
        self._images = None

    def arrays(self) -> list[Array]:
        """The caller's own arrays that a store may copy; evaluating them makes no copies."""
        arrays: list[Array] = []
        images = iter(self.images())
        for adapter, cache in zip(self.adapters, self.caches, strict=True):
            if isinstance(adapter, SpanAdapter):
                arrays += adapter.arrays(cache)
                continue
            image = next(images)
            arrays += [cache.keys, cache.values] if isinstance(adapter, Window) else image.arrays
        return arrays

    def require_rebuild(self) -> None:
        """Builds each layer that is not of mlx-lm's own class once, with arrays that are never computed.

        Otherwise a layer that cannot be built would be stored, and every fetch of it would fail.

        Raises:
            Refusal: ``unsupported_layer``.
        """
        images = iter(self.images())
        for adapter, cache, offset in zip(self.adapters, self.caches, self.offsets, strict=True):
            image = None if isinstance(adapter, SpanAdapter) else next(images)
            if not is_known(type(cache)):
                _require_rebuild(adapter, cache, offset or 0, image)

    def clear(self) -> None:
        """Releases all arrays of a donated prompt cache."""
        self.forget_images()
        for adapter, cache in zip(self.adapters, self.caches, strict=True):
            adapter.clear(cache)


def _offset(adapter: Adapter, cache: Any) -> int | None:
    offset = adapter.offset(cache)
    if offset is None or (type(offset) is int and offset >= 0):
        return offset
    return whole(offset, "offset", cache, reason="offset_mismatch")


def _require_rebuild(adapter: Adapter, cache: Any, offset: int, image: Image | None) -> None:
    cls, static = type(cache), adapter.static(cache)
    try:
        if isinstance(adapter, SpanAdapter):
            views = [array[..., :offset, :] for array in adapter.arrays(cache)]
            adapter.build(cls, static, views, offset)
            return
        if image is None:
            raise InternalError("a window or state layer came without its image")
        copies = [detach(array) for array in image.arrays]
        # Passed through JSON, as another process would read it.
        meta = require_json(image.meta)
        copy = adapter.build(cls, static, meta, list(copies), None)
        if isinstance(adapter, Opaque):
            after, arrays = snapshot(copy)
            same = len(copies) == len(arrays) and all(map(operator.is_, copies, arrays))
            if not same or json.dumps(after) != json.dumps(meta):
                raise unsupported(cls, "a copy does not hold the same values")
    except (Refusal, InternalError):
        raise
    except Exception as error:
        raise unsupported(cls, f"building a copy failed ({type(error).__name__}: {error})") from error


def _leaf(adapter: Adapter, cache: Any) -> Leaf:
    cls = type(cache)
    if not isinstance(adapter, SpanAdapter):
        return ImageLeaf(cls, adapter.static(cache), adapter.signature(cache), adapter)
    buffers, offset = adapter.arrays(cache), adapter.offset(cache)
    for buffer in buffers:
        shape = buffer.shape if isinstance(buffer, mx.array) else None
        if shape is None or len(shape) != 4:
            found = type(buffer).__name__ if shape is None else f"arrays of shape {shape}"
            raise Refusal(
                "unsupported_layer",
                f"{cls.__module__}.{cls.__qualname__} holds {found}; arrays of a full-attention (span) layer "
                "must have the shape (1, heads, tokens, width)",
            )
        if shape[0] != 1:
            require_single(buffers, cls)
        if shape[-2] < offset:
            require_rows(buffers, offset, cls)
    specs = tuple((buffer.shape[1], buffer.shape[-1], buffer.dtype) for buffer in buffers)
    return SpanLeaf(cls, adapter.static(cache), specs, adapter.signature(cache), adapter)
