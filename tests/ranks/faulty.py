"""What goes wrong on one rank alone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from kvcache import arrays
from tests.support.failures import Faults, allocation_failure

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator


class SourceError(Exception):
    """A pressure source that cannot tell."""


class Pressure:
    """Now and then short of memory, seldom broken."""

    def __init__(self, own: random.Random) -> None:
        self.awake = False
        self._own = own

    def excess_bytes(self) -> int:
        if not self.awake:
            return 0
        draw = self._own.random()
        if draw < 0.01:
            raise SourceError("broken")
        return self._own.randint(1, 20_000) if draw < 0.025 else 0


@contextmanager
def failing(
    first: int = 1, count: int = 1, error: Callable[[], BaseException] = allocation_failure
) -> Iterator[Faults]:
    """Lets ``count`` copies of arrays fail, from the one with number ``first``."""
    faults = Faults(lambda number: first <= number < first + count, error)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("detach", "cut", "join"):
            patch.setattr(arrays, name, faults.watched(getattr(arrays, name)))
        yield faults


def attempt(call: Callable[[], Any]) -> tuple[str, Any]:
    """The name of what a call raised, or "", and what it returned."""
    try:
        return "", call()
    except Exception as error:  # noqa: BLE001 - the tests say which one it must be
        return type(error).__name__, error
