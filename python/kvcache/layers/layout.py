"""The layout of a prompt cache: the classes of its layers in order, with their parameters.

``to_data`` writes a layout for another process, ``from_data`` reads it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvcache.errors import InternalError
from kvcache.layers.base import ImageAdapter, Refusal, SpanAdapter
from kvcache.layers.data import decode, encode
from kvcache.layers.registry import adapter_of, class_name, class_named
from kvcache.layers.scalars import DataError, dtype_name, dtype_named

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mlx.core import Dtype


@dataclass(frozen=True)
class SpanLeaf:
    """One span layer: its class and the form of its segments.

    Attributes:
        cls: The class of cache.
        static: What two caches must have in common other than their arrays (quantisation).
        arrays: (heads, width, dtype) of each array.
        signature: What all caches of one model's layer have in common, quantised or not.
        adapter: Builds the cache. Not hashed: a user's adapter may not be hashable.
    """

    cls: type
    static: Hashable
    arrays: tuple[tuple[int, int, Dtype], ...]
    signature: tuple[Hashable, ...]
    adapter: SpanAdapter = field(hash=False, repr=False)

    @cached_property
    def zero_bytes(self) -> int:
        """Bytes of one element of each array."""
        return sum(dtype.size for _, _, dtype in self.arrays)

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of one token's KV."""
        return sum(heads * width * dtype.size for heads, width, dtype in self.arrays)

    def to_data(self) -> dict[str, Any]:
        return {
            "kind": "span",
            **_common(self),
            "arrays": [[heads, width, dtype_name(dtype)] for heads, width, dtype in self.arrays],
        }


@dataclass(frozen=True)
class ImageLeaf:
    """One window or state layer. Array shapes are not compared, since images are stored whole.

    Attributes:
        cls: The class of cache.
        static: The layer's parameters (window size, kept tokens).
        signature: What all caches of one model's layer have in common.
        adapter: Builds the cache. Not hashed, as above; compared, since only it can read its images.
    """

    cls: type
    static: Hashable
    signature: tuple[Hashable, ...] = field(compare=False)
    adapter: ImageAdapter = field(hash=False, repr=False)

    def to_data(self) -> dict[str, Any]:
        return {"kind": "image", **_common(self)}


Leaf = SpanLeaf | ImageLeaf
# The number of a leaf, or the members of a CacheList.
Shape = int | tuple["Shape", ...]


@dataclass(frozen=True)
class Layout:
    """The leaves in order, and how CacheLists group them."""

    leaves: tuple[Leaf, ...]
    shape: tuple[Shape, ...]
    list_cls: type | None = field(default=None, compare=False)

    @cached_property
    def spans(self) -> tuple[SpanLeaf, ...]:
        """The span layers, in order."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, SpanLeaf))

    @cached_property
    def checkpointed(self) -> bool:
        """Whether a stored prefix can be reused only at checkpoints."""
        return len(self.spans) < len(self.leaves)

    @cached_property
    def token_bytes(self) -> int:
        """Bytes of one token's KV over all span layers."""
        return sum(leaf.token_bytes for leaf in self.spans)

    @cached_property
    def segment_buffers(self) -> int:
        """Arrays of one segment."""
        return sum(len(leaf.arrays) for leaf in self.spans)

    def mismatch(self, other: Layout) -> str:
        """Says why the other layout cannot belong to the same model; empty if it can."""
        if len(self.leaves) != len(other.leaves) or _sizes(self.shape) != _sizes(other.shape):
            return f"{len(other.leaves)} layer caches where the namespace holds {len(self.leaves)}"
        for number, (mine, theirs) in enumerate(zip(self.leaves, other.leaves, strict=True)):
            if not _agree(mine.signature, theirs.signature):
                return (
                    f"layer cache {number} ({theirs.cls.__name__}) has heads and widths {theirs.signature} "
                    f"where the namespace holds {mine.signature}"
                )
        return ""

    def group(self, caches: list[Any]) -> list[Any]:
        """Groups the leaves' caches into CacheLists as in the original prompt cache."""
        return [_place(shape, caches, self.list_cls) for shape in self.shape]

    def to_data(self) -> dict[str, Any]:
        """The layout as JSON-able data, with classes by full name. Equal layouts give equal data.

        Raises:
            Refusal: ``unsupported_layer``: a class is neither mlx-lm's nor registered, or an adapter returned
                a value that cannot be written.
        """
        return {
            "leaves": [leaf.to_data() for leaf in self.leaves],
            "shape": [_shape_data(shape) for shape in self.shape],
            "list": None if self.list_cls is None else class_name(self.list_cls),
        }

    @classmethod
    def from_data(cls, data: Any) -> Layout:
        """Reads a layout that :meth:`to_data` wrote in this or another process.

        Raises:
            Refusal: ``unsupported_layer``: a class is not registered here or is registered as another kind,
                or the data is malformed.
        """
        try:
            leaves = tuple(map(_leaf, data["leaves"]))
            list_cls = None if data["list"] is None else class_named(data["list"])
            return cls(leaves, tuple(_shape(shape, len(leaves)) for shape in data["shape"]), list_cls)
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(
                "unsupported_layer", f"the layout is malformed ({type(error).__name__}: {error})"
            ) from error


def _common(leaf: Leaf) -> dict[str, Any]:
    name = class_name(leaf.cls)
    try:
        return {"class": name, "static": encode(leaf.static), "signature": encode(leaf.signature)}
    except DataError as error:
        raise Refusal("unsupported_layer", f"a layer of {name} cannot be written as data: {error}") from error


def _leaf(data: Any) -> Leaf:
    cls, kind = class_named(data["class"]), data["kind"]
    adapter = adapter_of(cls)
    static, signature = decode(data["static"]), decode(data["signature"])
    hash(static)
    if kind == "image" and not isinstance(adapter, SpanAdapter):
        return ImageLeaf(cls, static, signature, adapter)
    if kind == "span" and isinstance(adapter, SpanAdapter):
        arrays = tuple((int(heads), int(width), dtype_named(dtype)) for heads, width, dtype in data["arrays"])
        return SpanLeaf(cls, static, arrays, signature, adapter)
    raise Refusal(
        "unsupported_layer",
        f"{data['class']} is registered as another kind here; where the layout was written it was {kind!r}",
    )


def _shape_data(shape: Shape) -> Any:
    return shape if isinstance(shape, int) else [_shape_data(member) for member in shape]


def _shape(data: Any, leaves: int) -> Shape:
    if isinstance(data, list):
        return tuple(_shape(member, leaves) for member in data)
    if type(data) is not int or not 0 <= data < leaves:
        raise ValueError(f"{data!r} is not the number of a layer")
    return data


# Not a recursive closure, which would be a reference cycle around the caller's caches.
def _place(shape: Shape, caches: list[Any], list_cls: type | None) -> Any:
    if isinstance(shape, int):
        return caches[shape]
    if list_cls is None:
        raise InternalError("a layout with nested members has no list class to group them")
    return list_cls(*(_place(member, caches, list_cls) for member in shape))


def _sizes(shape: Shape) -> Any:
    return 0 if isinstance(shape, int) else tuple(_sizes(member) for member in shape)


def _agree(mine: tuple[Hashable, ...], theirs: tuple[Hashable, ...]) -> bool:
    """Whether known values are equal; None is an array that was not computed yet."""
    if len(mine) != len(theirs):
        return False
    return all(a == b or a is None or b is None for a, b in zip(mine, theirs, strict=True))
