"""What is handed out is the caller's own, of one kind, and bit for bit right."""

from __future__ import annotations

from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import gemma3_text, llama
from mlx_lm.models.cache import KVCache, make_prompt_cache

from kvcache import KVPrefixCache
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import held

from .steps import get, put

kinds = pytest.mark.parametrize("kind", MODELS)


@kinds
@pytest.mark.parametrize("take", [False, True])
def test_two_requests_share_no_object(kind: str, take: bool) -> None:
    """46. Both append to what they got, one of them in place: neither sees the other's tokens."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=8)
    put(cache, model, prompt(30))
    one = cache.fetch([*prompt(30), 1])
    two = cache.fetch([*prompt(30), 2], take=take)
    objects = [{id(each) for each in (*hit.prompt_cache, *held(hit.prompt_cache))} for hit in (one, two)]
    assert not objects[0] & objects[1]
    model.grow(one.prompt_cache, [1, 11, 111])
    model.grow(two.prompt_cache, [2, 22])
    for array in held(one.prompt_cache):
        array[...] = 0
    model.check(two.prompt_cache, [*prompt(30), 2, 22])
    if take:
        cache.store([*prompt(30), 2, 22], two.prompt_cache, length=len([*prompt(30), 2, 22]))
    third = get(cache, model, [*prompt(30), 2, 22, 3])
    assert third.length == (32 if take else 30)


ARGUMENTS = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 101,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
}
TINY: dict[str, Any] = {
    "llama": lambda: llama.Model(llama.ModelArgs(model_type="llama", **ARGUMENTS)),
    "gemma3_text": lambda: gemma3_text.Model(
        gemma3_text.ModelArgs(
            model_type="gemma3_text", sliding_window=16, sliding_window_pattern=2, **ARGUMENTS
        )
    ),
}


def _answer(
    model: Any, prompt_cache: list[Any], tokens: list[int], count: int
) -> tuple[list[int], list[bytes]]:
    """Tokens at temperature 0 and the logits they were taken from."""
    found, logits = list(tokens), []
    for _ in range(count):
        last = model(mx.array([tokens]), cache=prompt_cache)[:, -1, :].astype(mx.float32)
        logits.append(np.array(last).tobytes())
        tokens = [int(mx.argmax(last).item())]
        found += tokens
    return found, logits


@pytest.mark.parametrize("name", TINY)
def test_an_answer_at_temperature_0_stays_the_same(name: str) -> None:
    """49. Restored and continued with the same chunks, every logit is equal to the bit."""
    mx.random.seed(49)
    model, cache, random = TINY[name](), KVPrefixCache(segment_tokens=16), Random(49)
    document = [random.randrange(101) for _ in range(64)]
    first = make_prompt_cache(model)
    model(mx.array([document]), cache=first)
    cache.store(document, first)
    with cache.pin(document):
        for _ in range(4):
            question = [random.randrange(101) for _ in range(9)]
            cold = make_prompt_cache(model)
            model(mx.array([document]), cache=cold)
            hit = cache.fetch(document + question)
            assert hit.length == 64
            answer, logits = _answer(model, cold, question, 24)
            assert _answer(model, hit.prompt_cache, question, 24) == (answer, logits)
            assert cache.store(document + answer, hit.prompt_cache).new_tokens == 32
            cache.evict(cache.nbytes // 10)


def _kv(tokens: int, dtype: mx.Dtype, width: int = 32, value: float = 1.0) -> list[KVCache]:
    cache = KVCache()
    cache.update_and_fetch(*mx.full((2, 1, 2, tokens, width), value, dtype))
    return [cache]


def _dtypes(prompt_cache: list[Any]) -> set[mx.Dtype]:
    return {array.dtype for array in held(prompt_cache)}


def test_blocks_of_two_dtypes_are_never_joined() -> None:
    """50. Ten tokens in float32, twenty in float16: each prefix comes whole from one of them."""
    cache = KVPrefixCache(segment_tokens=4)
    cache.store(prompt(10), _kv(10, mx.float32))
    cache.store(prompt(20), _kv(20, mx.float16))
    cache.store(prompt(6) + prompt(9, first=1), _kv(15, mx.float32))
    for tokens, length in (
        ([*prompt(20), 1], 20),
        ([*prompt(13), 999], 13),
        ([*prompt(8), 999], 8),
        (prompt(6) + prompt(10, first=1), 15),
    ):
        hit = cache.fetch(tokens)
        assert hit.length == length
        assert len(_dtypes(hit.prompt_cache)) == 1
    assert _dtypes(cache.fetch([*prompt(20), 1]).prompt_cache) == {mx.float16}
    cache.validate()


@pytest.mark.parametrize("shape", ["width", "heads", "layers"])
def test_a_block_of_another_shape_is_not_let_in(shape: str) -> None:
    """50. It is refused where it comes in, so no restore meets it; what was held stays right."""
    cache = KVPrefixCache()
    cache.store(prompt(10), _kv(10, mx.float32))
    other = _kv(20, mx.float32, width=64 if shape == "width" else 32)
    if shape == "layers":
        other += _kv(20, mx.float32)
    if shape == "heads":
        other[0].keys, other[0].values = (mx.ones((1, 3, 20, 32)) for _ in range(2))
    refused = cache.store(prompt(20), other)
    assert (refused.reason, refused.length) == ("layout_mismatch", 0)
    hit = cache.fetch([*prompt(20), 1])
    assert hit.length == 10
    assert hit.prompt_cache[0].keys.shape[1::2] == (2, 32)


@kinds
def test_what_took_the_place_of_an_evicted_entry_is_not_taken_for_it(kind: str) -> None:
    """54. Ids and slots may be used again inside; a key finds its own tokens or nothing."""
    model, cache, random = MODELS[kind](), KVPrefixCache(segment_tokens=4), Random(54)
    stem = prompt(8)
    put(cache, model, stem)
    keys = [stem + prompt(7, first=first) for first in range(1, 7)]
    with cache.pin(stem):
        for turn in range(30):
            mine, old = random.sample(keys, 2)
            cache.trim_to(tokens=8)
            put(cache, model, mine)
            assert get(cache, model, [*mine, 1]).length == 15
            assert get(cache, model, [*old, 1]).length == 8, turn
    cache.clear()
    assert all(get(cache, model, [*key, 1]).reason == "no_entry" for key in keys)
    put(cache, model, keys[0])
    found = get(cache, model, [*keys[1], 1])
    assert (found.length, found.matched) == (8 if kind in SPANS else 0, 8)
