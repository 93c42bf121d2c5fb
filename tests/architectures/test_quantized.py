"""Layouts that change in mid-request: a KVCache becomes a QuantizedKVCache, under the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from .devices import runnable
from .runs import BY_NAME, CHUNK, STRAIGHT, TRUNK, Kinds, leaves, play

if TYPE_CHECKING:
    import numpy as np

    from kvcache import KVPrefixCache

    from .devices import Cold
    from .runs import Case

LATE = ["llama.q8.late", "qwen3_next.q8.late"]

late = pytest.mark.parametrize("case", [BY_NAME[name] for name in LATE], ids=LATE)


def classes(prompt_cache: list[Any]) -> set[type]:
    return {type(cache) for cache in leaves(prompt_cache) if Kinds.of([cache]).spans}


def stored_along(
    case: Case, model: Any, prefixes: KVPrefixCache, caches: list[Any], first: int, last: int
) -> list[np.ndarray]:
    """Passes of the straight run, each stored."""
    seen, key = [], [token for step in STRAIGHT[:first] for token in step[1]]
    for step in STRAIGHT[first:last]:
        seen += play(case, model, caches, [step])
        key += step[1]
        assert prefixes.store(key, caches).length == len(key)
        prefixes.validate()
    return seen


@late
def test_the_layout_changes_while_a_request_is_stored(
    case: Case, model: Any, cold: Cold, prefixes: KVPrefixCache
) -> None:
    caches = case.fresh(model)
    seen = stored_along(case, model, prefixes, caches, 0, 1)
    assert classes(caches) == {KVCache}
    # A second request continues from the plain KV, and crosses over.
    hit = prefixes.fetch(TRUNK[: 2 * CHUNK])
    assert (hit.length, classes(hit.prompt_cache)) == (CHUNK, {KVCache})
    seen += stored_along(case, model, prefixes, hit.prompt_cache, 1, 3)
    assert classes(hit.prompt_cache) == {QuantizedKVCache}
    # Both are held, each as a whole: neither can be joined to the other.
    assert prefixes.ntokens == CHUNK + 3 * CHUNK

    # The longest usable one is handed out, and the other one where only that is left.
    hit = prefixes.fetch(TRUNK[:60])
    assert (hit.length, classes(hit.prompt_cache)) == (3 * CHUNK, {QuantizedKVCache})
    seen += stored_along(case, model, prefixes, hit.prompt_cache, 3, len(STRAIGHT))
    assert len(seen) == len(STRAIGHT)
    cold.same(seen, f"{case.name}/straight", 0)
    while prefixes.peek(TRUNK[:60]).length > CHUNK:
        prefixes.evict(1)
        prefixes.validate()


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [("llama", "llama.q8"), ("llama.q8", "llama"), ("llama.q8", "llama.q4"), ("qwen3_next.q8", "qwen3_next")],
)
def test_the_layout_with_the_longest_prefix_serves(
    shorter: str, longer: str, cold: Cold, prefixes: KVPrefixCache
) -> None:
    """Whichever was stored first; and evicting one leaves the other whole."""
    for name, last in ((shorter, 2), (longer, 3)):
        case = BY_NAME[name]
        model = runnable(case)
        stored_along(case, model, prefixes, case.fresh(model), 0, last)
    for _ in range(2):
        hit = prefixes.fetch(TRUNK[:60])
        assert hit.length == 3 * CHUNK
        cold.same(play(case, model, hit.prompt_cache, STRAIGHT[3:9]), f"{longer}/straight", 3)
        prefixes.trim_to(tokens=3 * CHUNK)
        prefixes.validate()
        assert prefixes.ntokens == 3 * CHUNK


@pytest.mark.parametrize("group_size", [32, 64])
def test_bits_and_groups_never_mix(prefixes: KVPrefixCache, group_size: int) -> None:
    """Every quantisation is a layout of its own, and all are of the same model."""
    rows = mx.random.normal((1, 1, 12, 64))
    seen = []
    for bits in (2, 4, 8):
        cache = QuantizedKVCache(group_size, bits)
        cache.update_and_fetch(rows, rows)
        assert prefixes.store(TRUNK[:12], [cache]).reason == "stored"
        [found] = prefixes.fetch(TRUNK[:13]).prompt_cache
        assert (found.group_size, found.bits) == (group_size, bits)
        for mine, theirs in zip((*cache.keys, *cache.values), (*found.keys, *found.values), strict=True):
            assert mx.array_equal(mine[..., :12, :], theirs[..., :12, :])
        seen.append(found.keys[0].shape[-1])
        prefixes.validate()
    assert len(set(seen)) == 3
    plain = KVCache()
    plain.update_and_fetch(rows, rows)
    assert prefixes.store(TRUNK[:12], [plain]).reason == "stored"
    other = KVCache()
    other.update_and_fetch(rows[..., :32], rows[..., :32])
    assert prefixes.store(TRUNK[:12], [other]).reason == "layout_mismatch"
