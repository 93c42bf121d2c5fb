"""What a device can run, and whether it repeats itself: both are found out without any cache.

On CPU MLX repeats itself bit for bit, and so must a warm run. On a GPU some kernels do not: there logits are
held against the spread of MLX's own repeats, and a model that needs an operation which the device lacks is
skipped with MLX's sentence. Nothing here imports kvcache.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
import numpy as np
import pytest

from .runs import CHUNK, STRAIGHT, built, play

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .runs import Case

GPU: Final = mx.default_device().type == mx.DeviceType.gpu
# How often the cold side plays what it compares with.
REPEATS: Final = 5 if GPU else 1
# A warm run may be this many times as far from a cold one as the cold ones are from each other.
FACTOR: Final = 4


@functools.cache
def lacking(case: Case) -> str | None:
    """What MLX says where this device cannot run the model; None where it can. The CPU runs them all."""
    if not GPU:
        return None
    try:
        model = built(case)
        # Past the token from which a cache is quantised, in chunks and one by one.
        play(case, model, case.fresh(model), [*STRAIGHT[: case.quantized_from // CHUNK + 2], STRAIGHT[6]])
    except Exception as error:  # noqa: BLE001 - MLX's own, whatever it is: kvcache has no part in this
        return f"{case.name} on {mx.default_device()}: {error}"
    return None


def runnable(case: Case) -> Any:
    """The case's model; the test is skipped where the device cannot run it."""
    reason = lacking(case)
    if reason is not None:
        pytest.skip(reason)
    return built(case)


def repeated(run: Callable[[], list[np.ndarray]]) -> list[list[np.ndarray]]:
    """The logits of a run without the cache, as often as it takes to see whether the device repeats."""
    return [run() for _ in range(REPEATS)]


def spread(repeats: Sequence[Sequence[np.ndarray]]) -> list[float]:
    """How far apart the repeats of each forward pass are; 0 where they are the same bits."""
    return [_spread(passes) for passes in zip(*repeats, strict=True)]


def _spread(passes: Sequence[np.ndarray]) -> float:
    first = passes[0]
    if all(logits.tobytes() == first.tobytes() for logits in passes):
        return 0.0
    return max(float(np.abs(logits - first).max()) for logits in passes)


def off(logits: np.ndarray, expected: np.ndarray, allowed: float) -> float:
    """How far logits are from what they may be; 0 where they are the same bits, or within the spread."""
    assert logits.shape == expected.shape
    if logits.tobytes() == expected.tobytes():
        return 0.0
    distance = float(np.abs(logits - expected).max())
    return 0.0 if distance <= FACTOR * allowed else distance


def assert_repeated(found: list[np.ndarray], repeats: list[list[np.ndarray]]) -> None:
    """A run on what was fetched gave what runs without the cache gave."""
    allowed = max(spread(repeats), default=0.0)
    distances = [off(*pair, allowed) for pair in zip(found, repeats[0], strict=True)]
    assert not any(distances), f"off by {distances}, where MLX's own repeats are {allowed} apart"


class Cold:
    """The cold side's logits, by ``case/run/number``."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._arrays = arrays
        self._spread: dict[tuple[str, bool], float] = {}
        for name, value in arrays.items():
            key, _, what = name.rpartition("/")
            if what == "spread":
                kind = key.partition("/")[0], _decodes(arrays[key])
                self._spread[kind] = max(self._spread.get(kind, 0.0), float(value))

    def __getitem__(self, key: str) -> np.ndarray:
        return self._arrays[key]

    def repeats(self, case: str) -> bool:
        """Whether all that was played of a case gave the same bits each time."""
        return not any(self._spread.get((case, decodes), 0.0) for decodes in (False, True))

    def same(self, seen: Sequence[np.ndarray], run: str, first: int, *, cut: bool = False) -> None:
        """Asserts that forward passes, from number ``first`` of a run, gave the very same bits.

        Args:
            seen: Their logits.
            run: What the cold side played.
            first: The number of the first one.
            cut: The cold side also played it on windows cut to their last row. A buffer of another length
                may be added up in another order by a GPU: there one of the two must be met.
        """
        names = [run, f"{run} and cut"] if GPU and cut else [run]
        for number, logits in enumerate(seen, first):
            allowed = self._spread.get((run.partition("/")[0], _decodes(logits)), 0.0)
            distances = [off(logits, self[f"{name}/{number}"], allowed) for name in names]
            assert not all(distances), (
                f"pass {number} of {run} is off by up to {min(distances)}, MLX's repeats by {allowed}"
            )


def _decodes(logits: np.ndarray) -> bool:
    """Whether a forward pass ran one token, which takes other kernels than several do."""
    return logits.ndim > 1 and logits.shape[1] == 1
