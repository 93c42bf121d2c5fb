"""A close that interrupts a call in any section is carried out when that call ends, and not later."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvcache
from kvcache import KVCacheError, KVPrefixCache
from kvcache.integrations.exo import KVPrefixCache as ExoCache
from kvcache.integrations.mlx_lm import PromptCache
from tests.support import inside
from tests.support.layers import KV, Arrays
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable

MODEL, HYBRID = PosKV(KV()), PosKV(KV(), Arrays())
Work = tuple[KVPrefixCache, "Callable[[], object]"]


def _served() -> PromptCache:
    served = PromptCache(max_size=1)
    served.insert_cache("m", [1, 2, 3], MODEL.filled([1, 2, 3]))
    return served


def _insert() -> Work:
    served = _served()
    return served.cache, lambda: served.insert_cache("m", [5, 6], MODEL.filled([5, 6]))


def _of_prompt_cache(call: Callable[[PromptCache], object]) -> Callable[[], Work]:
    def prepare() -> Work:
        served = _served()
        return served.cache, lambda: call(served)

    return prepare


def _prompts() -> Work:
    cache = ExoCache(None)
    cache.add_kv_cache(np.array([1, 2, 3]), MODEL.filled([1, 2, 3]))
    return cache.cache, lambda: cache.prompts


def _entered(model: PosKV, **options: Any) -> Callable[[], Work]:
    def prepare() -> Work:
        cache = KVPrefixCache()
        cache.store([1, 2, 3], model.filled([1, 2, 3]))
        return cache, lambda: cache.session([1, 2, 3, 4], model=model, **options).__enter__()

    return prepare


CALLS: dict[str, Callable[[], Work]] = {
    "insert": _insert,
    "fetch": _of_prompt_cache(lambda served: served.fetch_nearest_cache("m", [1, 2, 3, 4])),
    "trim": _of_prompt_cache(lambda served: served.trim_to(n_sequences=0)),
    "figures": _of_prompt_cache(lambda served: served.stats_by_type()),
    "len": _of_prompt_cache(len),
    "prompts": _prompts,
    "session": _entered(MODEL),
    "session that takes": _entered(MODEL, take=True),
    "session of a hybrid": _entered(HYBRID),
}
FOLDER = kvcache.__path__[0]


def _closed_at(line: int, cache: KVPrefixCache, call: Callable[[], object]) -> bool:
    """Runs the call, closes at that line of those that hold the lock; whether it came so far."""
    left = line

    def trace(frame: Any, event: str, _arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line" and left and inside.lock(cache).owned:
            left -= 1
            if not left:
                sys.settrace(None)
                cache.close()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KVCacheError:
        pass  # a later step of the same call finds the cache closed
    finally:
        sys.settrace(before)
    return not left


@pytest.mark.parametrize("name", CALLS)
def test_a_close_in_mid_call_is_carried_out_at_its_end(name: str) -> None:
    line = 1
    while True:
        cache, call = CALLS[name]()
        if not _closed_at(line, cache, call):
            break
        assert inside.closed(cache), f"line {line}"
        line += 1
    assert line > 5
