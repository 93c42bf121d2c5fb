"""Work under memory pressure: attempts that may fail to allocate, and how many units relieve it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import mlx.core as mx
from loguru import logger

from kvcache.arrays import is_allocation_failure
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache.state import State

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

    def reraise(self) -> None:
        """Raises what the work raised, if it failed."""
        if self._error is not None:
            # Not kept: the error's frames hold this object, which would be a cycle around arrays.
            try:
                raise self._error
            finally:
                self._error = None


class Relief:
    """Counts the units that measured memory asks for, cycle by cycle."""

    def __init__(self, state: State, need: int) -> None:
        self._state = state
        self._need = need
        self._before: int | None = None
        self._given_up = False

    def units(self) -> int:
        """Units of the order of eviction that should go now; 0 once enough went, or none would help."""
        excess = 0 if self._given_up else self._excess()
        before, self._before = self._before, excess
        if excess <= 0:
            return 0
        if before is not None and excess >= before:
            self._given_up = True
            logger.warning(
                "evicting did not lower the memory pressure of {}: it is not this cache's; the rest is kept",
                format_size(before),
            )
            return 0
        with self._state.guard() as index:
            figures = index.stats()
            if before is None and excess >= figures.nbytes - figures.leased_bytes:
                return min(1, figures.units)
            return index.count_units(nbytes=excess)

    def _excess(self) -> int:
        """What measured memory is over its limits. MLX's pool goes before any entry does."""
        excess = self._state.limits.excess(self._need)
        if excess > 0 and self._before is None and mx.get_cache_memory():
            mx.clear_cache()
            excess = self._state.limits.excess(self._need)
        return excess
