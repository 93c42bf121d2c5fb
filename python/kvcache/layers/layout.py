"""The layout of a prompt cache: which classes it has in which order, and what they agree in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcache.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from mlx.core import Dtype

    from kvcache.layers.base import SpanAdapter


@dataclass(frozen=True)
class SpanLeaf:
    """One span layer: its class and what its segments look like.

    Attributes:
        cls: The class of cache.
        static: What two caches must agree in beside the arrays (quantisation).
        arrays: (heads, width, dtype) of each array.
        signature: What caches of one model agree in, quantised or not.
        adapter: How to rebuild it.
    """

    cls: type
    static: Hashable
    arrays: tuple[tuple[int, int, Dtype], ...]
    signature: tuple[Hashable, ...]
    adapter: SpanAdapter = field(compare=False, repr=False)


@dataclass(frozen=True)
class ImageLeaf:
    """One window or state layer. Its widths do not tell layouts apart, since images are whole.

    Attributes:
        cls: The class of cache.
        static: What the layer was made with (window size, kept tokens).
        signature: What caches of one model agree in.
    """

    cls: type
    static: Hashable
    signature: tuple[Hashable, ...] = field(compare=False)


Leaf = SpanLeaf | ImageLeaf
# A leaf's number, or the members of a CacheList.
Shape = int | tuple["Shape", ...]


@dataclass(frozen=True)
class Layout:
    """Leaves in order, and how CacheLists group them."""

    leaves: tuple[Leaf, ...]
    shape: tuple[Shape, ...]
    list_cls: type | None = field(default=None, compare=False)

    @property
    def spans(self) -> Iterator[SpanLeaf]:
        return (leaf for leaf in self.leaves if isinstance(leaf, SpanLeaf))

    @property
    def checkpointed(self) -> bool:
        """Whether it is usable at checkpoints only."""
        return any(isinstance(leaf, ImageLeaf) for leaf in self.leaves)

    def mismatch(self, other: Layout) -> str:
        """Why the other cannot be of the same model; empty where it can."""
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
        """The leaves' caches put into CacheLists as they came out of them."""
        return [_place(shape, caches, self.list_cls) for shape in self.shape]


# No closure that calls itself: it would be a reference cycle around the caller's caches.
def _place(shape: Shape, caches: list[Any], list_cls: type | None) -> Any:
    if isinstance(shape, int):
        return caches[shape]
    if list_cls is None:
        raise InternalError("a layout with members lacks the class of list that groups them")
    return list_cls(*(_place(member, caches, list_cls) for member in shape))


def _sizes(shape: Shape) -> Any:
    return 0 if isinstance(shape, int) else tuple(_sizes(member) for member in shape)


def _agree(mine: tuple[Hashable, ...], theirs: tuple[Hashable, ...]) -> bool:
    """Equal where both know: None stands for a state that had not been computed yet."""
    if len(mine) != len(theirs):
        return False
    return all(a == b or a is None or b is None for a, b in zip(mine, theirs, strict=True))
