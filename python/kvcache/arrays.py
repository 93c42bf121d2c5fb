"""Every copy of an MLX array that the cache makes.

Arrays that the cache stores or returns are detached: each has a buffer of its own, exactly as large as the
array, with no parent and no lazy graph. No ``mx.array`` object is shared with a caller, because
``a[i] = ...`` modifies an object in place.

KV arrays have the shape ``(1, heads, tokens, width)``: tokens are the second to last axis.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import mlx.core as mx

from kvcache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Array = mx.array

# CPU buffers of at least this many bytes are filled by assignment: glibc maps fresh pages for each of them.
_ASSIGN_BYTES: Final = 32 << 20


def detach(array: Array) -> Array:
    """A copy that is equal bit for bit; lazy until evaluated.

    ``mx.contiguous`` would not do: it shares the buffer of a parent that is at most 16 KiB larger.
    """
    return mx.array(array)


def cut(array: Array, start: int, end: int) -> Array:
    """A copy of the tokens ``[start, end)``."""
    return detach(array[..., start:end, :])


def join(pieces: Sequence[tuple[Array, int]], capacity: int) -> Array:
    """Joins the leading tokens of each piece in one new buffer.

    Large buffers on CPU are filled by assignment, others by concatenation. If the result's pages are fresh,
    writing them twice is faster than strided copies (0.87 of a plain copy's bandwidth against 0.80, at 64 MB
    a tensor); if they are not, it is slower (0.50 against 0.72, at 8 MB). ``benches/memory`` measures both.

    Args:
        pieces: Arrays, each with the number of leading tokens to use.
        capacity: Tokens that the result has room for; the rest is filled with zeros.
    """
    views = [array if tokens == array.shape[-2] else array[..., :tokens, :] for array, tokens in pieces]
    first = views[0]
    shape = (*first.shape[:-2], capacity, first.shape[-1])
    if mx.default_device().type == mx.DeviceType.cpu and prod(shape) * first.dtype.size >= _ASSIGN_BYTES:
        joined = mx.zeros(shape, dtype=first.dtype)
        at = 0
        for view in views:
            end = at + view.shape[-2]
            joined[..., at:end, :] = view
            at = end
        return joined
    room = capacity - sum(tokens for _, tokens in pieces)
    if room:
        # A broadcast scalar: `mx.zeros` would allocate the spare room a second time.
        zero = mx.array(0, dtype=first.dtype)
        views.append(mx.broadcast_to(zero, (*shape[:-2], room, shape[-1])))
    return mx.concatenate(views, axis=-2) if len(views) > 1 else detach(first)


def evaluate(arrays: Iterable[Array]) -> None:
    """Evaluates the arrays on the calling thread; a lazy array is bound to its own thread's stream.

    Raises:
        ConfigError: An array was made on another thread and never evaluated.
    """
    try:
        mx.eval(list(arrays))
    except RuntimeError as error:
        if "There is no Stream" not in str(error):
            raise
        raise ConfigError(
            f"an array was made on another thread and never computed ({error}); call mx.eval on the prompt "
            "cache's arrays in the thread that ran the model"
        ) from error


def clear_pool() -> None:
    """Frees MLX's pool of unused buffers.

    Waits for the device first: a GPU releases a kernel's inputs shortly after the result is ready.
    """
    mx.synchronize()
    mx.clear_cache()


def nbytes(arrays: Iterable[Array]) -> int:
    """Total bytes of the arrays."""
    return sum(array.nbytes for array in arrays)


def is_allocation_failure(error: BaseException) -> bool:
    """Whether MLX or Python ran out of memory; MLX raises a RuntimeError and says so in its text."""
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | ValueError) and ("alloc" in text or "out of memory" in text)
