"""A long prefill under a full budget: it makes room once, and not at each of its checkpoints.

131,072 tokens with a checkpoint every 2,048 of them, on a model of few bytes a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from kvcache import KVPrefixCache, session

if TYPE_CHECKING:
    from kvcache import Eviction, Session

TOKENS: Final = 131_072
STEP: Final = 2048
HEAD_BYTES: Final = 2 * 4 * 2
STATE_BYTES: Final = 4 * 2000


@dataclass
class Hybrid:
    """One KV layer of one head and four values a token, beside one that only checkpoints can keep."""

    window: bool = False

    def make_cache(self) -> list[Any]:
        return [KVCache(), RotatingKVCache(max_size=500) if self.window else ArraysCache(1)]

    def run(self, prompt_cache: list[Any], tokens: int) -> None:
        """A forward pass over so many tokens; what they are plays no part."""
        kv, other = prompt_cache
        kv.update_and_fetch(*mx.zeros((2, 1, 1, tokens, 4), mx.float16))
        if self.window:
            other.update_and_fetch(*mx.zeros((2, 1, 1, tokens, 4), mx.float16))
        else:
            other[0] = mx.full((1, 2000), kv.offset, mx.float32)
        mx.eval([layer.state for layer in prompt_cache])


def _prompt(first: int, length: int) -> list[int]:
    return list(range(first * 1_000_000, first * 1_000_000 + length))


def _full(model: Hybrid, limit: int) -> KVPrefixCache:
    """A cache with no room left: chats of 4,096 tokens, each with its checkpoint."""
    cache = KVPrefixCache(max_bytes=limit)
    prompt_cache = model.make_cache()
    model.run(prompt_cache, 2 * STEP)
    first = 0
    while True:
        first += 1
        if cache.store(_prompt(first, 2 * STEP), prompt_cache).evicted:
            return cache


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each call of ``reserve``."""
    calls: list[int] = []
    reserve = session.reserve

    def counted(context: Any, nbytes: int, protect: Any) -> Eviction:
        calls.append(nbytes)
        return reserve(context, nbytes, protect)

    monkeypatch.setattr(session, "reserve", counted)
    return calls


def _prefill(model: Hybrid, request: Session) -> None:
    """As mlx-lm prefills: in chunks, all but the last token."""
    left = len(request.remaining)
    for done in range(STEP, left, STEP):
        model.run(request.prompt_cache, STEP)
        request.on_progress(done, left)


@pytest.mark.parametrize("window", [False, True], ids=["state", "window"])
def test_a_session_makes_room_once(window: bool, reserved: list[int]) -> None:
    model = Hybrid(window)
    limit = TOKENS * HEAD_BYTES + 12 * STATE_BYTES
    cache, tokens = _full(model, limit), _prompt(0, TOKENS + 1)
    before = cache.stats()
    assert before.sequences > 20
    with cache.session(tokens, model=model, prefill_step_size=STEP) as request:
        _prefill(model, request)
    after = cache.stats()
    assert len(reserved) == 1
    assert reserved[0] >= TOKENS * HEAD_BYTES + 8 * STATE_BYTES
    assert 1 <= after.reclaim_cycles - before.reclaim_cycles <= 3
    # One a chunk, and one on leaving that finds all of it held.
    assert after.stores - before.stores == TOKENS // STEP + 1
    assert cache.peek([*tokens, 1]).length == TOKENS
    assert cache.nbytes <= limit
    cache.validate()


def test_a_session_that_goes_on_makes_room_for_the_rest_only(reserved: list[int]) -> None:
    """The half that is held is protected, and not reserved for a second time."""
    model = Hybrid()
    cache, tokens = KVPrefixCache(max_bytes=TOKENS * HEAD_BYTES + 12 * STATE_BYTES), _prompt(0, TOKENS + 1)
    with cache.session(tokens[: TOKENS // 2 + 1], model=model) as request:
        _prefill(model, request)
    # Nothing was known of a token's bytes then.
    assert reserved == []
    prompt_cache = model.make_cache()
    model.run(prompt_cache, 2 * STEP)
    for first in range(1, 40):
        cache.store(_prompt(first, 2 * STEP), prompt_cache)
        cache.fetch([*tokens[: TOKENS // 2], 1])
    before = cache.stats().reclaim_cycles
    with cache.session(tokens, model=model) as request:
        assert request.hit.length == TOKENS // 2
        _prefill(model, request)
    assert len(reserved) == 1
    assert TOKENS // 2 * HEAD_BYTES <= reserved[0] <= TOKENS // 2 * HEAD_BYTES + 9 * STATE_BYTES
    assert cache.stats().reclaim_cycles - before <= 3
    assert cache.peek([*tokens, 1]).length == TOKENS


def test_stores_without_a_session_make_room_each_time() -> None:
    """What the session saves: the same checkpoints, stored one by one, start a cycle at each."""
    model = Hybrid()
    cache, tokens = _full(model, TOKENS * HEAD_BYTES + 12 * STATE_BYTES), _prompt(0, TOKENS + 1)
    before, prompt_cache = cache.stats().reclaim_cycles, model.make_cache()
    for end in range(STEP, TOKENS + 1, STEP):
        model.run(prompt_cache, STEP)
        cache.store(tokens[:end], prompt_cache)
    assert cache.stats().reclaim_cycles - before >= 20
