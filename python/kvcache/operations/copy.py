"""The copies of a fetch and a store, layer by layer.

A fetch joins segments into new buffers; a store cuts a caller's buffers into segments. With ``take`` and
``donate``, each layer is released before the next is copied, so peak memory grows by one layer instead of
the whole context.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcache import arrays
from kvcache.layers.base import SpanAdapter
from kvcache.layers.layout import ImageLeaf
from kvcache.storage.segments import Copies, Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache._core import Planned
    from kvcache.arrays import Array
    from kvcache.layers.base import Image
    from kvcache.layers.layout import Layout
    from kvcache.layers.prompt_cache import Prompt
    from kvcache.storage.segments import Part, Segment


def join(
    layout: Layout,
    pieces: Sequence[Piece],
    images: Sequence[Image],
    length: int,
    trim: bool,
    remaining: int,
    frugal: bool,
) -> list[Any]:
    """Builds a prompt cache of ``length`` tokens with arrays of its own.

    Args:
        layout: The layout of the pieces and images.
        pieces: Segments from the root down.
        images: The checkpoint's window and state layers; the caller owns their lists of arrays.
        length: Tokens to copy.
        trim: The images extend past ``length`` and must be trimmed to it.
        remaining: Tokens that the caller is about to add; spare room is allocated for them.
        frugal: Copy layer by layer, releasing owned arrays and clearing MLX's pool in between.
    """
    caches: list[Any] = []
    made: list[Array] = []
    spans_at, images_at = 0, 0
    for leaf in layout.leaves:
        if isinstance(leaf, ImageLeaf):
            caches.append(_restore(leaf, images[images_at], length if trim else None, made))
            images_at += 1
        else:
            numbers = range(spans_at, spans_at + len(leaf.arrays))
            capacity = leaf.adapter.capacity(length, remaining)
            joined = [_join_one(pieces, number, capacity) for number in numbers]
            spans_at += len(leaf.arrays)
            made.extend(joined)
            caches.append(leaf.adapter.build(leaf.cls, leaf.static, joined, length))
            del joined
        if frugal:
            arrays.evaluate(made)
            made.clear()
            if isinstance(leaf, ImageLeaf):
                images[images_at - 1].arrays.clear()
            else:
                for piece in pieces:
                    if piece.owned:
                        piece.segment[spans_at - len(leaf.arrays) : spans_at] = [None] * len(leaf.arrays)
            arrays.clear_pool()
    arrays.evaluate(made)
    return layout.group(caches)


def _join_one(pieces: Sequence[Piece], number: int, capacity: int) -> Array:
    parts = [(array, piece.tokens) for piece in pieces if (array := piece.segment[number]) is not None]
    return arrays.join(parts, capacity)


def _restore(leaf: ImageLeaf, image: Image, length: int | None, made: list[Array]) -> Any:
    views = image.arrays if length is None else [array[..., :length, :] for array in image.arrays]
    copies = [arrays.detach(view) for view in views]
    made.extend(copies)
    return leaf.adapter.build(leaf.cls, leaf.static, image.meta, copies, length)


def cut(
    planned: Planned, prompt: Prompt, images: list[Image], split_parts: Segment | None, donate: bool
) -> Copies:
    """Copies what a plan asks for: new segments, the two halves of a split, a checkpoint.

    Args:
        planned: The plan.
        prompt: The caller's cache, at least as long as the plan.
        images: Its window and state layers.
        split_parts: The parts of the segment to split, if any.
        donate: Release the caller's layers one by one.
    """
    segments: dict[int, Part] = {new.segment: [] for new in planned.segments}
    if planned.split is not None and split_parts is not None:
        upper, lower, at = planned.split.upper, planned.split.lower, planned.split.at
        segments[upper], segments[lower] = _split(split_parts, at)
        arrays.evaluate([*segments[upper], *segments[lower]])
    made: list[Array] = []
    stored: list[Image] = []
    remaining_images = iter(images)
    for adapter, cache in zip(prompt.adapters, prompt.caches, strict=True):
        if isinstance(adapter, SpanAdapter):
            made.extend(_cut_layer(adapter.arrays(cache), planned, segments))
        else:
            image = next(remaining_images)
            copies = [arrays.detach(array) for array in image.arrays]
            made.extend(copies)
            stored.append(replace(image, arrays=copies, computed=False))
            if donate:
                image.arrays.clear()
        if donate:
            arrays.evaluate(made)
            made.clear()
            adapter.clear(cache)
            arrays.clear_pool()
    arrays.evaluate(made)
    checkpoint = None if planned.checkpoint is None else (planned.checkpoint, stored)
    return Copies(segments, checkpoint)


def cut_bytes(
    tokens: int, layout: Layout, images: Sequence[Image], split_parts: Segment | None, *, donate: bool
) -> int:
    """Peak bytes that :func:`cut` adds: new tokens, images, and the two halves of a split.

    A donated layer is released once it is copied, so only the largest one counts.
    """
    layers = [tokens * leaf.token_bytes for leaf in layout.spans]
    layers += [arrays.nbytes(image.arrays) * (2 if image.computed else 1) for image in images]
    return segment_bytes(split_parts) + (max(layers, default=0) if donate else sum(layers))


def segment_bytes(segment: Segment | None) -> int:
    """Bytes of a segment's arrays."""
    return sum(arrays.nbytes(part) for part in segment or ())


def _split(parts: Segment, at: int) -> tuple[Part, Part]:
    """Copies a segment's first ``at`` tokens into one part and the rest into another."""
    upper: Part = []
    lower: Part = []
    for pieces in zip(*parts, strict=True):
        views: tuple[list[Array], list[Array]] = ([], [])
        start = 0
        for piece in pieces:
            cut = min(max(at - start, 0), piece.shape[-2])
            start += piece.shape[-2]
            views[0].append(piece[..., :cut, :])
            views[1].append(piece[..., cut:, :])
        for half, slices in zip((upper, lower), views, strict=True):
            used = [(array, array.shape[-2]) for array in slices if array.shape[-2]]
            half.append(arrays.join(used, sum(tokens for _, tokens in used)))
    return upper, lower


def _cut_layer(buffers: list[Array], planned: Planned, segments: dict[int, Part]) -> list[Array]:
    made = []
    for buffer in buffers:
        for number, start, end in ((new.segment, new.start, new.end) for new in planned.segments):
            copy = arrays.cut(buffer, start, end)
            segments[number].append(copy)
            made.append(copy)
    return made
