"""Array work that may run out of memory: evicts and retries once, in agreement with all ranks."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kvcache.arrays import clear_pool, is_allocation_failure
from kvcache.errors import AllocationError, RankError
from kvcache.eviction import Eviction
from kvcache.operations.evict import Need, evict
from kvcache.ranks.bids import OutcomeBid
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache.operations.context import Context

T = TypeVar("T")

# Outcomes of array work, worst first: ranks agree on the smallest.
FAILED: Final = 0
UNALLOCATED: Final = 1
SUCCEEDED: Final = 2


class Attempt(Generic[T]):
    """One run of array work.

    Attributes:
        status: How it ended.
        failure: MLX's message if the allocation failed.
    """

    def __init__(self, action: Callable[[], T]) -> None:
        self.status = SUCCEEDED
        self.failure = ""
        self._error: Exception | None = None
        self._result: list[T] = []
        try:
            self._result.append(action())
        except Exception as error:  # noqa: BLE001 - kept for `reraise`
            if is_allocation_failure(error):
                # The frames reference the arrays made so far.
                traceback.clear_frames(error.__traceback__)
                self.status, self.failure = UNALLOCATED, str(error) or type(error).__name__
            else:
                self.status, self._error = FAILED, error

    def result(self) -> T:
        """What the work returned; only if it succeeded."""
        return self._result[0]

    def discard_error(self) -> str:
        """Releases the exception and returns its description."""
        error, self._error = self._error, None
        if error is None:
            return self.failure
        # The error's frames reference this object: keeping the error would be a cycle around arrays.
        traceback.clear_frames(error.__traceback__)
        return f"{type(error).__name__}: {error}"

    def reraise(self) -> None:
        """Raises the work's exception, if there is one."""
        if self._error is not None:
            # The error's frames reference this object: keeping the error would be a cycle around arrays.
            try:
                raise self._error
            finally:
                self._error = None


def allocate(
    context: Context, action: Callable[[], T], nbytes: int, task: str, *, repeatable: bool
) -> tuple[T, Eviction]:
    """Runs array work. If an allocation fails, evicts ``nbytes``, reclaims and tries once more.

    The work succeeds only if it succeeds on all ranks.

    Args:
        context: The cache's internals.
        action: The work. If ``repeatable``, it must change nothing unless it succeeds.
        nbytes: Bytes that it allocates.
        task: Names the work in error messages.
        repeatable: Whether the work can run a second time.

    Raises:
        AllocationError: There is not enough memory, even after the eviction.
        RankError: The work failed on another rank.
    """
    attempt = Attempt(action)
    if _outcome(context, attempt, task) == SUCCEEDED:
        return attempt.result(), Eviction()
    short = 0 if attempt.status == SUCCEEDED else max(1, nbytes)
    evicted = evict(context, lambda _: Need(nbytes=short))
    if repeatable:
        if attempt.status != SUCCEEDED:
            clear_pool()
            attempt = Attempt(action)
        if _outcome(context, attempt, task) == SUCCEEDED:
            return attempt.result(), evicted
    raise AllocationError(
        f"{task} needs {format_size(nbytes)}, which could not be allocated "
        f"({attempt.failure or 'on another rank'}) even after evicting {format_size(evicted.nbytes)}; "
        "lower max_bytes or memory_limit",
        evicted,
    )


def _outcome(context: Context, attempt: Attempt[T], task: str) -> int:
    """The worst outcome over all ranks; raises if the work failed on any rank other than for memory."""
    ranks = context.ranks
    worst = ranks.agree(OutcomeBid(attempt.status)).lows.outcome if ranks.grouped else attempt.status
    if worst == FAILED:
        attempt.reraise()
        raise RankError(f"{task} failed on another rank of the group; see that rank's error")
    return worst
