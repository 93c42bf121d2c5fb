"""Room is made for whatever a call allocates: the limit holds at the peak where evicting others is enough.

What a call needs is measured on a cache without a limit, so no formula of the library is in here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from kvcache import KVPrefixCache
from kvcache.integrations.mlx_lm import PromptCache
from tests.support import inside
from tests.support.memory import active, peak, peak_from_here, spill
from tests.support.models import MODELS, prompt
from tests.support.poskv import held

if TYPE_CHECKING:
    from tests.support.poskv import PosKV

SEGMENT, LENGTH, OTHERS = 64, 100, 12
BASE = prompt(LENGTH)
BRANCH = [*BASE[:30], 7]

Prepared = Callable[[], object]


def _fetch(cache: KVPrefixCache, model: PosKV, remaining: int, **options: Any) -> Prepared:
    model.filled(BASE)
    tokens = [*BASE, *[5] * remaining]
    return lambda: cache.fetch(tokens, **options)


def _store(cache: KVPrefixCache, model: PosKV, tokens: list[int], **options: Any) -> Prepared:
    layers = model.filled(tokens)
    return lambda: cache.store(tokens, layers, length=len(tokens), **options)


CALLS: dict[str, Callable[[KVPrefixCache, PosKV], Prepared]] = {
    "fetch": lambda cache, model: _fetch(cache, model, 1),
    "fetch with a long rest": lambda cache, model: _fetch(cache, model, 1000),
    "take": lambda cache, model: _fetch(cache, model, 1, take=True),
    "take with a long rest": lambda cache, model: _fetch(cache, model, 1000, take=True),
    "store": lambda cache, model: _store(cache, model, prompt(LENGTH, first=9)),
    "store that splits": lambda cache, model: _store(cache, model, BRANCH),
    "store that goes on": lambda cache, model: _store(cache, model, [*BASE, *prompt(40, first=9)]),
    "donate": lambda cache, model: _store(cache, model, prompt(LENGTH, first=9), donate=True),
    "donate that splits": lambda cache, model: _store(cache, model, BRANCH, donate=True),
}


def _filled(model: PosKV, cache: KVPrefixCache) -> None:
    for first in range(20, 20 + OTHERS):
        tokens = prompt(LENGTH, first=first)
        assert cache.store(tokens, model.filled(tokens), length=LENGTH).reason == "stored"
    assert cache.store(BASE, model.filled(BASE), length=LENGTH).reason == "stored"


def _rounding(model: PosKV) -> int:
    """What the buffers of a call, two segments, a half and a copy in each, are charged above their bytes."""
    return spill(4 * len(list(held(model.filled([1])))))


def _measured(cache: KVPrefixCache, prepared: Prepared) -> tuple[int, int, object]:
    """(active before, peak during, what the call returned)"""
    before = active()
    peak_from_here()
    result = prepared()
    return before, peak(), result


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", CALLS)
def test_room_is_made_for_all_that_a_call_allocates(name: str, kind: str) -> None:
    model = MODELS[kind]()
    cache = KVPrefixCache(segment_tokens=SEGMENT)
    _filled(model, cache)
    before, reached, result = _measured(cache, CALLS[name](cache, model))
    need, spare = reached - before, OTHERS * model.nbytes(LENGTH) // 2
    del result
    cache.close()
    for part in (4, 2, 1):
        limited = KVPrefixCache(segment_tokens=SEGMENT)
        _filled(model, limited)
        prepared = CALLS[name](limited, model)
        # So much has to be evicted, and twice as much could be.
        limit = active() + need - min(spare, need) // part
        inside.limit(limited, limit)
        _, reached, result = _measured(limited, prepared)
        assert reached <= limit + _rounding(model), (reached - limit, part)
        assert result.length > 0  # type: ignore[attr-defined]
        del result, prepared
        limited.validate()
        limited.close()


@pytest.mark.parametrize("kind", ["kv", "quantized", "arrays", "rotating-keep", "all"])
def test_the_prompt_cache_of_servers_announces_alike(kind: str) -> None:
    model, needs = MODELS[kind](), []
    for limited in (False, True):
        cache = PromptCache(max_size=None)
        for first in range(20, 20 + OTHERS):
            cache.insert_cache("m", prompt(LENGTH, first=first), model.filled(prompt(LENGTH, first=first)))
        layers = model.filled(BASE)
        limit = None
        if limited:
            limit = active() + needs[0] // 2
            inside.limit(cache.cache, limit)
        before = active()
        peak_from_here()
        cache.insert_cache("m", BASE, layers)
        if limit is None:
            needs.append(peak() - before)
        else:
            assert peak() <= limit
            assert cache.cache.stats().evictions > 0
        cache.cache.validate()
        cache.cache.close()
