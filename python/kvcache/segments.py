"""The arrays: sole owner of what the index gave ids to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from kvcache import arrays
from kvcache.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcache.arrays import Array
    from kvcache.layers.base import Image

# The arrays of all span layers for one node's tokens, in layer order.
Segment = list[arrays.Array]
# The images of all window and state layers after one node's last token, in layer order.
Checkpoint = list["Image"]


class SegmentStore:
    """Segments and checkpoints by id. Decides nothing; not thread-safe by itself."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._checkpoints: dict[int, Checkpoint] = {}

    def put(self, segments: dict[int, Segment], checkpoint: tuple[int, Checkpoint] | None) -> None:
        """Takes over the arrays of one commit."""
        self._segments.update(segments)
        if checkpoint is not None:
            self._checkpoints[checkpoint[0]] = checkpoint[1]

    def segment(self, number: int) -> Segment:
        """The arrays under an id. The list is the store's own."""
        return self._segments[number]

    def checkpoint(self, number: int) -> Checkpoint:
        """The images under an id."""
        return self._checkpoints[number]

    def remove(self, segments: Iterable[int], checkpoints: Iterable[int]) -> list[Array]:
        """Hands out the arrays under these ids. Ids without arrays are passed over."""
        found = [array for number in segments for array in self._segments.pop(number, ())]
        found += [
            array
            for number in checkpoints
            for image in self._checkpoints.pop(number, ())
            for array in image.arrays
        ]
        return found

    def remove_all(self) -> list[Array]:
        """Hands out all arrays: the index holds nothing any more."""
        found = [array for segment in self._segments.values() for array in segment]
        found += [
            array for images in self._checkpoints.values() for image in images for array in image.arrays
        ]
        self._segments.clear()
        self._checkpoints.clear()
        return found

    def abandon(self) -> None:
        """The cache was collected: its arrays go, and their memory comes back."""
        self.remove_all()
        mx.clear_cache()

    def totals(self) -> tuple[int, int, int]:
        """(bytes, arrays, segments) that are really held. O(arrays)."""
        held = [array for segment in self._segments.values() for array in segment]
        held += [array for images in self._checkpoints.values() for image in images for array in image.arrays]
        return arrays.nbytes(held), len(held), len(self._segments)

    def check(self, nbytes: int, buffers: int, segments: int, checkpoints: int) -> None:
        """Compares the ledger with the arrays.

        Raises:
            InternalError: They differ.
        """
        held = (*self.totals(), len(self._checkpoints))
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
