"""Models that cannot be cut are no reason to compute all of it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache

from kvcache import KVPrefixCache
from tests.support.layers import KV, Arrays, Chunked, List, Opaque, Rotating
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV, held

from .steps import STEP, get, prefill, put, request

if TYPE_CHECKING:
    from collections.abc import Callable

STATES: dict[str, Callable[[], PosKV]] = {
    "state": lambda: PosKV(KV(heads=1), Arrays()),
    "unknown class": lambda: PosKV(Opaque(), KV(heads=1)),
    "in a list": lambda: PosKV(List(Arrays(), KV(heads=1))),
    "state only": lambda: PosKV(Arrays(), Arrays()),
    "window": lambda: PosKV(KV(heads=1), Rotating(8)),
    "chunk": lambda: PosKV(KV(heads=1), Chunked(16)),
}
states = pytest.mark.parametrize("name", STATES)
kinds = pytest.mark.parametrize("kind", MODELS)


def _checkpointed(model: PosKV, cache: KVPrefixCache, tokens: list[int], ends: list[int]) -> None:
    """One prefill that stores where it passes ``ends``."""
    prompt_cache = model.make_cache()
    for start, end in zip([0, *ends], ends, strict=False):
        model.grow(prompt_cache, tokens[start:end])
        cache.store(tokens[:end], prompt_cache, length=len(tokens[:end]))


@states
@pytest.mark.parametrize("scale", [1, 20], ids=["57", "73"])
def test_the_deepest_checkpoint_at_or_before_the_match(name: str, scale: int) -> None:
    """57, 73. Checkpoints at 100 and 200 of 250 tokens; the same with 5,000, beyond any one chunk."""
    model, cache = STATES[name](), KVPrefixCache()
    tokens = prompt(250 * scale)
    _checkpointed(model, cache, tokens, [100 * scale, 200 * scale, 250 * scale])
    for shared, length in ((180, 100), (230, 200), (90, 0), (200, 200), (100, 100), (99, 0)):
        hit = get(cache, model, [*tokens[: shared * scale], 999_999])
        assert (hit.length, hit.matched) == (length * scale, shared * scale)
        assert hit.reason == ("hit" if length else "no_checkpoint")
    assert cache.ntokens == 250 * scale


@pytest.mark.parametrize("layer", [Rotating(128), Rotating(128, keep=4), Chunked(128)])
def test_a_sliding_window_chat_is_not_prefilled_anew(layer: Any) -> None:
    """58. Window 128, a checkpoint each 128 tokens: a turn costs its own tokens and part of one window."""
    model, cache = PosKV(KV(heads=1), layer), KVPrefixCache()
    tokens = prompt(640)
    _checkpointed(model, cache, tokens, [128, 256, 384, 512, 640])
    for shared, length in ((130, 128), (300, 256), (640, 640), (639, 512)):
        assert get(cache, model, [*tokens[:shared], 999_999]).length == length
    # At 128 the window has not rotated yet: it serves every shorter length as well.
    assert get(cache, model, [*tokens[:77], 999_999]).length == 77
    for turn in range(1, 5):
        tokens = tokens + prompt(90, first=turn)
        hit = cache.fetch(tokens)
        assert hit.length == len(tokens) - 90
        model.grow(hit.prompt_cache, hit.remaining)
        cache.store(tokens, hit.prompt_cache)


@states
def test_the_same_prompt_six_times(name: str) -> None:
    """59. One entry, however often; from the second request on all but its last token is reused."""
    model, cache = STATES[name](), KVPrefixCache()
    tokens, held_bytes = prompt(2000), set()
    lengths = []
    for _ in range(6):
        lengths.append(request(cache, model, tokens).hit.length)
        held_bytes.add(cache.nbytes)
    assert lengths == [0, 1999, 1999, 1999, 1999, 1999]
    assert len(held_bytes) == 1
    # The session was not told that the last token ran, and neither windows nor states show it for sure.
    assert cache.stats().checkpoints == len(cache) == 1
    assert cache.ntokens == 1999


@pytest.mark.parametrize("name", ["state", "unknown class", "in a list", "state only"])
def test_the_cache_asks_for_the_checkpoint_it_lacks(name: str) -> None:
    """65. The second of three prompts parts at 21,742: it is told so, and the third is served from there."""
    model, cache = STATES[name](), KVPrefixCache()
    document = prompt(21_742)
    first, second, third = (document + prompt(40, first=at) for at in (30, 31, 32))
    put(cache, model, first)
    hit = cache.fetch(second)
    assert (hit.length, hit.matched, hit.checkpoint_at) == (0, 21_742, 21_742)
    prompt_cache = model.filled(second[: hit.checkpoint_at], chunk=8192)
    cache.store(second[: hit.checkpoint_at], prompt_cache, length=len(second[: hit.checkpoint_at]))
    hit = cache.fetch(third)
    assert (hit.length, hit.checkpoint_at) == (21_742, None)
    model.check(hit.prompt_cache, document)


class Cancelled(Exception):
    """Nobody waits for the answer any more."""


@pytest.mark.parametrize("how", ["raise", "break"])
@pytest.mark.parametrize("name", ["kv", *STATES])
def test_a_cancelled_prefill_is_not_lost(name: str, how: str) -> None:
    """66. Each try of 9,000 tokens is cancelled after two chunks; the third one ends all the same."""
    model, cache = (PosKV(KV(heads=1)) if name == "kv" else STATES[name]()), KVPrefixCache()
    tokens = prompt(9000)
    for reached in (0, 4096, 8192):
        session = cache.session(tokens, model=model, prefill_step_size=STEP)
        try:
            with session:
                assert session.hit.length == reached
                model.check(session.prompt_cache, tokens[:reached])
                prefill(session, model, upto=reached + 2 * STEP)
                if how == "raise":
                    raise Cancelled
        except Cancelled:
            pass
        cache.validate()
    assert get(cache, model, tokens).length == 8999


@kinds
@pytest.mark.parametrize("length", [1, 2, 30])
def test_an_exact_repeat_leaves_a_token_to_run(kind: str, length: int) -> None:
    """67. An engine cannot run an empty prompt: at most all but one token, or none."""
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(length)
    put(cache, model, tokens)
    hit = get(cache, model, tokens)
    unrotated = kind in ("rotating", "rotating-keep", "chunked") and length < 9
    assert hit.length == (length - 1 if kind in SPANS or unrotated else 0)
    assert len(hit.remaining) == length - hit.length > 0
    if length == 30 and kind not in SPANS:
        assert hit.checkpoint_at == 29
        put(cache, model, tokens[:29])
        assert get(cache, model, tokens).length == 29


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.int32])
@pytest.mark.parametrize("nested", [False, True])
def test_an_array_without_elements(dtype: mx.Dtype, nested: bool) -> None:
    """76. States of shape (1, 0, 4), and values without width: stored and handed out as they are."""
    kv, state = KVCache(), ArraysCache(3)
    kv.update_and_fetch(mx.ones((1, 2, 20, 8)), mx.zeros((1, 2, 20, 0)))
    state[0], state[2] = mx.zeros((1, 0, 4), dtype), mx.arange(6, dtype=dtype)[None]
    made = [CacheList(kv, state)] if nested else [kv, state]
    cache = KVPrefixCache(segment_tokens=8)
    assert cache.store(prompt(20), made).reason == "stored"
    cache.validate()
    hit = cache.fetch([*prompt(20), 1])
    found = hit.prompt_cache[0].caches if nested else hit.prompt_cache
    assert (found[1][0].shape, found[1][0].dtype, found[1][1]) == ((1, 0, 4), dtype, None)
    assert found[1][2].tolist() == [[0, 1, 2, 3, 4, 5]]
    assert found[0].values.shape[-1] == 0
    found[0].update_and_fetch(mx.ones((1, 2, 5, 8)), mx.zeros((1, 2, 5, 0)))
    mx.eval(list(held(found)))
    assert found[0].offset == 25
    cache.clear()
    assert cache.nbytes == 0
