"""A caller's prompt cache, read: its layout, its length, and views of what is to be copied."""

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
    """The layer caches of one sequence, flattened. Changes nothing; copies nothing.

    It is for one store: what it has read once it does not read again.

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
        self._numbers: dict[int, int] = {}
        self._images: list[Image] | None = None
        self._shape = tuple(self._flatten(member) for member in prompt_cache)
        self.offsets = [
            _offset(adapter, cache) for adapter, cache in zip(self.adapters, self.caches, strict=True)
        ]

    def _flatten(self, cache: Any) -> Shape:
        cls = type(cache)
        # A model whose layers share KV has one object at several places: it is one leaf.
        if id(cache) in self._numbers:
            return self._numbers[id(cache)]
        if is_list(cls):
            self._list_cls = cls
            return tuple(self._flatten(member) for member in cache.caches)
        if is_batched(cls):
            raise Refusal(
                "batched", f"{cls.__name__} holds several sequences; store what its extract() gives"
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

    def length(self, tokens: int, asked: int | None) -> int:
        """How many tokens of a key of ``tokens`` this cache is to be stored for.

        The layers' common offset; ``asked`` where the caller says so and every layer can be cut
        there. Where no layer knows an offset, ``asked``, and without it all of the key for now: only
        a layer of another rank can say whether that is right.

        Raises:
            Refusal: ``offset_mismatch``, ``key_too_short`` or ``empty``.
        """
        known = [offset for offset in self.offsets if offset is not None]
        if not self.caches or (known and not any(known)):
            raise Refusal("empty", "the prompt cache holds no tokens")
        if known:
            low, high = min(known), max(known)
        else:
            low = high = tokens if asked is None else asked
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
        """The window and state layers, in order; read once. Raises ``Refusal`` where one cannot be copied."""
        if self._images is None:
            pairs = zip(self.adapters, self.caches, strict=True)
            self._images = [
                adapter.image(cache) for adapter, cache in pairs if not isinstance(adapter, SpanAdapter)
            ]
        return self._images

    def forget_images(self) -> None:
        """Lets go of the images' arrays: those that are computed are as large as their copies."""
        for image in self._images or ():
            image.arrays.clear()
        self._images = None

    def arrays(self) -> list[Array]:
        """All that a store may copy, as the caller's own arrays: evaluating them makes no copies."""
        found: list[Array] = []
        images = iter(self.images())
        for adapter, cache in zip(self.adapters, self.caches, strict=True):
            if isinstance(adapter, SpanAdapter):
                found += adapter.arrays(cache)
                continue
            image = next(images)
            found += [cache.keys, cache.values] if isinstance(adapter, Window) else image.arrays
        return found

    def require_rebuild(self) -> None:
        """Builds each layer of a class that is not mlx-lm's own once, around arrays that are never computed.

        What cannot be built would be stored, and then fail at every fetch.

        Raises:
            Refusal: ``unsupported_layer``.
        """
        images = iter(self.images())
        for adapter, cache, offset in zip(self.adapters, self.caches, self.offsets, strict=True):
            image = None if isinstance(adapter, SpanAdapter) else next(images)
            if not is_known(type(cache)):
                _require_rebuild(adapter, cache, offset or 0, image)

    def clear(self) -> None:
        """Lets go of all arrays: the prompt cache was donated."""
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
            raise InternalError("a layer that is kept whole came without its image")
        copies = [detach(array) for array in image.arrays]
        # As another process would read it.
        meta = require_json(image.meta)
        copy = adapter.build(cls, static, meta, list(copies), None)
        if isinstance(adapter, Opaque):
            after, arrays = snapshot(copy)
            same = len(copies) == len(arrays) and all(map(operator.is_, copies, arrays))
            if not same or json.dumps(after) != json.dumps(meta):
                raise unsupported(cls, "a copy of it does not keep the same")
    except (Refusal, InternalError):
        raise
    except Exception as error:
        raise unsupported(cls, f"it cannot be built again ({type(error).__name__}: {error})") from error


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
                f"{cls.__module__}.{cls.__qualname__} holds {found}; "
                "a span layer's arrays are (1, heads, tokens, width)",
            )
        if shape[0] != 1:
            require_single(buffers, cls)
        if shape[-2] < offset:
            require_rows(buffers, offset, cls)
    specs = tuple((buffer.shape[1], buffer.shape[-1], buffer.dtype) for buffer in buffers)
    return SpanLeaf(cls, adapter.static(cache), specs, adapter.signature(cache), adapter)
