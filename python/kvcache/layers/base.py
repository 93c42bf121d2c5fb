"""What a kind of layer cache can do: the two contracts that all kinds fulfil.

A *span* layer (full attention) can be cut at any token; the cache keeps its KV in segments.
Everything else, a *window* (sliding-window attention) or a *state* (recurrent), is kept as an
*image* of the whole layer, in checkpoints. What is stored of either is data: arrays, and values that
JSON can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvcache.arrays import Array


class Refusal(Exception):  # noqa: N818 - a refusal is an outcome that ends as a return value
    """A store that cannot be done: reason as in ``Stored.reason``, and a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass
class Image:
    """One window or state layer, as data.

    Attributes:
        arrays: Views of the layer's arrays at first; detached copies once it is stored.
        meta: What ``build`` needs besides the arrays, exactly as JSON gives it back: None, bools, ints,
            finite floats, texts, lists, and dicts whose keys are texts. It is shared by all copies of
            the image and never changed.
        trimmable: The arrays hold all tokens from the first on, in order, on the axis before the last:
            cut there, they serve shorter lengths.
        computed: The arrays are not views: copying them holds them twice for a moment.
    """

    arrays: list[Array]
    meta: Any = None
    trimmable: bool = False
    computed: bool = False


@runtime_checkable
class SpanAdapter(Protocol):
    """Caches whose arrays have the shape ``(1, heads, tokens, width)`` and can be cut anywhere.

    Callers guarantee that ``arrays`` and ``static`` are asked of a cache that holds tokens.
    """

    def offset(self, cache: Any) -> int:
        """Tokens that the cache holds."""

    def arrays(self, cache: Any) -> list[Array]:
        """Its buffers in a fixed order, each with at least ``offset`` tokens."""

    def static(self, cache: Any) -> Hashable:
        """What two caches must agree in to be joined, shapes and dtypes aside."""

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        """Heads and unquantised widths: what a model's caches agree in, quantised or not."""

    def capacity(self, length: int, remaining: int) -> int:
        """Tokens of room for a cache of ``length`` that ``remaining`` are to be added to."""

    def build(self, cls: type, static: Hashable, arrays: Sequence[Array], length: int) -> Any:
        """A new cache that holds the first ``length`` tokens of the arrays and owns them."""

    def clear(self, cache: Any) -> None:
        """Lets go of the arrays: the cache was donated."""


@runtime_checkable
class ImageAdapter(Protocol):
    """Caches that are kept whole, in two halves: ``image`` reads one, ``build`` makes one.

    They may run in different processes, so that everything ``build`` needs is in its arguments.
    """

    def offset(self, cache: Any) -> int | None:
        """Tokens that the cache has seen, or None where it does not know."""

    def image(self, cache: Any) -> Image:
        """Its state: views of its arrays, and data. Raises ``Refusal`` where it cannot be copied."""

    def build(self, cls: type, static: Hashable, meta: Any, arrays: list[Array], length: int | None) -> Any:
        """A new cache that holds what an image holds, and owns the arrays.

        Args:
            cls: The class of cache.
            static: As :meth:`static` gave it.
            meta: As in the image, perhaps read back from JSON. It is not the new cache's to keep or change.
            arrays: Copies of the image's arrays, in the same order.
            length: The number of tokens that the arrays were cut to; None where they are whole. A number
                is given only where the image is trimmable.
        """

    def static(self, cache: Any) -> Hashable:
        """What the layer was made with: a cache of another window belongs to another layout."""

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        """What all caches of one model's layer agree in; None agrees with anything."""

    def clear(self, cache: Any) -> None:
        """Lets go of the arrays: the cache was donated."""


def round_up(tokens: int, step: int) -> int:
    """The smallest multiple of ``step`` that is at least ``tokens``."""
    return -(-tokens // step) * step


def require_single(arrays: Sequence[Array], cls: type) -> None:
    """Refuses a batch: the first axis of each array must be 1.

    Raises:
        Refusal: ``batched``.
    """
    for array in arrays:
        if array.ndim and array.shape[0] != 1:
            raise Refusal(
                "batched",
                f"{cls.__name__} holds a batch of {array.shape[0]}; store one sequence at a time "
                "(Batch caches give single ones by extract)",
            )


def require_rows(arrays: Sequence[Array], rows: int, cls: type) -> None:
    """Refuses a cache that claims more tokens than its buffers hold: tokens are the axis before the last.

    Raises:
        Refusal: ``offset_mismatch``.
    """
    for array in arrays:
        if array.shape[-2] < rows:
            raise Refusal(
                "offset_mismatch",
                f"{cls.__name__} claims {rows} tokens, but a buffer of it holds {array.shape[-2]}",
            )
