"""Memory that must come back, to the byte and before the call returns."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from kvcache import AllocationError, KVPrefixCache
from tests.support.failures import allocation_failure, failing
from tests.support.layers import KV, Concatenate, Quantized, Rotating
from tests.support.memory import (
    active,
    charged,
    charges,
    footprint,
    given_back,
    peak,
    peak_from_here,
    weigh,
)
from tests.support.models import MODELS, prompt
from tests.support.poskv import PosKV, held, nbytes

from .steps import get, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Reclaims

kinds = pytest.mark.parametrize("kind", MODELS)


@kinds
def test_an_eviction_frees_what_hangs_in_a_reference_cycle(kind: str) -> None:
    """1. An entry and a request's copy of it in a cycle: both are free when ``evict`` returns."""
    model, cache, base = MODELS[kind](), KVPrefixCache(), footprint()
    gc.disable()  # or it may collect the knot before the eviction does
    try:
        put(cache, model, prompt(60))
        hit = cache.fetch([*prompt(60), 1])
        knot: list[Any] = [hit, *held(hit.prompt_cache)]
        knot.append(knot)
        own = charges(held(hit.prompt_cache))
        del hit, knot
        entry, before = cache.nbytes, weigh(cache)
        mx.set_cache_limit(1 << 30)  # from here on dropped buffers wait in the pool
        evicted = cache.evict(entry)
        assert before.footprint - footprint() == evicted.freed == before.charged + own
    finally:
        gc.enable()
    assert (evicted.nbytes, evicted.cycles) == (entry, 1)
    assert footprint() == base


def test_taking_an_entry_needs_one_context_and_not_two() -> None:
    """3. A copy doubles a long context for a moment; a take adds one layer to it."""
    model, tokens = PosKV(*(Concatenate() for _ in range(24))), prompt(512)
    entry, cache, base = model.nbytes(512), KVPrefixCache(), active()
    put(cache, model, tokens)
    peak_from_here()
    hit = cache.fetch([*tokens, 1])
    assert peak() - base >= 2 * entry
    del hit
    peak_from_here()
    hit = cache.fetch([*tokens, 1], take=True)
    assert peak() - base <= entry + entry // 24
    assert active() - base == entry
    assert (cache.nbytes, len(cache), cache.peek([*tokens, 1]).length) == (0, 0, 0)
    model.check(hit.prompt_cache, tokens)
    cache.store(tokens, hit.prompt_cache, donate=True)
    del hit
    assert active() - base == cache.nbytes == entry
    assert get(cache, model, [*tokens, 1]).length == 512


