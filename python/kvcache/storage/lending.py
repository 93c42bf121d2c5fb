"""Loans: the stored arrays of a hit, kept in place by a lease while a fetch copies them."""

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
class Loan:
    """A hit's arrays under a lease.

    Attributes:
        match: The lookup's result.
        lease: Keeps the path; None if the whole path was taken.
        layout: The layout of the arrays.
        pieces: Segments from the root down.
        images: The checkpoint's sliding-window and recurrent layers.
        trim: The images extend past the hit and must be trimmed to its length.
        remaining: Tokens that the caller is about to add.
        takeable: Tokens that leave the cache as they are copied.
    """

    match: Match
    lease: Lease | None
    layout: Layout
    pieces: list[Piece]
    images: list[Image]
    trim: bool
    remaining: int
    takeable: int

    @cached_property
    def allocation(self) -> int:
        """Peak bytes that copying the loan adds."""
        images = [arrays.nbytes(image.arrays) for image in self.images]
        return allocation(self.layout, self.match.length, self.remaining, images, self.takeable)


def gather(acquired: Acquired, layout: Layout, segments: SegmentStore, *, tokens: int, takeable: int) -> Loan:
    """Collects the arrays of an acquired path; needs the lock. The loan is the sole owner of taken arrays.

    Args:
        acquired: What was leased or taken; it must have a layout.
        layout: The layout of its arrays.
        segments: The stored arrays.
        tokens: Length of the whole prompt.
        takeable: See :class:`Loan`.
    """
    match, taken = acquired.found, acquired.taken
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
    return Loan(
        match=match,
        lease=acquired.lease,
        layout=layout,
        pieces=pieces,
        images=[replace(image, arrays=list(image.arrays)) for image in stored],
        trim=acquired.checkpoint is not None and acquired.checkpoint.position > match.length,
        remaining=tokens - match.length,
        takeable=takeable,
    )


def allocation(layout: Layout, length: int, remaining: int, images: list[int], takeable: int) -> int:
    """Peak bytes that copying stored layers into new caches adds, including room for more tokens.

    Args:
        layout: The layers' layout.
        length: Tokens to copy.
        remaining: Tokens that the caller is about to add.
        images: Bytes of each sliding-window or recurrent layer.
        takeable: Tokens that leave the cache as they are copied. Layers are then copied one at a time,
            and each one released makes room for the next.
    """
    held = peak = 0
    image_bytes = iter(images)
    for leaf in layout.leaves:
        if isinstance(leaf, ImageLeaf):
            new = old = next(image_bytes)
        else:
            # Spare room is filled by broadcasting a single zero.
            new = leaf.adapter.capacity(length, remaining) * leaf.token_bytes + leaf.zero_bytes
            old = takeable * leaf.token_bytes
        peak = max(peak, held + new)
        held += new - old if takeable else new
    return peak
