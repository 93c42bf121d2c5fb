"""Array operations that fail on demand, and what a cache holds, to compare before and after."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from kvcache import arrays
from tests.support import inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcache import KVPrefixCache


def allocation_failure() -> Exception:
    """As MLX words it."""
    return RuntimeError("[malloc_or_wait] Unable to allocate 4096 bytes.")


class Faults:
    """Counts the array operations of a block and lets some of them raise.

    Args:
        fails: Whether the operation with this number, from 1, raises.
        error: Makes what is raised.
    """

    def __init__(self, fails: Callable[[int], bool], error: Callable[[], BaseException]) -> None:
        self.count = 0
        self.raised = 0
        self._fails = fails
        self._error = error

    def watched(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            if self._fails(self.count):
                self.raised += 1
                raise self._error()
            return operation(*arguments, **named)

        return watching


@contextmanager
def failing(fails: Callable[[int], bool], error: Callable[[], BaseException]) -> Iterator[Faults]:
    """Lets chosen array operations fail: copies, joins and evaluations."""
    faults = Faults(fails, error)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("detach", "cut", "join"):
            patch.setattr(arrays, name, faults.watched(getattr(arrays, name)))
        patch.setattr(mx, "eval", faults.watched(mx.eval))
        yield faults


def contents(cache: KVPrefixCache) -> dict[tuple[str, int], list[bytes]]:
    """Everything that is held, by id, to the bit."""
    images = {
        ("checkpoint", number): [array for image in checkpoint for array in image.arrays]
        for number, checkpoint in inside.checkpoints(cache).items()
    }
    segments = {
        ("segment", number): [array for part in segment for array in part]
        for number, segment in inside.segments(cache).items()
    }
    held = segments | images
    return {name: [np.array(array).tobytes() for array in group] for name, group in held.items()}


def assert_settled(cache: KVPrefixCache, pinned: bool = False) -> None:
    """No plan and no lease is left behind, and every invariant holds."""
    cache.validate()
    figures = inside.index(cache).stats()
    assert figures.reserved_bytes == 0
    assert pinned or figures.leased_bytes == 0
