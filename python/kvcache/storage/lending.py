"""What a fetch is lent: the arrays of a hit, kept in place by a lease."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from kvcache import arrays
from kvcache.layers.layout import ImageLeaf
from kvcache.storage.segments import Piece

if TYPE_CHECKING:
    from kvcache._core import Acquired, Lease, Match
    from kvcache.layers.base import Image
    from kvcache.layers.layout import Layout
    from kvcache.storage.segments import SegmentStore


@dataclass
class Lent:
    """A hit's arrays under a lease.

    Attributes:
        found: What the lookup found.
        lease: Holds the path; None where all of it was taken.
        layout: The layout of the arrays.
        pieces: Segments from the root down.
        images: The checkpoint's sliding-window and recurrent layers.
        trim: The images are past the hit's length and are trimmed to it.
        remaining: Tokens that the caller is going to add.
        takeable: Tokens that leave the cache as they are handed out.
    """

    found: Match
    lease: Lease | None
    layout: Layout
    pieces: list[Piece]
    images: list[Image]
    trim: bool
    remaining: int
    takeable: int

    @cached_property
    def allocation(self) -> int:
        """Bytes that handing it out adds to what is held, at the peak."""
        images = [arrays.nbytes(image.arrays) for image in self.images]
        return allocation(self.layout, self.found.length, self.remaining, images, self.takeable)


def gather(acquired: Acquired, layout: Layout, segments: SegmentStore, *, tokens: int, takeable: int) -> Lent:
    """The arrays of what was acquired; under the lock. What was taken has no other owner any more.

    Args:
        acquired: The lease of a lookup that found something, or what was taken.
        layout: The layout of its arrays.
        segments: Where they are.
        tokens: Of the whole prompt.
        takeable: As of :class:`Lent`.
    """
    found, taken = acquired.found, acquired.taken
    owned = frozenset(taken.segments) if taken else frozenset()
    pieces = []
    for piece in acquired.pieces:
        number, left = piece.segment, piece.tokens
        for part in segments.parts[number]:
            leading = min(left, part[0].shape[-2] if part else left)
            if leading:
                pieces.append(Piece(list(part), leading, owned=number in owned))
            left -= leading
    stored = segments.images[acquired.checkpoint.id] if acquired.checkpoint else []
    return Lent(
        found=found,
        lease=acquired.lease,
        layout=layout,
        pieces=pieces,
        images=[replace(image, arrays=list(image.arrays)) for image in stored],
        trim=acquired.checkpoint is not None and acquired.checkpoint.position > found.length,
        remaining=tokens - found.length,
        takeable=takeable,
    )


def allocation(layout: Layout, length: int, remaining: int, images: list[int], takeable: int) -> int:
    """Bytes that handing layer caches out adds to what is held, at the peak: their room included.

    Args:
        layout: Their layout.
        length: Tokens that they hold.
        remaining: Tokens that the caller is going to add.
        images: Bytes of each sliding-window or recurrent layer.
        takeable: Tokens that leave the cache as they are handed out. Then layers are handed out one by
            one, and what is let go of makes room for the next.
    """
    held = peak = 0
    left = iter(images)
    for leaf in layout.leaves:
        if isinstance(leaf, ImageLeaf):
            new = old = next(left)
        else:
            # A room is filled with one zero, broadcast.
            new = leaf.adapter.capacity(length, remaining) * leaf.token_bytes + leaf.zero_bytes
            old = takeable * leaf.token_bytes
        peak = max(peak, held + new)
        held += new - old if takeable else new
    return peak
