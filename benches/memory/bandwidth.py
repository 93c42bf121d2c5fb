"""Bandwidth of fetch, take and store, against a plain copy of the same bytes in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import mlx.core as mx
from entries import Shape, make_cache, tokens_of
from mlx_lm.models.cache import KVCache

from kvcache import KVPrefixCache

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Rate:
    """Bytes read + written a second, and the share of the plain copy beside it."""

    name: str
    tensor_mb: float
    segment_tokens: int
    gb_per_s: float
    of_copy: float
    peak_over_one: float
    room: float
    layers: int


def rates(shape: Shape, segment_tokens: int, rounds: int, say: Progress) -> Iterator[Rate]:
    """Interleaves plain copies with each call; the median of each counts."""
    tokens = mx.concatenate([tokens_of(0, shape), mx.array([1], dtype=mx.int32)])
    source = make_cache(shape, 0)
    spent: dict[str, list[float]] = {name: [] for name in ("copy", "fetch", "take", "store", "donate")}
    peak = dict.fromkeys(spent, 0.0)
    room = KVCache.step / shape.tokens

    def timed(name: str, call: Callable[[], object]) -> object:
        base = mx.get_active_memory()
        mx.reset_peak_memory()
        began = time.perf_counter()
        result = call()
        spent[name].append(time.perf_counter() - began)
        peak[name] = (mx.get_peak_memory() - base) / shape.nbytes
        return result

    def plain_copy() -> list[mx.array]:
        copies = [mx.array(part) for layer in source for part in (layer.keys, layer.values)]
        mx.eval(copies)
        return copies

    for number in range(rounds):
        say(f"round {number + 1} of {rounds}, segments of {segment_tokens}")
        with KVPrefixCache(segment_tokens=segment_tokens) as cache:
            del_me = timed("copy", plain_copy)
            del del_me
            timed("store", lambda cache=cache: cache.store(tokens, source))
            hit = timed("fetch", lambda cache=cache: cache.fetch(tokens))
            del hit
            taken = timed("take", lambda cache=cache: cache.fetch(tokens, take=True))
            timed(
                "donate",
                lambda cache=cache, taken=taken: cache.store(tokens, taken.prompt_cache, donate=True),
            )
            del taken
        mx.clear_cache()
    copied = median(spent["copy"])
    for name, seconds in spent.items():
        took = median(seconds)
        rate = 2 * shape.nbytes / took / 1e9
        tensor = shape.nbytes / (2 * shape.layers) / 1e6
        yield Rate(
            name,
            tensor,
            segment_tokens,
            rate,
            copied / took,
            peak[name],
            room,
            shape.layers,
        )
