"""Workloads and the way to time them, shared by everything in this folder.

Prompts are int32 ids below a usual vocabulary size, from a fixed seed. A measured call never sees
the same buffer twice in a row: equal prompts are in several distinct buffers, in rotation, so
neither a remembered last query nor a comparison by identity would help. What a figure is held
against (libc memcmp, memmove, `array.array`) runs between the measured calls, on buffers of its
own, so that both meet the same clock speed, the same neighbours and equally warm caches.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcache import PrefixIndex

SIZES = (1_024, 8_192, 32_768, 131_072)
PLACES = ("end", "middle", "nowhere")
KINDS = ("list", "numpy int32", "mlx int32")
BUFFERS = 5
VOCABULARY = 150_000

Timed = Callable[[], float]

_libc = ctypes.CDLL(None)
for _function in (_libc.memcmp, _libc.memmove):
    _function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def prompt(size: int, seed: int = 0) -> np.ndarray:
    """Random token ids, the same for the same seed; a shorter prompt is no prefix of a longer."""
    return np.random.default_rng((seed, size)).integers(0, VOCABULARY, size, dtype=np.int32)


def queries(stored: np.ndarray, place: str, count: int = BUFFERS) -> list[np.ndarray]:
    """`count` prompts as long as `stored`, each in its own buffer, that leave it at `place`."""
    at = {"end": len(stored), "middle": len(stored) // 2, "nowhere": 0}[place]
    made = [stored.copy() for _ in range(count)]
    for number, query in enumerate(made):
        # Ids above the vocabulary: nothing past the divergence can match by chance.
        query[at:] += VOCABULARY * (number + 1)
    return made


def as_kind(tokens: np.ndarray, kind: str) -> Any:
    """The same ids in what a user would pass."""
    if kind == "list":
        return tokens.tolist()
    if kind == "numpy int32":
        return tokens
    import mlx.core as mx

    made = mx.array(tokens)
    mx.eval(made)
    return made


def index_with(*prompts: Any) -> PrefixIndex:
    """An index that holds the prompts."""
    index = PrefixIndex()
    for tokens in prompts:
        index.insert(tokens)
    return index


def memcmp(size: int) -> Timed:
    """Times one libc memcmp of `size` equal int32 tokens in two distinct buffers."""
    return _over_two_buffers(_libc.memcmp, size)


def memmove(size: int) -> Timed:
    """Times one libc memmove of `size` int32 tokens."""
    return _over_two_buffers(_libc.memmove, size)


def _over_two_buffers(function: Callable[[int, int, int], object], size: int) -> Timed:
    fixed = prompt(size)
    others = [fixed.copy() for _ in range(BUFFERS)]
    # Addresses are looked up beforehand: that alone takes longer than comparing 4 KiB.
    rotation = itertools.cycle([(other.ctypes.data, other) for other in others])
    # The default argument keeps the buffer alive behind its address.
    address, nbytes = fixed.ctypes.data, fixed.nbytes

    def timed(_keep: np.ndarray = fixed) -> float:
        other, _ = next(rotation)
        start = time.perf_counter()
        function(other, address, nbytes)
        return time.perf_counter() - start

    return timed


def array_from_list(size: int) -> Timed:
    """Times `array.array("i", list)`, what converting a list costs at best in plain Python."""
    rotation = itertools.cycle([prompt(size).tolist() for _ in range(BUFFERS)])

    def timed() -> float:
        tokens = next(rotation)
        start = time.perf_counter()
        array.array("i", tokens)
        return time.perf_counter() - start

    return timed


@dataclass(frozen=True)
class Figures:
    """Seconds of one side."""

    median: float
    best: float

    @classmethod
    def of(cls, samples: list[float]) -> Figures:
        return cls(statistics.median(samples), min(samples))


class Rounds:
    """Interleaves a call with its references: each round times every reference, then the call.

    `prepare` makes the call's arguments, untimed. Drive it by `side_by_side`, or hand `setup` to
    pytest-benchmark's pedantic mode.
    """

    def __init__(self, prepare: Callable[[], tuple[Any, ...]], references: dict[str, Timed]) -> None:
        self._prepare = prepare
        self._references = references
        self._samples: dict[str, list[float]] = {name: [] for name in references}

    def setup(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """One round's references; returns the arguments for the call."""
        for name, timed in self._references.items():
            self._samples[name].append(timed())
        return self._prepare(), {}

    def references(self) -> dict[str, Figures]:
        return {name: Figures.of(samples) for name, samples in self._samples.items()}


def side_by_side(
    call: Callable[..., object],
    prepare: Callable[[], tuple[Any, ...]],
    references: dict[str, Timed],
    rounds: int,
) -> tuple[Figures, dict[str, Figures]]:
    """`call` and its references, interleaved, without pytest."""
    warm, measured = Rounds(prepare, references), Rounds(prepare, references)
    samples = []
    for which, count in ((warm, max(BUFFERS, rounds // 10)), (measured, rounds)):
        samples.clear()
        for _ in range(count):
            arguments, _ = which.setup()
            start = time.perf_counter()
            call(*arguments)
            samples.append(time.perf_counter() - start)
    return Figures.of(samples), measured.references()


def in_rotation(items: list[Any]) -> Callable[[], tuple[Any, ...]]:
    """Argument tuples of one item each, round and round."""
    rotation = itertools.cycle(items)
    return lambda: (next(rotation),)


def rounds_for(size: int) -> int:
    """Enough rounds for a steady median within about a second."""
    return max(200, min(2_000, 16_000_000 // size))
