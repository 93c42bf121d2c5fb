"""The exceptions of kvcache. Refusals and misses are return values, not exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcache.eviction import Eviction


class KVCacheError(Exception):
    """Base of all errors that kvcache raises on purpose."""


class TokenError(KVCacheError, ValueError):
    """A token id outside 0..2³¹-1, or tokens of the wrong shape; names position and value."""


class ConfigError(KVCacheError, ValueError):
    """A parameter that cannot be used: an unreadable size, a negative number, a bad span."""


class ClosedError(KVCacheError):
    """The cache was closed."""


class BusyError(KVCacheError):
    """A signal handler or a finalizer called in the middle of another call of the same thread.

    The call could not be served and changed nothing. ``close`` and the end of a session never raise it:
    they are carried out when the interrupted call ends. Figures (``stats``, ``nbytes``, ``len``) and
    ``peek`` are always served.
    """


class InternalError(KVCacheError):
    """A broken invariant: a defect of kvcache, worth a report."""


class RankError(KVCacheError):
    """Another rank of the group failed; nothing was done on this one."""


class AllocationError(KVCacheError, MemoryError):
    """Memory for a copy could not be had, not even after an eviction.

    Attributes:
        evicted: What was evicted in the attempt.
    """

    def __init__(self, message: str, evicted: Eviction) -> None:
        super().__init__(message)
        self.evicted = evicted


def no_mlx(error: ImportError) -> str:
    """What to do where MLX cannot be imported: on Linux it is in an extra, since it depends on the device."""
    return (
        f"MLX cannot be imported here ({error}); install mlx on a Mac, "
        "on Linux kvcache[cpu], kvcache[cuda12] or kvcache[cuda13]"
    )
