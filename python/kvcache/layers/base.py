"""The two contracts for layer caches. Each kind of layer implements one of them.

- A full-attention layer, *span* for short, can be cut at any token. Its KV is stored in segments.
- A sliding-window layer (*window*) and a recurrent layer (*state*) cannot. They are stored whole, as an
  *image* of the layer, in checkpoints.

Both are stored as data: arrays, and values that JSON can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvcache.arrays import Array


class Refusal(Exception):  # noqa: N818 - a refusal ends as a return value, not as an error
    """A store that cannot be done.

    Attributes:
        reason: One of the reasons of ``Stored.reason``.
        detail: One sentence that explains it.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass
class Image:
    """One window or state layer, as data.

    Attributes:
        arrays: Views of the layer's arrays; once stored, detached copies.
        meta: Everything else that ``build`` needs, in values that JSON returns unchanged: None, bools,
            ints, finite floats, strings, lists, and dicts with string keys. All copies of the image share
            it; never modify it.
        trimmable: The arrays hold every token from the first one on, in order, on the second to last axis,
            so cutting them there serves shorter lengths.
        computed: The arrays are new, not views, so memory briefly holds them twice while they are copied.
    """

    arrays: list[Array]
    meta: Any = None
    trimmable: bool = False
    computed: bool = False


@runtime_checkable
class SpanAdapter(Protocol):
    """Reads and builds caches whose arrays have shape ``(1, heads, tokens, width)`` and can be cut anywhere.

    The caller guarantees that ``arrays``, ``static`` and ``signature`` get a cache that holds tokens.
    """

    def offset(self, cache: Any) -> int:
        """Number of tokens that the cache holds."""

    def arrays(self, cache: Any) -> list[Array]:
        """The cache's buffers in a fixed order, each with at least ``offset`` tokens."""

    def static(self, cache: Any) -> Hashable:
        """What two caches must have in common to be joined, other than shapes and dtypes."""

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        """Heads and unquantised widths: equal for all caches of one model's layer, quantised or not."""

    def capacity(self, length: int, remaining: int) -> int:
        """Tokens to allocate for a cache of ``length`` tokens that will grow by ``remaining``."""

    def build(self, cls: type, static: Hashable, arrays: Sequence[Array], length: int) -> Any:
        """Makes a new cache of the first ``length`` tokens; it owns the arrays."""

    def clear(self, cache: Any) -> None:
        """Releases the arrays of a donated cache."""


@runtime_checkable
class ImageAdapter(Protocol):
    """Reads (``image``) and builds (``build``) caches that are stored whole.

    The two may run in different processes, so ``build`` gets everything it needs as arguments.
    """

    def offset(self, cache: Any) -> int | None:
        """Number of tokens that the cache has seen; None if it does not count them."""

    def image(self, cache: Any) -> Image:
        """The cache's state as views of its arrays and data. Raises ``Refusal`` if it cannot be copied."""

    def build(self, cls: type, static: Hashable, meta: Any, arrays: list[Array], length: int | None) -> Any:
        """Makes a new cache from an image; it owns the arrays.

        Args:
            cls: The class of cache.
            static: The result of :meth:`static`.
            meta: The image's ``meta``, possibly read back from JSON. The new cache must not keep or modify
                it.
            arrays: Copies of the image's arrays, in the same order.
            length: Number of tokens that the arrays were cut to; None if they are whole. Always None unless
                the image is trimmable.
        """

    def static(self, cache: Any) -> Hashable:
        """The layer's parameters, such as the window size: caches that differ in them have other layouts."""

    def signature(self, cache: Any) -> tuple[Hashable, ...]:
        """Values that are equal for all caches of one model's layer; a None equals anything."""

    def clear(self, cache: Any) -> None:
        """Releases the arrays of a donated cache."""


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
                f"{cls.__name__} holds a batch of {array.shape[0]} sequences; store one at a time "
                "(a Batch cache's extract(i) returns one)",
            )


def require_rows(arrays: Sequence[Array], rows: int, cls: type) -> None:
    """Refuses a cache that claims more tokens than its buffers hold; tokens are the second to last axis.

    Raises:
        Refusal: ``offset_mismatch``.
    """
    for array in arrays:
        if array.shape[-2] < rows:
            raise Refusal(
                "offset_mismatch",
                f"{cls.__name__} claims {rows} tokens, but one of its buffers holds {array.shape[-2]}",
            )
