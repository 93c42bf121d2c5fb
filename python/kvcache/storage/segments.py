"""The stored arrays by segment and checkpoint id. :class:`SegmentStore` is their only owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvcache import arrays
from kvcache.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcache.arrays import Array
    from kvcache.layers.base import Image

# The arrays of all span layers for a run of consecutive tokens, in layer order.
Part = list[arrays.Array]
# One node's tokens: a single part, or one part for each of the nodes that were joined into it.
Segment = list[Part]
# The images of all window and state layers after a node's last token, in layer order.
Checkpoint = list["Image"]


@dataclass
class Piece:
    """The part of a hit that comes from one part of a segment.

    Attributes:
        segment: Its arrays.
        tokens: Number of leading tokens used.
        owned: Taken out of the cache: its arrays are released as soon as they are copied.
    """

    segment: list[Array | None]
    tokens: int
    owned: bool = False


@dataclass
class Copies:
    """The arrays that a store is about to commit."""

    segments: dict[int, Part]
    checkpoint: tuple[int, Checkpoint] | None

    def added_bytes(self, segments: Iterable[int]) -> int:
        """Bytes of these segments and of the checkpoint; the halves of a split are not new."""
        images = 0 if self.checkpoint is None else image_figures(self.checkpoint[1])[0]
        return arrays.nbytes([array for number in segments for array in self.segments[number]]) + images


# Every store whose path contains a segment of more parts than this tries to merge them.
FRAGMENTED: Final = 64


class SegmentStore:
    """Segments and checkpoints by id. Makes no decisions; not thread-safe.

    Attributes:
        parts: Each segment's parts in token order; read-only.
        images: Each checkpoint's images in layer order; read-only.
        fragmented: Segments of more than ``FRAGMENTED`` parts.
        joins: Number of joins so far.
    """

    def __init__(self) -> None:
        self.parts: dict[int, Segment] = {}
        self.images: dict[int, Checkpoint] = {}
        # Replacement parts, used once the index accepts them.
        self._staged: dict[int, Segment] = {}
        self.fragmented: set[int] = set()
        self.joins = 0

    def put(self, segments: dict[int, Part], checkpoint: tuple[int, Checkpoint] | None) -> None:
        """Takes ownership of the arrays of one commit."""
        self.parts.update({number: [part] for number, part in segments.items()})
        if checkpoint is not None:
            self.images[checkpoint[0]] = checkpoint[1]

    def join(self, number: int, replaced: Sequence[int]) -> None:
        """Moves the parts of several segments to one new id. Repeating it does nothing."""
        if number not in self.parts:
            self.parts[number] = [part for old in replaced for part in self.parts[old]]
            self.joins += 1
        if len(self.parts[number]) > FRAGMENTED:
            self.fragmented.add(number)
        self.remove(replaced, ())

    def stage(self, number: int, parts: Segment) -> None:
        """Holds a segment's replacement parts until :meth:`apply_staged` or :meth:`discard_staged`."""
        self._staged[number] = parts

    def apply_staged(self, number: int) -> list[Array]:
        """Replaces a segment's parts with the staged ones and returns the old arrays."""
        parts = self._staged.get(number)
        if parts is None or number not in self.parts:
            return []
        old, self.parts[number] = self.parts[number], parts
        if len(parts) <= FRAGMENTED:
            self.fragmented.discard(number)
        return [array for part in old for array in part]

    def discard_staged(self) -> None:
        """Releases all staged parts."""
        self._staged.clear()

    def is_multipart(self, number: int) -> bool:
        """Whether the segment is held and has more than one part."""
        return len(self.parts.get(number, ())) > 1

    def parts_of(self, number: int) -> Segment:
        """A segment's parts; empty if it was evicted or joined with another."""
        return list(self.parts.get(number, ()))

    def remove(self, segments: Sequence[int], checkpoints: Sequence[int]) -> list[Array]:
        """Removes these ids and returns their arrays. Unknown ids are skipped."""
        removed = [array for number in segments for part in self.parts.pop(number, ()) for array in part]
        self.fragmented.difference_update(segments)
        removed += [
            array for number in checkpoints for image in self.images.pop(number, ()) for array in image.arrays
        ]
        return removed

    def remove_all(self) -> list[Array]:
        """Removes and returns all arrays; the index must be empty."""
        removed = [array for segment in self.parts.values() for part in segment for array in part]
        removed += [array for images in self.images.values() for image in images for array in image.arrays]
        self.parts.clear()
        self.images.clear()
        self.fragmented.clear()
        return removed

    def release_all(self) -> None:
        """Frees all memory: the finalizer of a cache that was garbage-collected without a close."""
        self.remove_all()
        arrays.clear_pool()

    def totals(self) -> tuple[int, int, int]:
        """(bytes, arrays, segments) actually held. O(arrays)."""
        held = [array for segment in self.parts.values() for part in segment for array in part]
        held += [array for images in self.images.values() for image in images for array in image.arrays]
        return arrays.nbytes(held), len(held), len(self.parts)

    def check(self, nbytes: int, buffers: int, segments: int, checkpoints: int) -> None:
        """Compares the ledger's figures with the arrays.

        Raises:
            InternalError: They differ.
        """
        held = (*self.totals(), len(self.images))
        ledger = (nbytes, buffers, segments, checkpoints)
        if held != ledger:
            raise InternalError(
                "broken invariant: the ledger counts (bytes, arrays, segments, checkpoints) = "
                f"{ledger}, the arrays held are {held}"
            )


def image_figures(images: Sequence[Image]) -> tuple[int, int, bool]:
    """(bytes, arrays, trimmable) of a checkpoint made of these images."""
    held: Iterable[Array] = [array for image in images for array in image.arrays]
    return (
        arrays.nbytes(held),
        sum(len(image.arrays) for image in images),
        all(image.trimmable for image in images),
    )
