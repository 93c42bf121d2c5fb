"""No state that ran padding is kept: rows of unequal length in one batch, on mlx-lm's own models."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm import server
from mlx_lm.models.cache import ArraysCache, KVCache, make_prompt_cache

from kvcache.integrations.mlx_lm import has_recurrent_layers, patch
from tests.architectures.tiny_models import build

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcache.integrations.mlx_lm import PromptCache

# Padded, the first end in another state; the next honour `lengths`; the last have no states.
IGNORANT = ("mamba", "jamba", "rwkv7", "recurrent_gemma", "baichuan_m1", "nemotron_h")
AWARE = ("qwen3_next", "lfm2", "falcon_h1", "mamba2")
STATELESS = ("llama", "gemma3_text")


@contextlib.contextmanager
def _batching(model: Any) -> Iterator[tuple[PromptCache, Any]]:
    with patch(max_size=100):
        prompt_cache = server.LRUPromptCache(100)
        generator = server.BatchGenerator(model, prefill_batch_size=8, completion_batch_size=8)
        yield prompt_cache, generator
        generator.close()
        prompt_cache.cache.close()


def _enter(prompt_cache: PromptCache, generator: Any, prompts: list[list[int]], most: int) -> None:
    for prompt in prompts:
        layers, rest = prompt_cache.fetch_nearest_cache("model", prompt)
        reused = len(prompt) - len(rest)
        generator.insert_segments(
            [[list(rest)]], max_tokens=[most], caches=[layers], all_tokens=[prompt[:reused]]
        )


def _finish(prompt_cache: PromptCache, generator: Any) -> list[list[int]]:
    """Runs all that has entered, as the server does; what was stored."""
    stored, prompts = [], True
    while prompts:
        prompts, responses = generator.next()
        for response in responses:
            if response.finish_reason is not None:
                kept = prompt_cache.insert_cache("model", response.all_tokens[:], response.prompt_cache)
                assert kept.reason == "stored"
                stored.append(response.all_tokens)
        prompts = bool(prompts or responses)
    return stored


def _require_right(model: Any, prompt_cache: PromptCache, stored: list[list[int]]) -> None:
    """A request that continues what is stored reuses all of it, and computes what a cold one computes."""
    for tokens in stored:
        longer = [*tokens, 3]
        layers, rest = prompt_cache.fetch_nearest_cache("model", longer)
        assert len(rest) == 1
        warm = model(mx.array([rest]), cache=layers)[0, -1]
        cold = model(mx.array([longer]), cache=make_prompt_cache(model))[0, -1]
        # A GPU multiplies with fewer bits, and in another order for another number of rows.
        near = 1e-3 if mx.default_device().type == mx.DeviceType.cpu else 1e-2
        assert mx.abs(warm - cold).max().item() < near * mx.abs(cold).max().item()


@pytest.mark.parametrize("architecture", IGNORANT + AWARE + STATELESS)
def test_rows_of_unequal_length(architecture: str) -> None:
    model = build(architecture)
    wave = [[1 + (7 * row + place) % 60 for place in range(size)] for row, size in enumerate((5, 23, 9, 14))]
    with _batching(model) as (prompt_cache, generator):
        _enter(prompt_cache, generator, wave, most=3)
        stored = _finish(prompt_cache, generator)
        assert len(stored) == len(wave)
        _require_right(model, prompt_cache, stored)
        # A second wave continues some of the first and begins with others, and joins a batch that decodes.
        _enter(prompt_cache, generator, [[9, 8, 7, 6] * 5], most=12)
        for _ in range(4):
            generator.next()
        later = [[*tokens, *range(11, 11 + 5 * row)] for row, tokens in enumerate(stored, 1)]
        _enter(prompt_cache, generator, [*later, [2, 4, 6]], most=2)
        again = _finish(prompt_cache, generator)
        assert len(again) == len(later) + 2
        _require_right(model, prompt_cache, again)
        prompt_cache.cache.validate()


def test_models_without_states_still_prefill_together() -> None:
    for architecture, rows in (("llama", 8), ("gemma3_text", 8), ("qwen3_next", 1), ("falcon_h1", 1)):
        with _batching(build(architecture)) as (_, generator):
            assert generator.prefill_batch_size == rows, architecture


class _Unknown:
    pass


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([KVCache()], False),
        ([KVCache(), ArraysCache(2)], True),
        ([KVCache(), _Unknown()], True),
        ([KVCache().merge([KVCache()])], True),
    ],
    ids=["kv", "arrays", "unknown", "batched"],
)
def test_what_counts_as_a_state(layers: list[Any], *, expected: bool) -> None:
    class Model:
        def make_cache(self) -> list[Any]:
            return layers

    assert has_recurrent_layers(Model()) is expected
