"""Array work that may find no memory: once more after an eviction, and agreed on by all ranks."""

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

# Outcomes of array work, the worst first: ranks agree on the smallest.
FAILED: Final = 0
UNALLOCATED: Final = 1
SUCCEEDED: Final = 2


class Attempt(Generic[T]):
    """One run of array work.

    Attributes:
        status: How it ended.
        failure: MLX's words where memory could not be had.
    """

    def __init__(self, action: Callable[[], T]) -> None:
        self.status = SUCCEEDED
        self.failure = ""
        self._error: Exception | None = None
        self._result: list[T] = []
        try:
            self._result.append(action())
        except Exception as error:  # noqa: BLE001 - kept, and raised by `reraise`
            if is_allocation_failure(error):
                # The frames hold the arrays that were made so far.
                traceback.clear_frames(error.__traceback__)
                self.status, self.failure = UNALLOCATED, str(error)
            else:
                self.status, self._error = FAILED, error

    def result(self) -> T:
        """What the work returned, where it succeeded."""
        return self._result[0]

    def forget(self) -> str:
        """Lets go of what the work raised, and says what it was."""
        error, self._error = self._error, None
        if error is None:
            return self.failure
        # The error's frames hold this object, which would be a cycle around arrays.
        traceback.clear_frames(error.__traceback__)
        return f"{type(error).__name__}: {error}"

    def reraise(self) -> None:
        """Raises what the work raised, if it failed."""
        if self._error is not None:
            # Not kept: the error's frames hold this object, which would be a cycle around arrays.
            try:
                raise self._error
            finally:
                self._error = None


def allocate(
    context: Context, action: Callable[[], T], nbytes: int, what: str, *, again: bool
) -> tuple[T, Eviction]:
    """Runs array work; after an allocation failure evicts ``nbytes``, reclaims, tries once more.

    It counts only if it succeeds on all ranks.

    Args:
        context: The cache's inside.
        action: The work. It changes nothing before it succeeds, unless ``again`` is False.
        nbytes: Bytes that it allocates.
        what: For the error's sentence.
        again: Whether it can be run a second time.

    Raises:
        AllocationError: There is not enough memory, not even after the eviction.
        RankError: The work failed on another rank.
    """
    attempt = Attempt(action)
    if _outcome(context, attempt, what) == SUCCEEDED:
        return attempt.result(), Eviction()
    short = 0 if attempt.status == SUCCEEDED else max(1, nbytes)
    evicted = evict(context, lambda _: Need(nbytes=short))
    if again:
        if attempt.status != SUCCEEDED:
            clear_pool()
            attempt = Attempt(action)
        if _outcome(context, attempt, what) == SUCCEEDED:
            return attempt.result(), evicted
    raise AllocationError(
        f"{what} needs {format_size(nbytes)} that could not be allocated "
        f"({attempt.failure or 'on another rank'}); {format_size(evicted.nbytes)} were evicted in the "
        "attempt; lower max_bytes or memory_limit",
        evicted,
    )


def _outcome(context: Context, attempt: Attempt[T], what: str) -> int:
    """The worst outcome over all ranks; raises where some rank failed for good."""
    ranks = context.ranks
    worst = ranks.agree(OutcomeBid(attempt.status)).lows.outcome if ranks.grouped else attempt.status
    if worst == FAILED:
        attempt.reraise()
        raise RankError(f"{what} failed on another rank of the group; see that rank's own error")
    return worst
