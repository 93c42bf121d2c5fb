"""All copies of MLX arrays that the cache makes.

Every array the cache holds or hands out is detached: its buffer is exactly its own, no parent
stands behind it, no lazy graph hangs on it, and no ``mx.array`` object is shared with a caller
(``a[i] = ...`` changes an object in place).

KV arrays have the shape ``(1, heads, tokens, width)``: tokens stand on the axis before the last.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

import mlx.core as mx

from kvcache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Array = mx.array

# Bytes from which a CPU buffer is filled by assignment: glibc maps larger ones anew each time.
_ASSIGNED: Final = 32 << 20


def detach(array: Array) -> Array:
    """An exact copy, bit for bit. Lazy until evaluated.

    ``mx.contiguous`` is no such copy: it keeps a parent that is at most 16 KiB larger.
    """
    return mx.array(array)


def cut(array: Array, start: int, end: int) -> Array:
    """A copy of the tokens ``[start, end)``."""
    return detach(array[..., start:end, :])


def join(pieces: Sequence[tuple[Array, int]], capacity: int) -> Array:
    """The leading tokens of each piece one after the other, in one new buffer.

    Large buffers on CPU are filled by assignment, others by concatenation: where the pages of the
    result are new to the process, writing them twice costs less than strided copies do (0.87 of a
    plain copy's bandwidth against 0.80, 64 MB a tensor); where they are not, it costs more (0.50
    against 0.72, 8 MB a tensor). ``benches/memory`` measures both.

    Args:
        pieces: Arrays with the number of leading tokens to take of each.
        capacity: Tokens that the result has room for; those behind the pieces are zero.
    """
    views = [array if tokens == array.shape[-2] else array[..., :tokens, :] for array, tokens in pieces]
    first = views[0]
    shape = (*first.shape[:-2], capacity, first.shape[-1])
    if mx.default_device().type == mx.DeviceType.cpu and prod(shape) * first.dtype.size >= _ASSIGNED:
        joined = mx.zeros(shape, dtype=first.dtype)
        at = 0
        for view in views:
            end = at + view.shape[-2]
            joined[..., at:end, :] = view
            at = end
        return joined
    room = capacity - sum(tokens for _, tokens in pieces)
    if room:
        # One element, broadcast: `mx.zeros` would allocate the room a second time.
        zero = mx.array(0, dtype=first.dtype)
        views.append(mx.broadcast_to(zero, (*shape[:-2], room, shape[-1])))
    return mx.concatenate(views, axis=-2) if len(views) > 1 else detach(first)


def evaluate(arrays: Iterable[Array]) -> None:
    """Computes the arrays now, on the calling thread: a lazy array belongs to its thread's stream.

    Raises:
        ConfigError: An array was made on another thread, and not computed there.
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
    """Gives MLX's pool back, with what kernels have read by now.

    A GPU lets go of that a moment after the result is there.
    """
    mx.synchronize()
    mx.clear_cache()


def nbytes(arrays: Iterable[Array]) -> int:
    """Sum of the arrays' bytes."""
    return sum(array.nbytes for array in arrays)


def is_allocation_failure(error: BaseException) -> bool:
    """Whether MLX or Python could not get memory. MLX says so in the text of a RuntimeError."""
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | ValueError) and ("alloc" in text or "out of memory" in text)
