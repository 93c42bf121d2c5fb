"""Entries of KV as engines hold them, and where MLX's memory stands."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache


@dataclass(frozen=True)
class Shape:
    """The KV of one entry."""

    tokens: int
    layers: int
    heads: int
    width: int
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return 2 * self.layers * self.heads * self.tokens * self.width * self.dtype.size


@dataclass(frozen=True)
class Footprint:
    """Bytes: MLX active, MLX cached, and what the card says is in use (None without a card)."""

    active: int
    cached: int
    card: int | None

    @property
    def total(self) -> int:
        return self.active + self.cached


def footprint() -> Footprint:
    return Footprint(mx.get_active_memory(), mx.get_cache_memory(), _card_bytes())


def _card_bytes() -> int | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[0]) * 2**20 if done.returncode == 0 else None


def make_cache(shape: Shape, seed: int) -> list[KVCache]:
    """One entry's layer caches, every buffer exactly as long as its tokens."""
    caches = []
    for layer in range(shape.layers):
        cache = KVCache()
        size = (1, shape.heads, shape.tokens, shape.width)
        cache.keys = mx.full(size, seed + layer, dtype=shape.dtype)
        cache.values = mx.full(size, seed - layer, dtype=shape.dtype)
        cache.offset = shape.tokens
        mx.eval(cache.keys, cache.values)
        caches.append(cache)
    return caches


def tokens_of(entry: int, shape: Shape) -> mx.array:
    """Token ids of an entry that shares no prefix with the others."""
    return mx.arange(shape.tokens, dtype=mx.int32) + entry * 1000


class Entry:
    """A whole copy of one sequence, as a cache without a shared tree holds it.

    Part of a reference cycle, as entries become through generator frames, tracebacks and
    callbacks: dropping the last outside reference frees nothing until a collection.
    """

    def __init__(self, prompt_cache: list[Any]) -> None:
        self.prompt_cache = prompt_cache
        self.cycle = self
