"""Workloads and the way to time them, shared by everything in this folder.

Prompts are int32 ids below a usual vocabulary size, from a fixed seed. A measured call never sees
the same buffer twice in a row: equal prompts stand in several distinct buffers, in rotation, so
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvcache import PrefixIndex

SIZES = (1_024, 8_192, 32_768, 131_072)
PLACES = ("end", "middle", "nowhere")
KINDS = ("list", "numpy int32", "mlx int32")
BUFFERS = 5
VOCABULARY = 150_000

_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = _libc.memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def prompt(size: int, seed: int = 0) -> np.ndarray:
    """Random token ids, the same for the same seed; a shorter prompt is no prefix of a longer."""
    return np.random.default_rng((seed, size)).integers(0, VOCABULARY, size, dtype=np.int32)


def queries(stored: np.ndarray, place: str, count: int = BUFFERS) -> list[np.ndarray]:
    """`count` prompts as long as `stored`, each in its own buffer, that leave it at `place`."""
    at = {"end": len(stored), "middle": len(stored) // 2, "nowhere": 0}[place]
    made = [stored.copy() for _ in range(count)]
    for number, query in enumerate(made):
        # Ids above the vocabulary: nothing behind the divergence can match by chance.
        query[at:] += VOCABULARY * (number + 1)
    return made


def as_kind(tokens: np.ndarray, kind: str) -> Any:
    """The same ids in what a user would pass."""
    if kind == "list":
        return tokens.tolist()
    if kind == "numpy int32":
        return tokens.copy()
    import mlx.core as mx

    made = mx.array(tokens)
    mx.eval(made)
    return made


def index_with(*prompts: Any, **options: Any) -> PrefixIndex:
    """An index that holds the prompts."""
    index = PrefixIndex(**options)
    for tokens in prompts:
        index.insert(tokens)
    return index


def _two_buffers(function: Callable[..., Any], size: int) -> Callable[[], Any]:
    """`function(left, right, bytes)` over int32 buffers of `size` tokens, the left in rotation."""
    right = prompt(size)
    rotation = itertools.cycle([right.copy() for _ in range(BUFFERS)])

    def call() -> Any:
        return function(next(rotation).ctypes.data, right.ctypes.data, size * 4)

    # The address is looked up outside the timed part: it costs more than comparing 4 KiB.
    pairs = itertools.cycle([(left, left.ctypes.data) for left in itertools.islice(rotation, BUFFERS)])
    address = right.ctypes.data
    nbytes = size * 4

    def timed() -> float:
        left = next(pairs)[1]
        start = time.perf_counter()
        function(left, address, nbytes)
        return time.perf_counter() - start

    call.timed = timed  # type: ignore[attr-defined]
    return timed


def memcmp(size: int) -> Callable[[], float]:
    """Times one comparison of `size` equal int32 tokens in two distinct buffers."""
    return _two_buffers(_libc.memcmp, size)
