"""What stays allocated after an eviction, and how many entries a pressure loop evicts."""

from __future__ import annotations

import gc
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
from entries import Entry, Footprint, Shape, footprint, make_cache, tokens_of

from kvcache import KVPrefixCache

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One step: its name, where memory stands, milliseconds, bytes above what should be held."""

    step: str
    at: Footprint
    ms: float
    retained: int


def whole_copies(shape: Shape, entries: int, say: Progress) -> Iterator[Row]:
    """A cache of whole copies: half of it is evicted, and reclaimed step by step."""
    start = footprint()
    yield Row("baseline", start, 0.0, 0)
    held = OrderedDict()
    for number in range(entries):
        say(f"filling {number + 1} of {entries}")
        held[number] = Entry(make_cache(shape, number))
    mx.clear_cache()
    yield Row("filled", footprint(), 0.0, 0)
    for _ in range(entries // 2):
        held.popitem(last=False)
    due = start.total + len(held) * shape.nbytes
    gc.disable()  # an automatic collection must not hide what each step does
    yield Row("evicted, not reclaimed", footprint(), 0.0, footprint().total - due)
    ms = _timed(gc.collect)
    yield Row("+ gc.collect()", footprint(), ms, footprint().total - due)
    ms = _timed(mx.clear_cache)
    yield Row("+ mx.clear_cache()", footprint(), ms, footprint().total - due)
    gc.enable()
    held.clear()
    gc.collect()
    mx.clear_cache()


def ours(shape: Shape, entries: int, policy: str, say: Progress) -> Iterator[Row]:
    """KVPrefixCache: half of it is evicted by one call."""
    with KVPrefixCache(gc=policy) as cache:
        start = footprint()
        for number in range(entries):
            say(f"storing {number + 1} of {entries}")
            store_entry(cache, shape, number)
        mx.clear_cache()
        filled, held = footprint(), cache.nbytes
        yield Row(f"kvcache ({policy}): filled", filled, 0.0, filled.total - start.total - held)
        began = time.perf_counter()
        cache.evict(entries // 2 * shape.nbytes)
        ms = (time.perf_counter() - began) * 1e3
        # Allocators round up, each in its way: what is due back is that share of what filling took.
        due = start.total + (filled.total - start.total) * cache.nbytes // held
        now = footprint()
        yield Row(f"kvcache ({policy}): evict()", now, ms, now.total - due)


def store_entry(cache: KVPrefixCache, shape: Shape, number: int) -> None:
    stored = cache.store(tokens_of(number, shape), make_cache(shape, number), donate=True)
    if stored.reason != "stored":
        raise SystemExit(f"entry {number} was not stored: {stored}")


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


@dataclass(frozen=True)
class Loop:
    """Outcome of a pressure loop."""

    name: str
    entries: int
    evicted: float
    nbytes: int
    ms: float


class CounterPressure:
    """Pressure by MLX's own counters: active + cached memory above a threshold."""

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def excess_bytes(self) -> int:
        return max(0, footprint().total - self.threshold)


def pressure_loops(shape: Shape, entries: int, say: Progress) -> Iterator[Loop]:
    """The threshold is exceeded by half an entry; who evicts how many of the entries?"""
    for name, inside in (("reclaim after the loop, as exo's", False), ("reclaim inside the loop", True)):
        start = footprint()
        held = OrderedDict()
        for number in range(entries):
            say(f"{name}: filling {number + 1} of {entries}")
            held[number] = Entry(make_cache(shape, number))
        mx.clear_cache()
        pressure = CounterPressure(start.total + entries * shape.nbytes - shape.nbytes // 2)
        began = time.perf_counter()
        while held and pressure.excess_bytes() > 0:
            held.popitem(last=False)
            if inside:
                gc.collect()
                mx.clear_cache()
        gc.collect()
        mx.clear_cache()
        ms = (time.perf_counter() - began) * 1e3
        gone = entries - len(held)
        yield Loop(name, entries, gone, gone * shape.nbytes, ms)
        held.clear()
        gc.collect()
        mx.clear_cache()
    pressure = CounterPressure(1 << 62)
    with KVPrefixCache(pressure=pressure) as cache:
        start = footprint()
        for number in range(entries):
            say(f"kvcache: storing {number + 1} of {entries}")
            store_entry(cache, shape, number)
        mx.clear_cache()
        pressure.threshold = start.total + entries * shape.nbytes - shape.nbytes // 2
        began = time.perf_counter()
        evicted = cache.reserve(0)
        ms = (time.perf_counter() - began) * 1e3
        yield Loop("kvcache", entries, evicted.tokens / shape.tokens, evicted.nbytes, ms)
