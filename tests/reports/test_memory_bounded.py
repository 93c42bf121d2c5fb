"""Memory that grows only up to its limit, and goes no further than it must."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from kvcache import KVPrefixCache
from kvcache.integrations.mlx_lm import PromptCache
from tests.support.layers import KV, Arrays
from tests.support.memory import active, charged, footprint, peak, peak_from_here, spill
from tests.support.models import MODELS, prompt
from tests.support.poskv import PosKV, held, nbytes

from .steps import get, put, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Reclaims

kinds = pytest.mark.parametrize("kind", MODELS)


class Machine:
    """A pressure source: others' memory and MLX's own, active and cached, against a limit."""

    def __init__(self) -> None:
        self.others = 0
        self.limit = 1 << 60

    def excess_bytes(self) -> int:
        return max(0, self.others + footprint() - self.limit)


def test_one_entry_of_five_cures_the_pressure() -> None:
    """2. Five entries of 6 %, others at 60 %, limit 85 %: the pressure falls while it evicts."""
    model, machine = PosKV(KV()), Machine()
    cache, percent, base = KVPrefixCache(pressure=machine), model.nbytes(640) // 6, footprint()
    for first in range(5):
        put(cache, model, prompt(640, first=first))
    machine.others, machine.limit = 60 * percent - base, 85 * percent
    mx.set_cache_limit(1 << 30)  # what is dropped weighs as much as before until the pool is cleared
    evicted = cache.reserve(0)
    assert (evicted.segments, evicted.cycles, machine.excess_bytes()) == (1, 1, 0)
    assert [cache.peek(prompt(641, first=first)).length for first in range(5)] == [0] + 4 * [640]


def _store(cache: KVPrefixCache, model: PosKV, tokens: list[int]) -> None:
    put(cache, model, tokens)


def _donate(cache: KVPrefixCache, model: PosKV, tokens: list[int]) -> None:
    put(cache, model, tokens, donate=True)


def _session(cache: KVPrefixCache, model: PosKV, tokens: list[int]) -> None:
    request(cache, model, tokens)


def _take(cache: KVPrefixCache, model: PosKV, tokens: list[int]) -> None:
    put(cache, model, tokens)
    hit = cache.fetch([*tokens, 1], take=True)
    assert hit.length == len(tokens)
    model.grow(hit.prompt_cache, [1])
    cache.store([*tokens, 1], hit.prompt_cache, length=len([*tokens, 1]))


def _insert(served: PromptCache, model: PosKV, tokens: list[int]) -> None:
    served.insert_cache("model", tokens, model.filled(tokens), length=len(tokens))


WAYS: dict[str, tuple[Callable[..., Any], Callable[[Any, PosKV, list[int]], None]]] = {
    "store": (KVPrefixCache, _store),
    "donate": (KVPrefixCache, _donate),
    "session": (KVPrefixCache, _session),
    "take": (KVPrefixCache, _take),
    "mlx_lm": (partial(PromptCache, max_size=None), _insert),
}


@pytest.mark.parametrize("kind", ["kv", "quantized", "rotating", "arrays", "state-only", "all"])
@pytest.mark.parametrize("way", WAYS)
def test_the_byte_limit_holds_on_every_way_in(kind: str, way: str) -> None:
    """4, 37. A hundred entries under a limit of three and a third; exact snapshots as well."""
    model, base = MODELS[kind](), active()
    make, insert = WAYS[way]
    limit = model.nbytes(3) * 10 // 3
    cache = make(max_bytes=limit)
    for first in range(100):
        insert(cache, model, prompt(3, first=first))
        assert 0 < cache.nbytes <= limit
        assert active() - base == charged(getattr(cache, "cache", cache))
    assert len(cache) >= 2


def _spill(cache: KVPrefixCache, prompt_cache: list[Any]) -> int:
    """What the buffers of both, and of one more segment, are charged above their bytes at most."""
    return spill(cache.stats().buffers + 2 * len(list(held(prompt_cache))))


@pytest.mark.parametrize("kind", ["kv", "quantized", "list", "rotating", "arrays", "all"])
def test_two_hundred_growing_turns(kind: str) -> None:
    """5. However long the chat: the limit, and beside it the one request that runs."""
    model, tokens = MODELS[kind](), []
    limit, segment = model.nbytes(300), model.nbytes(8)
    cache, base = KVPrefixCache(max_bytes=limit, segment_tokens=8), active()
    for turn in range(200):
        tokens += prompt(3, first=turn)
        peak_from_here()
        prompt_cache = cache.fetch(tokens).prompt_cache or model.make_cache()
        assert peak() - base <= limit + nbytes(prompt_cache) + segment + _spill(cache, prompt_cache)
        model.grow(prompt_cache, tokens[model.layers[0].length(prompt_cache[0]) :])
        own, more = nbytes(prompt_cache), _spill(cache, prompt_cache)
        peak_from_here()
        cache.store(tokens, prompt_cache)
        assert peak() - base <= limit + own + segment + more
        del prompt_cache
        assert active() - base == charged(cache)
        assert cache.nbytes <= limit
    assert cache.nbytes > limit // 2


@pytest.mark.parametrize("kind", ["arrays", "state-only", "opaque", "list-state"])
def test_entries_that_nothing_continues_go_too(kind: str) -> None:
    """9. Fifty prompts with answers that no later prompt begins with: the newest five stay."""
    model, base = MODELS[kind](), active()
    entry = model.nbytes(40)
    cache = KVPrefixCache(max_bytes=5 * entry)
    for first in range(50):
        assert put(cache, model, prompt(40, first=first)).reason == "stored"
    assert len(cache) == 5
    assert active() - base == charged(cache)
    assert cache.nbytes == 5 * entry
    alive = [first for first in range(50) if get(cache, model, prompt(41, first=first))]
    assert alive == [45, 46, 47, 48, 49]


def test_buffers_are_limited_by_number() -> None:
    """17. 36 layers of two arrays, limit 100: one entry; what a split would add counts as well."""
    model, cache = PosKV(*(KV(heads=1) for _ in range(36))), KVPrefixCache(max_buffers=100)
    put(cache, model, prompt(5))
    second = put(cache, model, prompt(5, first=1))
    assert (second.reason, second.evicted.segments) == ("stored", 1)
    put(cache, model, [*prompt(3, first=1), 9, 9])
    assert cache.stats().buffers == 72
    cache = KVPrefixCache(max_buffers=300)
    for tail in range(10):
        tokens = [*prompt(3), 1000 + tail, 1001 + tail]
        assert put(cache, model, tokens).reason == "stored"
        assert cache.stats().buffers <= 300
        assert get(cache, model, [*tokens, 1]).length == 5
    assert cache.stats().segments == 4


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("make", [lambda: PosKV(KV()), lambda: PosKV(KV(), Arrays())], ids=["kv", "arrays"])
def test_idle_time_releases_what_nobody_uses(make: Callable[[], PosKV], reclaims: Reclaims) -> None:
    """19. After 300 idle seconds one reclaim, and only what is pinned or was used since is left."""
    now = 0.0
    model, base = make(), footprint()
    cache = KVPrefixCache(clock=lambda: now)
    for first in range(4):
        put(cache, model, prompt(30, first=first))
    pin = cache.pin(prompt(30))
    now = 200.0
    get(cache, model, prompt(31, first=1))
    now = 299.0
    assert not cache.evict_idle(300)
    now = 301.0
    evicted = cache.evict_idle(300)
    assert evicted.nbytes == 2 * model.nbytes(30)
    assert (reclaims.collections, reclaims.clearings) == (1, 1)
    assert [get(cache, model, prompt(31, first=first)).length for first in range(4)] == [30, 30, 0, 0]
    pin.release()
    now = 1000.0
    assert cache.evict_idle(300)
    assert (cache.nbytes, footprint()) == (0, base)
