"""What fits, what is counted, and what a failure to make room costs."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from kvcache import AllocationError, KVPrefixCache
from tests.support.failures import allocation_failure, assert_settled, contents, failing
from tests.support.layers import KV, Arrays
from tests.support.memory import active, charged, peak, peak_from_here, spill
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV, held, nbytes

from .steps import get, put

if TYPE_CHECKING:
    from collections.abc import Callable

kinds = pytest.mark.parametrize("kind", MODELS)
spans = pytest.mark.parametrize("kind", SPANS)
hybrids = pytest.mark.parametrize("kind", ["arrays", "rotating", "state-only", "all"])


@pytest.mark.parametrize("kind", ["kv", "concatenate", "quantized", "list", "arrays", "state-only"])
@pytest.mark.parametrize("donate", [False, True])
def test_the_limit_is_none_that_may_be_passed_for_a_moment(kind: str, donate: bool) -> None:
    """23. Room is made before it is used: at no allocation is there more than the limit."""
    model, random = MODELS[kind](), Random(23)
    limit = model.nbytes(100)
    cache, base = KVPrefixCache(max_bytes=limit, segment_tokens=8), active()
    for _ in range(60):
        # Repeats, continuations and divergences within segments; some are longer than the limit.
        tokens = prompt(random.randrange(1, 60)) + prompt(random.randrange(70), first=random.randrange(1, 5))
        prompt_cache = model.filled(tokens)
        own, buffers = nbytes(prompt_cache), cache.stats().buffers + len(list(held(prompt_cache)))
        peak_from_here()
        stored = cache.store(tokens, prompt_cache, length=len(tokens), donate=donate)
        assert peak() - base <= limit + own + spill(buffers + cache.stats().buffers)
        assert stored.reason in ("stored", "already", "truncated", "too_large")
        del prompt_cache
        assert active() - base == charged(cache)
        assert cache.nbytes <= limit
    assert cache.stats().reclaim_cycles > 10


@spans
@pytest.mark.parametrize("excess", [1, 20, 900])
def test_one_token_too_many_does_not_cost_the_rest(kind: str, excess: int) -> None:
    """25. What can be cut is kept up to the limit."""
    model = MODELS[kind]()
    cache, tokens = KVPrefixCache(max_bytes=model.nbytes(100)), prompt(100 + excess)
    stored = put(cache, model, tokens)
    assert (stored.reason, stored.length, stored.nbytes) == ("truncated", 100, model.nbytes(100))
    assert get(cache, model, tokens).length == 100


@hybrids
def test_what_cannot_be_cut_and_does_not_fit_is_refused(kind: str) -> None:
    """25. And costs nothing that was there."""
    model = MODELS[kind]()
    cache = KVPrefixCache(max_bytes=model.nbytes(100) - 1)
    put(cache, model, prompt(50))
    before = contents(cache)
    refused = put(cache, model, prompt(100, first=1))
    assert (refused.reason, refused.length, bool(refused.evicted)) == ("too_large", 0, False)
    assert contents(cache) == before


def test_the_ledger_never_drifts() -> None:
    """26. Ten thousand random calls; after each the ledger is the sum of what is really held."""
    random, model = Random(26), PosKV(KV(heads=1), Arrays())
    keys = [prompt(random.randrange(1, 7)) + prompt(random.randrange(4), first=1) for _ in range(40)]
    filled = [model.filled(tokens) for tokens in keys]
    cache, pins = KVPrefixCache(max_bytes=model.nbytes(30), segment_tokens=2), []
    base = active() - cache.nbytes

    def take(tokens: list[int]) -> None:
        hit = cache.fetch([*tokens, 1], take=True)
        if hit:
            cache.store(tokens[: hit.length], hit.prompt_cache, donate=True)

    calls: list[Callable[[int], Any]] = [
        *4 * [lambda at: cache.store(keys[at], filled[at])],
        *2 * [lambda at: cache.fetch(keys[at])],
        lambda at: take(keys[at]),
        lambda at: cache.evict(50 * at),
        lambda at: cache.reserve(50 * at),
        lambda at: cache.trim_to(tokens=at),
        lambda at: pins.append(cache.pin(keys[at])),
        lambda at: pins and pins.pop(at % len(pins)).release(),
        lambda at: at or cache.clear(),
    ]
    for _ in range(10_000):
        random.choice(calls)(random.randrange(40))
        cache.validate()
        assert active() - base == charged(cache)
    for pin in pins:
        pin.release()
    put(cache, model, keys[0])
    assert not cache.trim_to(nbytes=cache.nbytes, tokens=cache.ntokens)
    assert cache.trim_to(nbytes=0).nbytes > 0
    assert (cache.nbytes, cache.ntokens, len(cache)) == (0, 0, 0)
    for _ in range(2):
        assert not cache.trim_to(nbytes=0, tokens=0)
    assert active() == base


@kinds
@pytest.mark.parametrize("more", [100, 900])
def test_room_that_cannot_be_made_costs_no_reuse(kind: str, more: int) -> None:
    """30. A reserve beyond the limit evicts nothing, least of all what the request restored."""
    model = MODELS[kind]()
    cache = KVPrefixCache(max_bytes=3 * model.nbytes(40))
    put(cache, model, prompt(40))
    put(cache, model, prompt(40, first=1))
    hit = cache.fetch(prompt(41))
    held_before = contents(cache)
    for wanted in (3 * model.nbytes(40), 30 * model.nbytes(40)):
        assert not cache.reserve(wanted, protect=hit)
    # A session reserves for its whole prompt; here that does not fit beside what it goes on from.
    tokens = prompt(40) + prompt(more, first=2)
    with cache.session(tokens, model=model) as session:
        assert session.hit.length == 40
        model.check(session.prompt_cache, prompt(40))
        assert contents(cache) == held_before
        session.prompt_cache.clear()
    assert get(cache, model, prompt(41)).length == 40
    assert get(cache, model, prompt(41, first=1)).length == 40


@kinds
@pytest.mark.parametrize("call", ["store", "fetch"])
def test_one_allocation_that_fails_is_made_good(kind: str, call: str) -> None:
    """31. Evict, reclaim, once more: the request does not notice."""
    model, cache = MODELS[kind](), KVPrefixCache()
    put(cache, model, prompt(30))
    put(cache, model, prompt(30, first=1))
    filled = model.filled(prompt(30, first=2))
    with failing(lambda at: at == 1, allocation_failure) as faults:
        if call == "store":
            stored = cache.store(prompt(30, first=2), filled, length=len(prompt(30, first=2)))
            assert stored.reason == "stored"
            assert stored.evicted.nbytes >= model.nbytes(30)
        else:
            model.check(cache.fetch(prompt(31, first=1)).prompt_cache, prompt(30, first=1))
    assert faults.raised == 1
    # The oldest went, and neither what was asked for nor the request itself.
    assert not cache.peek(prompt(31))
    assert get(cache, model, prompt(31, first=2 if call == "store" else 1)).length == 30
    assert_settled(cache)


@kinds
def test_allocations_that_go_on_failing_are_told(kind: str) -> None:
    """31. The second failure ends the store with an error; what is left is what it was."""
    model, cache = MODELS[kind](), KVPrefixCache()
    put(cache, model, prompt(30))
    put(cache, model, prompt(90, first=1))
    before, filled = contents(cache), model.filled(prompt(5, first=2))
    with failing(lambda _: True, allocation_failure), pytest.raises(AllocationError) as caught:
        cache.store(prompt(5, first=2), filled, length=len(prompt(5, first=2)))
    assert caught.value.evicted.cycles == 1
    assert contents(cache).items() < before.items()
    assert_settled(cache)
    model.check(filled, prompt(5, first=2))


class Remembering:
    """A class of its own that keeps its arrays in a dict and a list, beside what is none."""

    def __init__(self, tokens: int) -> None:
        self.offset = tokens
        self.state = {"sums": mx.ones((1, 4, 8)), "last": [mx.zeros((1, 3), mx.int32), None], "name": "x"}


def _with(cache: Any, dtype: mx.Dtype, tokens: int = 20, heads: int = 2) -> Any:
    cache.update_and_fetch(*mx.ones((2, 1, heads, tokens, 64), dtype))
    return cache


def _states(*slots: mx.array | None) -> ArraysCache:
    cache = ArraysCache(len(slots))
    cache.cache = list(slots)
    return cache


COUNTED: dict[str, tuple[Callable[[], list[Any]], int]] = {
    "float32": (lambda: [_with(KVCache(), mx.float32)], 2 * 20 * 2 * 64 * 4),
    "bfloat16": (lambda: [_with(KVCache(), mx.bfloat16)], 2 * 20 * 2 * 64 * 2),
    "4 bits": (lambda: [_with(QuantizedKVCache(64, 4), mx.float16)], 2 * 20 * 2 * (32 + 2 + 2)),
    "window": (lambda: [_with(RotatingKVCache(8), mx.float16)], 2 * 8 * 2 * 64 * 2),
    "nested": (
        lambda: [CacheList(CacheList(_states(None, mx.ones((1, 5)))), _with(KVCache(), mx.float16))],
        20 + 2 * 20 * 2 * 64 * 2,
    ),
    "slots": (
        lambda: [_with(KVCache(), mx.float32), _states(mx.ones((1, 5)), None, mx.ones((1, 2, 2)))],
        2 * 20 * 2 * 64 * 4 + 36,
    ),
    "dict": (lambda: [_with(KVCache(), mx.float16), Remembering(20)], 2 * 20 * 2 * 64 * 2 + 128 + 12),
}


@pytest.mark.parametrize("name", COUNTED)
def test_bytes_are_those_of_the_arrays(name: str) -> None:
    """33. Not a nominal figure: what MLX counts while nothing else is alive."""
    make, expected = COUNTED[name]
    cache, base = KVPrefixCache(), active()
    prompt_cache = make()
    mx.eval(list(held(prompt_cache)))
    stored = cache.store(prompt(20), prompt_cache)
    assert stored.reason == "stored"
    del prompt_cache
    assert active() - base == charged(cache)
    assert stored.nbytes == cache.nbytes == expected
    assert cache.stats().nbytes == expected
    cache.validate()


def test_a_limit_as_a_fraction_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """34. A quarter of what the device has is that many bytes, and not one more or less."""
    model, base = PosKV(KV()), active()
    # One entry is held, a request's own buffers are full, and the copy of them is to be made.
    needed = base + 3 * model.nbytes(256)
    for missing, length in ((0, 256), (1, 0)):
        device = {"memory_size": 4 * (needed - missing)}
        monkeypatch.setattr(mx, "device_info", lambda device=device: device)
        with KVPrefixCache(memory_limit=0.25) as cache:
            put(cache, model, prompt(256))
            put(cache, model, prompt(256, first=1))
            assert [cache.peek(prompt(257, first=first)).length for first in (0, 1)] == [length, 256]
