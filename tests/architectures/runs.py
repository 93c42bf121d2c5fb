"""What both sides run: the cases, the tokens, and the runs. Nothing here imports kvcache.

A run is a list of steps. The cold side plays each run from its first token in one go; the warm
side plays parts of it on caches that went through a store and a fetch.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

import mlx.core as mx
import numpy as np
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.cache import CacheList, ConcatenateKVCache, make_prompt_cache

from .shared import VOCABULARY, WINDOW
from .tiny_models import ARGUMENTS, build

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SEGMENT: Final = 8
CHUNK: Final = 12
STORED: Final = 3 * CHUNK
SHARED: Final = 28  # inside a segment, and after the checkpoint at 24
BRIEF: Final = 9  # inside the first chunk, which no window has outgrown
DECODED: Final = 8


@dataclass(frozen=True)
class Case:
    """A model, and how its cache is made.

    Attributes:
        name: For tests and files.
        architecture: A module of ``mlx_lm.models``.
        dtype: Of weights and KV.
        caches: ``"own"`` as the model makes them, ``"keep"`` windows that keep their first four
            tokens, ``"concatenate"`` ConcatenateKVCache in place of KVCache.
        bits: KVCaches are quantised to so many bits ...
        quantized_from: ... once they hold so many tokens.
    """

    name: str
    architecture: str
    dtype: mx.Dtype = mx.float32
    caches: Literal["own", "keep", "concatenate"] = "own"
    bits: int | None = None
    quantized_from: int = 0

    def build(self) -> Any:
        return build(self.architecture, self.dtype)

    def fresh(self, model: Any) -> list[Any]:
        if self.caches == "concatenate":
            return [ConcatenateKVCache() for _ in model.layers]
        if self.caches == "keep":
            return make_prompt_cache(_Bare(model.layers), max_kv_size=WINDOW)
        return list(make_prompt_cache(model))


@functools.cache
def built(case: Case) -> Any:
    """The case's model, made once: nothing changes it."""
    return case.build()


@dataclass
class _Bare:
    """A model without a make_cache of its own: it gets what mlx-lm gives to all others."""

    layers: Any


CASES: Final = [
    *(Case(name, name) for name in ARGUMENTS),
    Case("llama.keep", "llama", caches="keep"),
    Case("llama.concatenate", "llama", caches="concatenate"),
    Case("llama.bfloat16", "llama", mx.bfloat16),
    Case("gemma3_text.float16", "gemma3_text", mx.float16),
    Case("qwen3_5.bfloat16", "qwen3_5", mx.bfloat16),
    *(
        Case(f"{name}.q8", name, bits=8)
        for name in ("llama", "qwen3", "qwen3_next", "jamba", "nemotron_h", "lfm2", "llama4")
    ),
    Case("llama.q4", "llama", bits=4),
    Case("llama.q8.late", "llama", bits=8, quantized_from=20),
    Case("qwen3_next.q8.late", "qwen3_next", bits=8, quantized_from=20),
]


BY_NAME: Final = {case.name: case for case in CASES}


def leaves(prompt_cache: Sequence[Any]) -> Iterator[Any]:
    """The layer caches, CacheLists looked into."""
    for cache in prompt_cache:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


SPANS: Final = frozenset({"KVCache", "ConcatenateKVCache", "QuantizedKVCache"})
WINDOWS: Final = frozenset({"RotatingKVCache", "ChunkedKVCache"})


@dataclass(frozen=True)
class Kinds:
    """Which kinds of layers a prompt cache has."""

    spans: bool
    windows: bool
    states: bool

    @classmethod
    def of(cls, prompt_cache: Sequence[Any]) -> Kinds:
        names = {type(cache).__name__ for cache in leaves(prompt_cache)}
        return cls(bool(names & SPANS), bool(names & WINDOWS), bool(names - SPANS - WINDOWS))

    @property
    def spans_only(self) -> bool:
        return not self.windows and not self.states


