"""Work under memory pressure: attempts that may fail to allocate, and how many units relieve it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import mlx.core as mx
from loguru import logger

from kvcache.arrays import clear_pool, is_allocation_failure
from kvcache.results import Eviction
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache.operations.context import State

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


class Relief:
    """Counts the units that measured memory asks for, cycle by cycle.

    ``memory_limit`` is measured on MLX's own counter, which falls by what is evicted. A pressure source
    may move for reasons of its own, or not at all. So:

    - MLX's pool is cleared before any entry is evicted;
    - an excess beyond all that could be evicted costs one unit;
    - a source that has not yet answered to an eviction is tried with one unit;
    - another cycle follows only where the excess fell by about what the last one evicted.
    """

    def __init__(self, state: State, need: int) -> None:
        self._state = state
        self._need = need
        self._before: int | None = None
        self._last = Eviction()
        self._done = False

    def evicted(self, eviction: Eviction) -> None:
        """Notes what a cycle evicted on the counted units."""
        self._last = eviction

    def units(self) -> int:
        """Units to evict now; 0 once enough has been evicted, or none would help."""
        if self._done:
            return 0
        over, foreign = self._measure()
        excess = max(over, foreign)
        before, self._before = self._before, excess
        if before is not None and not self._answered(before - excess):
            self._done = True
            self._state.pressure_answers = False
            if excess > 0:
                logger.warning(
                    "evicting {} did not lower the memory pressure of {}, which is not this cache's; "
                    "the rest is kept",
                    format_size(self._last.nbytes),
                    format_size(before),
                )
            return 0
        if before is not None and foreign:
            self._state.pressure_answers = True
        if excess <= 0:
            return 0
        with self._state.lock:
            index = self._state.opened()
            if excess > index.nbytes - index.leased_bytes:
                self._done = before is not None
                return 0 if self._done else min(1, index.units)
            if foreign > over and not self._state.pressure_answers:
                return min(1, index.units)
            return index.count_units(nbytes=excess)

    def _answered(self, fall: int) -> bool:
        """Whether the excess fell by about what the last cycle gave back."""
        given = self._last.nbytes
        return given == 0 or given // 2 <= fall <= 2 * max(given, self._last.freed)

    def _measure(self) -> tuple[int, int]:
        """Bytes over ``memory_limit``, and bytes that the pressure source wants gone."""
        limits = self._state.limits
        measured = limits.over(self._need), limits.pressed()
        if max(measured) > 0 and self._before is None and mx.get_cache_memory():
            clear_pool()
            measured = limits.over(self._need), limits.pressed()
        return measured
