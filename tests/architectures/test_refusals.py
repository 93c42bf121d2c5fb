"""Caches that must not be stored: refused with a reason, and nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from .devices import runnable
from .runs import BY_NAME, CHUNK, TRUNK, built, chunks, leaves, play
from .tiny_models import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache import KVPrefixCache, Stored


def filled(cache: Any, tokens: int, *, batch: int = 1, heads: int = 2, width: int = 32) -> Any:
    """The cache after one update."""
    rows = mx.random.normal((batch, heads, tokens, width))
    cache.update_and_fetch(rows, rows + 1)
    return cache


def states(shape: tuple[int, ...], *, more: tuple[int, ...] = (1, 3, 8)) -> ArraysCache:
    cache = ArraysCache(2)
    cache[0], cache[1] = mx.ones(more), mx.ones(shape)
    return cache


def refused(
    prefixes: KVPrefixCache, caches: list[Any], reason: str, tokens: int = 12, **options: Any
) -> Stored:
    """Asserts that a store is refused and changes nothing but the counters."""
    before = prefixes.stats()
    stored = prefixes.store(TRUNK[:tokens], caches, **options)
    assert (stored.reason, stored.length, stored.new_tokens, stored.nbytes) == (reason, 0, 0, 0)
    assert stored.detail
    prefixes.validate()
    after = prefixes.stats()
    for name in ("nbytes", "ntokens", "nodes", "segments", "checkpoints", "buffers", "stored_tokens"):
        assert getattr(after, name) == getattr(before, name), name
    assert after.refused_by_reason[reason] == before.refused_by_reason.get(reason, 0) + 1
    return stored


OUT_OF_STEP = {
    "spans": lambda: [filled(KVCache(), 12), filled(KVCache(), 11)],
    "an empty span": lambda: [filled(KVCache(), 12), KVCache()],
    "quantised": lambda: [filled(KVCache(), 12), filled(KVCache(), 10).to_quantized(32, 8)],
    "span and window": lambda: [filled(KVCache(), 12), filled(RotatingKVCache(16), 11)],
    "windows": lambda: [filled(RotatingKVCache(8), 12), filled(RotatingKVCache(8), 9)],
    "an empty window": lambda: [filled(RotatingKVCache(8), 12), RotatingKVCache(8)],
    "chunks": lambda: [filled(ChunkedKVCache(8), 12), filled(ChunkedKVCache(8), 13)],
    "members of a list": lambda: [CacheList(filled(KVCache(), 12), filled(KVCache(), 11))],
    "nested lists": lambda: [
        CacheList(filled(KVCache(), 12), CacheList(filled(KVCache(), 12), filled(KVCache(), 11)))
    ],
    "a state not computed": lambda: [filled(KVCache(), 12), ArraysCache(2)],
    "a window beside a state not computed": lambda: [ArraysCache(2), filled(RotatingKVCache(8), 12)],
}


@pytest.mark.parametrize("make", OUT_OF_STEP.values(), ids=OUT_OF_STEP)
def test_layers_that_disagree(prefixes: KVPrefixCache, make: Callable[[], list[Any]]) -> None:
    refused(prefixes, make(), "offset_mismatch", tokens=13)


NOTHING = {
    "no layers": list,
    "spans": lambda: [KVCache(), KVCache()],
    "windows": lambda: [RotatingKVCache(8), RotatingKVCache(8)],
    "states": lambda: [ArraysCache(2), ArraysCache(2)],
    "hybrid": lambda: [ArraysCache(2), KVCache()],
    "lists": lambda: [CacheList(ArraysCache(2), KVCache())],
}


@pytest.mark.parametrize("make", NOTHING.values(), ids=NOTHING)
def test_caches_that_ran_nothing(prefixes: KVPrefixCache, make: Callable[[], list[Any]]) -> None:
    """An empty state under a key would be handed out as the state after these tokens."""
    refused(prefixes, make(), "empty")


def test_fresh_caches_of_every_architecture(prefixes: KVPrefixCache) -> None:
    for case in BY_NAME.values():
        refused(prefixes, case.fresh(built(case)), "empty")


def beyond(cache: Any) -> Any:
    """A cache whose offset went up before its rows were written."""
    cache.offset += cache.keys.shape[-2] if hasattr(cache.keys, "shape") else cache.keys[0].shape[-2]
    return cache


@pytest.mark.parametrize(
    "cache",
    [
        lambda: filled(KVCache(), 12),
        lambda: filled(KVCache(), 12).to_quantized(32, 8),
        lambda: filled(RotatingKVCache(300), 12),
        lambda: filled(ChunkedKVCache(300), 12),
    ],
)
def test_offsets_beyond_the_rows(prefixes: KVPrefixCache, cache: Callable[[], Any]) -> None:
    assert len(TRUNK) < 256
    stored = prefixes.store(TRUNK * 6, [beyond(cache())])
    assert (stored.reason, len(prefixes)) == ("offset_mismatch", 0)


BATCHES = {
    "KVCache": lambda: filled(KVCache(), 12, batch=2),
    "ConcatenateKVCache": lambda: filled(ConcatenateKVCache(), 12, batch=2),
    "QuantizedKVCache": lambda: filled(QuantizedKVCache(32, 8), 12, batch=2),
    "RotatingKVCache": lambda: filled(RotatingKVCache(8), 12, batch=2),
    "ChunkedKVCache": lambda: filled(ChunkedKVCache(8), 12, batch=2),
    "ArraysCache": lambda: states((2, 4), more=(2, 3)),
    "CacheList": lambda: CacheList(filled(KVCache(), 12, batch=2)),
    "BatchKVCache": lambda: BatchKVCache([0, 1]),
    "BatchRotatingKVCache": lambda: BatchRotatingKVCache(8, [0, 1]),
    "BatchKVCache of one": lambda: BatchKVCache([0]),
    "batch in a list": lambda: CacheList(BatchKVCache([0, 1]), KVCache()),
}


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_batches(prefixes: KVPrefixCache, make: Callable[[], Any]) -> None:
    assert "extract" in refused(prefixes, [make()], "batched").detail


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text", "llama4", "rwkv7", "deepseek_v41"])
def test_a_batch_run_by_a_model(prefixes: KVPrefixCache, name: str) -> None:
    case = BY_NAME[name]
    model = runnable(case)
    caches = case.fresh(model)
    model(mx.array([TRUNK[:12], TRUNK[12:24]]), cache=caches)
    refused(prefixes, caches, "batched")


MODELS: dict[str, list[Callable[[], Any]]] = {
    "llama": [
        lambda: build("llama", num_hidden_layers=3),
        lambda: build("llama", num_key_value_heads=1),
        lambda: build("llama", head_dim=16),
    ],
    "gemma3_text": [
        lambda: build("gemma3_text", num_hidden_layers=2),
        lambda: build("gemma3_text", num_key_value_heads=1),
        lambda: build("gemma3_text", head_dim=16),
    ],
    "mamba2": [
        lambda: build("mamba2", num_hidden_layers=3),
        lambda: build("mamba2", num_heads=8, head_dim=8),
        lambda: build("mamba2", num_heads=2, head_dim=32),
        lambda: build("mamba2", num_heads=8, intermediate_size=128),
    ],
    "mamba": [lambda: build("mamba", state_size=16), lambda: build("mamba", intermediate_size=64)],
    "deepseek_v3": [lambda: build("deepseek_v3", kv_lora_rank=16)],
    "deepseek_v32": [lambda: build("deepseek_v32", index_head_dim=24)],
    "qwen3_next": [
        lambda: build("qwen3_next", head_dim=16),
        lambda: build("qwen3_next", linear_num_value_heads=2, linear_value_head_dim=16),
    ],
    "rwkv7": [lambda: build("rwkv7", head_dim=8), lambda: build("rwkv7", hidden_size=64)],
    "deepseek_v41": [lambda: build("deepseek_v41", head_dim=64)],
}


@pytest.mark.parametrize("name", MODELS)
def test_caches_of_another_model(prefixes: KVPrefixCache, name: str) -> None:
    """Refused; otherwise the next fetch would hand this model a state of another shape."""
    case = BY_NAME[name]
    model = runnable(case)
    caches = case.fresh(model)
    play(case, model, caches, chunks(TRUNK, 0, 2 * CHUNK))
    assert prefixes.store(TRUNK[: 2 * CHUNK], caches, length=2 * CHUNK).reason == "stored"
    for make in MODELS[name]:
        other = make()
        theirs = case.fresh(other)
        play(case, other, theirs, chunks(TRUNK, 0, 3 * CHUNK))
        refused(prefixes, theirs, "layout_mismatch", tokens=3 * CHUNK, length=3 * CHUNK)
        # Under a namespace of its own it is fine.
        stored = prefixes.store(TRUNK[: 3 * CHUNK], theirs, namespace="other", length=3 * CHUNK)
        assert stored.reason == "stored"
        for namespace, runs in (("", model), ("other", other)):
            hit = prefixes.fetch(TRUNK, namespace=namespace)
            assert hit.length >= 2 * CHUNK
            assert mx.isfinite(runs(mx.array([hit.remaining]), cache=hit.prompt_cache)).all()
        prefixes.drop("other")


def test_models_in_lists_of_other_lengths(prefixes: KVPrefixCache) -> None:
    assert prefixes.store(TRUNK[:12], [CacheList(filled(KVCache(), 12), filled(KVCache(), 12))])
    refused(prefixes, [filled(KVCache(), 12), filled(KVCache(), 12)], "layout_mismatch")
    refused(prefixes, [CacheList(filled(KVCache(), 12))], "layout_mismatch")


def test_a_short_first_store_is_no_other_model(prefixes: KVPrefixCache) -> None:
    """A state that holds the last tokens themselves is shorter while there are few of them."""
    case = BY_NAME["longcat_flash_ngram"]
    model = runnable(case)
    caches = case.fresh(model)
    for count in (1, 2, 12):
        play(case, model, caches, [("run", TRUNK[caches[1][0].offset : count])])
        assert prefixes.store(TRUNK[:count], caches).reason == "stored"
    assert prefixes.peek(TRUNK[:13]).length == 12


def test_the_dtype_makes_another_layout_and_not_another_model(prefixes: KVPrefixCache) -> None:
    for dtype in (mx.float32, mx.bfloat16, mx.float16):
        cache = KVCache()
        rows = mx.ones((1, 2, 12, 32), dtype)
        cache.update_and_fetch(rows, rows)
        assert prefixes.store(TRUNK[:12], [cache]).reason == "stored"
        [found] = leaves(prefixes.fetch(TRUNK[:13]).prompt_cache)
        assert found.keys.dtype == dtype