@pytest.mark.usefixtures("pool")
@kinds
@pytest.mark.parametrize("failed", [False, True], ids=["6", "18"])
def test_clearing_leaves_neither_arrays_nor_a_pool(kind: str, failed: bool) -> None:
    """6, 18. After ``clear``, also behind a fetch that found no memory, nothing of MLX's is left."""
    model, cache, base = MODELS[kind](), KVPrefixCache(), active()
    for first in range(10):
        put(cache, model, prompt(100, first=first))
        get(cache, model, prompt(101, first=first // 2))
    assert mx.get_cache_memory() > 0
    if failed:
        with pytest.raises(AllocationError), failing(lambda _: True, allocation_failure):
            cache.fetch(prompt(101))
    cleared = cache.clear()
    assert (mx.get_cache_memory(), active()) == (0, base)
    assert cleared.cycles == 1


def _closed_by_its_block(cache: KVPrefixCache) -> None:
    with cache:
        pass


ENDS: dict[str, Callable[[KVPrefixCache], object]] = {
    "close": lambda cache: cache.close(),
    "a block's end": _closed_by_its_block,
    "drop": lambda cache: cache.drop("model"),
    "clear": lambda cache: cache.clear(),
}


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("end", ENDS)
def test_unloading_a_model_reclaims_once(end: str, reclaims: Reclaims) -> None:
    """7. Dropping references alone frees nothing; one collection and one cleared pool do."""
    model, cache, base = MODELS["all"](), KVPrefixCache(), footprint()
    for first in range(5):
        put(cache, model, prompt(50, first=first), namespace="model")
    assert (reclaims.collections, reclaims.clearings) == (0, 0)
    ENDS[end](cache)
    assert (reclaims.collections, reclaims.clearings) == (1, 1)
    assert footprint() == base


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_rotating_layer_s_copy_is_its_window(keep: int, lazy: bool) -> None:
    """11. Neither the rows that a long chunk left, nor the graph they came from, live on."""
    model, cache, base = PosKV(Rotating(64, keep)), KVPrefixCache(), active()
    tokens, window = prompt(450), model.nbytes(64)
    prompt_cache = model.filled(tokens[:200])
    if lazy:
        model.append(prompt_cache, tokens[200:])
    else:
        model.grow(prompt_cache, tokens[200:])
    assert nbytes(prompt_cache) > 4 * window
    cache.store(tokens, prompt_cache)
    del prompt_cache
    assert active() - base == charged(cache)
    assert cache.nbytes == window
    hit = cache.fetch([*tokens, 1])
    model.check(hit.prompt_cache, tokens)
    cache.close()
    assert active() - base == charges(held(hit.prompt_cache))
    assert nbytes(hit.prompt_cache) == window


@pytest.mark.parametrize(("rows", "kept"), [(10_000, 256), (130, 120), (130, 129), (40, 1)])
def test_a_slice_does_not_keep_its_parent(rows: int, kept: int) -> None:
    """14. Whether the parent is 40 times larger or only a few rows: what is held is the slice's."""
    model, cache, base = PosKV(KV(heads=1)), KVPrefixCache(), active()
    prompt_cache = model.filled(prompt(rows))
    layer = prompt_cache[0]
    layer.keys, layer.values, layer.offset = layer.keys[..., :kept, :], layer.values[..., :kept, :], kept
    cache.store(prompt(kept), prompt_cache)
    del prompt_cache, layer
    assert active() - base == charged(cache)
    assert cache.nbytes == model.nbytes(kept)


def test_a_fetched_slice_does_not_keep_the_segment() -> None:
    """14. The same on the way out: a short prefix of a long segment is a copy of just that."""
    model, cache, base = PosKV(Concatenate(), Concatenate()), KVPrefixCache(), active()
    put(cache, model, prompt(1000))
    hit = cache.fetch([*prompt(25), 1])
    cache.close()
    assert active() - base == charges(held(hit.prompt_cache))
    assert nbytes(hit.prompt_cache) == model.nbytes(25) == model.nbytes(1000) // 40
    model.check(hit.prompt_cache, prompt(25))


@kinds
@pytest.mark.parametrize("length", [256, 7])
def test_writing_into_a_stored_cache_changes_nothing(kind: str, length: int) -> None:
    """15. 256 tokens fill a KVCache's buffers: a copy made only where needed would not be one."""
    model, cache = MODELS[kind](), KVPrefixCache()
    prompt_cache = model.filled(prompt(length))
    cache.store(prompt(length), prompt_cache, length=len(prompt(length)))
    for array in held(prompt_cache):
        array[...] = 1
    mx.eval(list(held(prompt_cache)))
    assert get(cache, model, [*prompt(length), 1]).length == length


@pytest.mark.parametrize("segment_tokens", [1024, 50, 16])
@pytest.mark.parametrize("make", [KV, Quantized])
def test_half_of_a_split_frees_its_own_bytes(segment_tokens: int, make: type[KV]) -> None:
    """16. Where two prompts part a segment is cut; the older half's end goes alone."""
    model, cache = PosKV(make(), make()), KVPrefixCache(segment_tokens=segment_tokens)
    old, new = prompt(100), [*prompt(50), 9000]
    put(cache, model, old)
    put(cache, model, new)
    before = weigh(cache)
    evicted = cache.evict(model.nbytes(50))
    assert evicted.freed == given_back(before, cache)
    assert evicted.nbytes == model.nbytes(50)
    assert evicted.tokens == 50
    assert get(cache, model, [*old, 1]).length == 50
    assert get(cache, model, [*new, 1]).length == 51
