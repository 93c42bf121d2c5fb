"""A cache without other ranks never meets anybody, whatever is called."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from kvcache import KVPrefixCache
from tests.support import inside
from tests.support.layers import KV, Arrays
from tests.support.poskv import PosKV


@pytest.mark.parametrize("layers", [(KV(),), (KV(), Arrays())], ids=["spans", "hybrid"])
@pytest.mark.parametrize("group", [None, mx.distributed.init()], ids=["none", "one"])
def test_one_process_makes_no_collective(
    group: Any, layers: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a collective in a single process")

    monkeypatch.setenv("KVCACHE_CHECK_RANKS", "1")
    for name in ("all_min", "all_max", "all_sum", "all_gather", "send", "recv"):
        monkeypatch.setattr(mx.distributed, name, never)
    model, cache = PosKV(*layers), KVPrefixCache(group=group, max_bytes=10**6, memory_limit=10**12)
    tokens = list(range(20))
    with cache.session(tokens[:-1], model=model, prefill_step_size=8) as session:
        model.grow(session.prompt_cache, tokens[:8])
        session.on_progress(8, len(tokens) - 1)
        model.grow(session.prompt_cache, tokens[8:])
        session.append(tokens[-1])
    cache.store(tokens[:12], model.filled(tokens[:12]))
    hit = cache.fetch([*tokens, 1])
    assert hit.length == len(tokens)
    assert cache.peek([*tokens, 1]).length == len(tokens)
    cache.reserve(10, protect=hit)
    cache.pin(tokens).release()
    cache.evict(1)
    cache.evict_idle(10**6)
    cache.trim_to(nbytes=1000)
    cache.fetch(tokens, take=True)
    cache.store(tokens, model.filled(tokens), donate=True)
    cache.drop("")
    cache.clear()
    assert inside.ranks(cache).collectives == 0
    cache.close()
