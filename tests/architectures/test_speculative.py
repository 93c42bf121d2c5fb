"""Speculative decoding: the caches of main and draft model travel as one list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from .runs import BESIDE, CHUNK, TRUNK
from .speculative import SAID, Turn, fresh, pair, turn

if TYPE_CHECKING:
    from kvcache import KVPrefixCache

    from .devices import Cold


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    return pair()


def same(result: Turn, cold: Cold, number: int) -> None:
    if cold.repeats("speculative"):
        assert result.tokens == cold[f"speculative/{number}/tokens"].tolist()
    cold.same([result.logprobs], f"speculative/{number}", 0)
    # Drafts were accepted and rejected, or rewinding was not exercised.
    assert 0 < sum(result.drafted) < len(result.drafted) - 1


def stored_beside(models: tuple[Any, Any], prefixes: KVPrefixCache, tokens: list[int]) -> None:
    """A sibling that shares all but the end of these tokens, stored and evicted."""
    caches = fresh(*models)
    for model, own in ((models[0], caches[:2]), (models[1], caches[2:])):
        model(mx.array([[*tokens[:-3], 1, 2, 3]]), cache=own)
    nodes = prefixes.stats().nodes
    assert prefixes.store([*tokens[:-3], 1, 2, 3], caches).new_tokens == 3
    assert prefixes.stats().nodes == nodes + 2, "nothing was split"
    prefixes.fetch([*tokens, 0])
    assert prefixes.evict(1).tokens == 3
    prefixes.validate()


def test_turns_with_a_draft_model(models: tuple[Any, Any], cold: Cold, prefixes: KVPrefixCache) -> None:
    key: list[int] = []
    lagged = []
    for number, said in enumerate(SAID):
        key += said
        hit = prefixes.fetch(key)
        assert bool(hit) == (number > 0)
        caches = hit.prompt_cache or fresh(*models)
        assert len(caches) == 3
        result = turn(*models, caches, key[hit.length :])
        same(result, cold, number)
        key += result.tokens

        offsets = [cache.offset for cache in caches]
        if len(set(offsets)) > 1:
            lagged.append(number)
            refused = prefixes.store(key, caches)
            assert (refused.reason, refused.length) == ("offset_mismatch", 0)
            beyond = prefixes.store(key, caches, length=max(offsets))
            assert (beyond.reason, beyond.length) == ("offset_mismatch", 0)
        stored = prefixes.store(key, caches, length=min(offsets))
        assert (stored.reason, stored.length) == ("stored", min(offsets))
        assert prefixes.ntokens == min(offsets)
        prefixes.validate()
        if number == 0:
            stored_beside(models, prefixes, key[: stored.length])
        assert prefixes.peek([*key, 0]).length == stored.length
    assert lagged, "the draft model never lagged"


def test_a_session_stores_what_both_models_ran(
    models: tuple[Any, Any], cold: Cold, prefixes: KVPrefixCache
) -> None:
    key: list[int] = []
    held = 0
    for number, said in enumerate(SAID):
        key = key + said
        model, draft = models
        with prefixes.session(key, model=model, draft_model=draft, prefill_step_size=CHUNK) as request:
            assert request.hit.length == held
            result = turn(model, draft, request.prompt_cache, request.remaining)
            same(result, cold, number)
            for token in result.tokens:
                request.append(token)
        key = key + result.tokens
        held = min(cache.offset for cache in request.prompt_cache)
        assert request.stored.length == held
        prefixes.validate()


def test_a_list_without_the_draft_model_is_of_another_model(
    models: tuple[Any, Any], prefixes: KVPrefixCache
) -> None:
    caches = fresh(*models)
    turn(*models, caches, TRUNK[:20])
    assert prefixes.store(TRUNK[:20], caches[:2], length=20).reason == "stored"
    refused = prefixes.store(BESIDE, caches, length=len(BESIDE))
    assert (refused.reason, prefixes.ntokens) == ("layout_mismatch", 20)
    assert prefixes.store(BESIDE, caches, length=len(BESIDE), namespace="with a draft").reason == "stored"
