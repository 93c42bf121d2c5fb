"""The arrays: sole owner of what the index gave ids to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvcache import arrays
from kvcache.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcache.arrays import Array
    from kvcache.layers.base import Image

# The arrays of all span layers for consecutive tokens, in layer order.
Part = list[arrays.Array]
# One node's tokens: one part, or those of the nodes that it was joined of.
Segment = list[Part]
# The images of all window and state layers after one node's last token, in layer order.
Checkpoint = list["Image"]


@dataclass
class Piece:
    """A segment's part in a hit.

    Attributes:
        segment: Its arrays.
        tokens: Leading tokens used.
        owned: It was taken out of the cache: its arrays go as soon as they are copied.
    """

    segment: list[Array | None]
    tokens: int
    owned: bool = False


@dataclass
class Copies:
    """What a store is going to commit."""

    segments: dict[int, Part]
    checkpoint: tuple[int, Checkpoint] | None


# Parts of a segment from which every store on its path tries to make them fewer.
MANY: Final = 64


class SegmentStore:
    """Segments and checkpoints by id. Decides nothing; not thread-safe by itself.

    Attributes:
        parts: Of each segment, in the order of their tokens; for reading.
        images: Of each checkpoint, in layer order; for reading.
    """

    def __init__(self) -> None:
        self.parts: dict[int, Segment] = {}
        self.images: dict[int, Checkpoint] = {}
        # Parts that are to take the place of a segment's, once the index has agreed.
        self._rewritten: dict[int, Segment] = {}
        # Segments in more than `MANY` parts, and how many were ever joined.
        self.crowded: set[int] = set()
        self.joins = 0

    def put(self, segments: dict[int, Part], checkpoint: tuple[int, Checkpoint] | None) -> None:
        """Takes over the arrays of one commit."""
        self.parts.update({number: [part] for number, part in segments.items()})
        if checkpoint is not None:
            self.images[checkpoint[0]] = checkpoint[1]

    def join(self, number: int, replaced: Sequence[int]) -> None:
        """Puts the parts of several segments under one new id. A second time does nothing."""
        if number not in self.parts:
            self.parts[number] = [part for old in replaced for part in self.parts[old]]
            self.joins += 1
        if len(self.parts[number]) > MANY:
            self.crowded.add(number)
        self.remove(replaced, ())

    def offer(self, number: int, parts: Segment) -> None:
        """Keeps rewritten parts of a segment until :meth:`rewrite`, or :meth:`withdraw`."""
        self._rewritten[number] = parts

    def rewrite(self, number: int) -> list[Array]:
        """Puts rewritten parts in the place of a segment's own, which are handed out."""
        parts = self._rewritten.get(number)
        if parts is None or number not in self.parts:
            return []
        old, self.parts[number] = self.parts[number], parts
        if len(parts) <= MANY:
            self.crowded.discard(number)
        return [array for part in old for array in part]

    def withdraw(self) -> None:
        """Lets go of all offers."""
        self._rewritten.clear()

    def is_parted(self, number: int) -> bool:
        """Whether the segment is there, in several parts."""
        return len(self.parts.get(number, ())) > 1

    def find(self, number: int) -> Segment:
        """The parts under an id; none where the segment is gone or is one with another now."""
        return list(self.parts.get(number, ()))

    def remove(self, segments: Sequence[int], checkpoints: Sequence[int]) -> list[Array]:
        """Hands out the arrays under these ids. Ids without arrays are passed over."""
        found = [array for number in segments for part in self.parts.pop(number, ()) for array in part]
        self.crowded.difference_update(segments)
        found += [
            array for number in checkpoints for image in self.images.pop(number, ()) for array in image.arrays
        ]
        return found

    def remove_all(self) -> list[Array]:
        """Hands out all arrays: the index holds nothing any more."""
        found = [array for segment in self.parts.values() for part in segment for array in part]
        found += [array for images in self.images.values() for image in images for array in image.arrays]
        self.parts.clear()
        self.images.clear()
        self.crowded.clear()
        return found

    def abandon(self) -> None:
        """The cache was collected: its arrays go, and their memory comes back."""
        self.remove_all()
        arrays.clear_pool()

    def totals(self) -> tuple[int, int, int]:
        """(bytes, arrays, segments) that are really held. O(arrays)."""
        held = [array for segment in self.parts.values() for part in segment for array in part]
        held += [array for images in self.images.values() for image in images for array in image.arrays]
        return arrays.nbytes(held), len(held), len(self.parts)

    def check(self, nbytes: int, buffers: int, segments: int, checkpoints: int) -> None:
        """Compares the ledger with the arrays.

        Raises:
            InternalError: They differ.
        """
        held = (*self.totals(), len(self.images))
        ledger = (nbytes, buffers, segments, checkpoints)
        if held != ledger:
            raise InternalError(
                "broken invariant: (bytes, arrays, segments, checkpoints) held are "
                f"{held}, the ledger says {ledger}"
            )


def image_figures(images: Sequence[Image]) -> tuple[int, int, bool]:
    """(bytes, arrays, trimmable) of a checkpoint."""
    held: Iterable[Array] = [array for image in images for array in image.arrays]
    return (
        arrays.nbytes(held),
        sum(len(image.arrays) for image in images),
        all(image.trimmable for image in images),
    )