def random_tokens(seed: int, count: int) -> list[int]:
    """The same ones for the same seed."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


TRUNK: Final = random_tokens(1, 96)
SIBLING: Final = [*TRUNK[:SHARED], (TRUNK[SHARED] + 1) % VOCABULARY, *random_tokens(2, 67)]
OTHER: Final = [*TRUNK[:BRIEF], (TRUNK[BRIEF] + 1) % VOCABULARY, *random_tokens(3, 86)]
BESIDE: Final = [(TRUNK[0] + 1) % VOCABULARY, *random_tokens(4, 9)]

Step = tuple[Literal["run"], list[int]] | tuple[Literal["trim"], int] | tuple[Literal["cut"], None]


def chunks(tokens: list[int], start: int, end: int) -> list[Step]:
    """Prefill in chunks that end at multiples of CHUNK, the last one at ``end``."""
    edges = [start, *range((start // CHUNK + 1) * CHUNK, end, CHUNK), end]
    return [("run", tokens[low:high]) for low, high in pairwise(edges)]


def singles(tokens: list[int], start: int, count: int) -> list[Step]:
    """Decode steps; the tokens are given, so that both sides take the same."""
    return [("run", [token]) for token in tokens[start : start + count]]


# The trunk's prefill, a decode, then a second turn: a short chunk and a decode. 60, 68, 75, 83.
STRAIGHT: Final = [
    *chunks(TRUNK, 0, 60),
    *singles(TRUNK, 60, DECODED),
    ("run", TRUNK[68:75]),
    *singles(TRUNK, 75, DECODED),
]


def runs(kinds: Kinds) -> dict[str, list[Step]]:
    """What the cold side plays for a model of these kinds."""
    played: dict[str, list[Step]] = {
        "straight": STRAIGHT,
        "stepwise": [*chunks(TRUNK, 0, STORED), *singles(TRUNK, STORED, 2 * DECODED)],
    }
    if kinds.spans_only:
        back: list[Step] = [*chunks(TRUNK, 0, STORED), ("trim", STORED - SHARED)]
        turned = [("run", SIBLING[SHARED:40])]
    else:
        back, turned = chunks(TRUNK, 0, 24), [("run", SIBLING[24:40])]
    played["sibling"] = [*back, *turned, *singles(SIBLING, 40, DECODED)]
    if not kinds.states:
        back = [*chunks(TRUNK, 0, CHUNK), ("trim", CHUNK - BRIEF)]
        played["trimmed"] = [*back, ("run", OTHER[BRIEF:21]), *singles(OTHER, 21, DECODED)]
        played["trimmed stepwise"] = [*back, *singles(OTHER, BRIEF, 2 * DECODED)]
        played["trimmed twice"] = [*back, ("trim", 2), ("run", OTHER[BRIEF - 2 : 21])]
        # The same on windows as long as what was trimmed left of them.
        for name in ("trimmed", "trimmed stepwise", "trimmed twice"):
            played[f"{name} and cut"] = [*back, ("cut", None), *played[name][len(back) :]]
    return played


def play(case: Case, model: Any, prompt_cache: list[Any], steps: Sequence[Step]) -> list[np.ndarray]:
    """Runs the steps on the cache; the logits of each forward pass."""
    seen = []
    for kind, what in steps:
        if kind == "trim":
            trim(prompt_cache, what)
            continue
        if kind == "cut":
            cut(prompt_cache)
            continue
        logits = model(mx.array([what]), cache=prompt_cache)
        maybe_quantize_kv_cache(prompt_cache, case.quantized_from, 32, case.bits)
        # numpy has no bfloat16; float32 holds each of its values.
        seen.append(np.array(logits.astype(mx.float32)))
    return seen


def trim(prompt_cache: list[Any], count: int) -> None:
    """Takes the last tokens off, as mlx-lm's own trim does."""
    for cache in leaves(prompt_cache):
        assert cache.trim(count) == count
        if isinstance(cache, ConcatenateKVCache):
            # Its next update would append behind what was trimmed.
            cache.keys, cache.values = (side[..., : cache.offset, :] for side in (cache.keys, cache.values))


def cut(prompt_cache: list[Any]) -> None:
    """Has windows that were trimmed hold no rows behind their last token."""
    for cache in leaves(prompt_cache):
        if type(cache).__name__ in WINDOWS:
            rows = cache._idx if hasattr(cache, "_idx") else cache.offset - cache.start_position
            cache.keys, cache.values = (mx.array(side[..., :rows, :]) for side in (cache.keys, cache.values))
            mx.eval(cache.keys, cache.values)
