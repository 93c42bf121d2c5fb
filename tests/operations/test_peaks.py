"""How high memory rises: what is handed out, and what a store, a take and a donation need meanwhile."""

from __future__ import annotations

import pytest

from kvcache import KVPrefixCache
from tests.support.entries import stored
from tests.support.inside import stored_arrays
from tests.support.layers import KV
from tests.support.memory import active, charged, charges, peak, peak_from_here, spill
from tests.support.models import MODELS, prompt
from tests.support.poskv import PosKV, held, nbytes

kinds = pytest.mark.parametrize("kind", MODELS)


@pytest.mark.pairwise
@kinds
@pytest.mark.parametrize("length", [7, 64, 300])
@pytest.mark.parametrize("remaining", [1, 256, 257])
def test_a_fetch_hands_out_its_tokens_and_room_for_the_rest(kind: str, length: int, remaining: int) -> None:
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=64)
    stored(model, cache, prompt(length))
    rest = [3] * remaining
    before = active()
    hit = cache.fetch(prompt(length) + rest)
    assert hit.length == length
    assert nbytes(hit.prompt_cache) == model.roomy(length, len(rest))
    assert active() - before == charges(held(hit.prompt_cache))
    model.check(hit.prompt_cache, prompt(length))


@pytest.mark.parametrize("kind", ["kv", "quantized", "list"])
def test_running_the_rest_copies_nothing(kind: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache()
    stored(model, cache, prompt(300))
    rest = [3] * 200
    hit = cache.fetch(prompt(300) + rest)
    before = active()
    model.grow(hit.prompt_cache, rest)
    assert active() == before
    model.check(hit.prompt_cache, prompt(300) + rest)


@kinds
@pytest.mark.parametrize("donate", [False, True])
def test_growing_turns_peak_at_limit_and_one_request(kind: str, donate: bool) -> None:
    model, segment = MODELS[kind](), 16
    limit = model.nbytes(160) + 6 * (model.nbytes(16) - model.nbytes(15)) * segment
    cache = KVPrefixCache(max_bytes=limit, segment_tokens=segment)
    base = active()
    for turn in range(1, 40):
        tokens = prompt(3, first=turn % 4) + prompt(4 * turn)
        prompt_cache = model.filled(tokens)
        own, buffers = (
            active() - base - charged(cache),
            cache.stats().buffers + 2 * len(list(held(prompt_cache))),
        )
        peak_from_here()
        cache.store(tokens, prompt_cache, length=len(tokens), donate=donate)
        assert peak() - base <= limit + own + model.nbytes(segment) + spill(buffers)
        del prompt_cache
        assert active() - base == charged(cache)
        assert cache.nbytes <= limit


@pytest.mark.parametrize("kind", ["concatenate", "kv", "arrays", "opaque", "list-state", "state-only", "all"])
def test_take_peaks_at_one_context_and_one_layer(kind: str) -> None:
    layers = MODELS[kind]().layers
    model, length = PosKV(*layers, *MODELS[kind]().layers), 2000
    cache, base = KVPrefixCache(), active()
    stored(model, cache, prompt(length))
    largest = max(charges(held([layer])) for layer in model.filled([*prompt(length), 1]))
    # What is stored lies in more and smaller buffers than what is handed out.
    smaller = spill(len(list(stored_arrays(cache))))
    peak_from_here()
    hit = cache.fetch([*prompt(length), 1], take=True)
    reached = peak() - base
    model.check(hit.prompt_cache, prompt(length))
    assert reached <= charges(held(hit.prompt_cache)) + largest + smaller
    assert cache.nbytes == 0
    assert active() - base == charges(held(hit.prompt_cache))
    cache.store(prompt(length), hit.prompt_cache, length=length, donate=True)
    model.check(cache.fetch([*prompt(length), 1]).prompt_cache, prompt(length))


@pytest.mark.parametrize("kind", ["concatenate", "kv", "arrays", "list-state", "state-only", "rotating"])
def test_donate_peaks_at_one_context_and_one_layer(kind: str) -> None:
    layers = MODELS[kind]().layers
    model, length = PosKV(*layers, *MODELS[kind]().layers), 2000
    cache, base = KVPrefixCache(), active()
    prompt_cache = model.filled(prompt(length))
    own = charges(held(prompt_cache))
    largest = max(charges(held([layer])) for layer in prompt_cache)
    peak_from_here()
    stored = cache.store(prompt(length), prompt_cache, length=length, donate=True)
    assert stored.reason == "stored"
    assert peak() - base <= own + largest + spill(cache.stats().buffers)
    assert nbytes(prompt_cache) == 0
    assert active() - base == charged(cache)
    assert cache.nbytes == model.nbytes(length)


def test_take_leaves_a_shared_prefix() -> None:
    model, cache = PosKV(KV()), KVPrefixCache(segment_tokens=16)
    one, two = prompt(32) + prompt(32, first=1), prompt(32) + prompt(32, first=2)
    stored(model, cache, one, two)
    hit = cache.fetch([*one, 1], take=True)
    model.check(hit.prompt_cache, one)
    assert cache.ntokens == 64
    assert cache.peek([*two, 1]).length == 64
    assert cache.peek([*one, 1]).length == 32
    cache.store(one, hit.prompt_cache)
    assert cache.ntokens == 96
