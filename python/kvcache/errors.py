"""The exceptions that kvcache raises. Refusals and misses are return values, not exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcache.eviction import Eviction


class KVCacheError(Exception):
    """Base class of all kvcache errors."""


class TokenError(KVCacheError, ValueError):
    """A token id outside 0..2³¹-1, or tokens of the wrong shape; the message names position and value."""


class ConfigError(KVCacheError, ValueError):
    """An invalid parameter, such as an unreadable size, a negative number or overlapping media spans."""


class ClosedError(KVCacheError):
    """The cache is closed."""


class BusyError(KVCacheError):
    """A signal handler or a finalizer made a call in the middle of another call of the same thread.

    The call could not run and changed nothing. ``close`` and the end of a session never raise it; they run
    when the interrupted call ends. Figures (``stats``, ``nbytes``, ``len``) and ``peek`` always work.
    """


class InternalError(KVCacheError):
    """A broken invariant: a bug in kvcache. Please report it."""


class RankError(KVCacheError):
    """Another rank of the group failed; this rank did nothing."""


class AllocationError(KVCacheError, MemoryError):
    """There was not enough memory for a copy, even after an eviction.

    Attributes:
        evicted: What was evicted in the attempt.
    """

    def __init__(self, message: str, evicted: Eviction) -> None:
        super().__init__(message)
        self.evicted = evicted


def no_mlx(error: ImportError) -> str:
    """The message for a failed import of MLX; on Linux MLX comes with an extra that depends on the device."""
    return (
        f"MLX cannot be imported here ({error}); install mlx on macOS, or kvcache[cpu], kvcache[cuda12] or "
        "kvcache[cuda13] on Linux"
    )
