"""What was split and is whole again is held whole again: one node, whose arrays are those of its pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvcache import KVPrefixCache
from tests.support.failures import assert_settled
from tests.support.models import MODELS, SPANS, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS, GRAIN = 37, 16
# Of a whole prompt of so many tokens: nodes end at 16, 32 and 37.
NODES = 3


def evict(cache: KVPrefixCache) -> None:
    cache.evict(10**12)


def drop_to_the_pinned(cache: KVPrefixCache) -> None:
    cache.trim_to(tokens=TOKENS)


def one_by_one(cache: KVPrefixCache) -> None:
    while cache.evict(1):
        pass


@pytest.mark.parametrize("end", [evict, drop_to_the_pinned, one_by_one])
@pytest.mark.parametrize("kind", MODELS)
def test_pieces_become_whole_once_the_branches_are_gone(
    kind: str, end: Callable[[KVPrefixCache], None]
) -> None:
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=GRAIN)
    tokens = prompt(TOKENS)
    cache.store(tokens, model.filled(tokens), length=TOKENS)
    arrays = cache.stats().buffers
    for at in range(1, TOKENS):
        branch = [*tokens[:at], 9_999]
        cache.store(branch, model.filled(branch), length=None if kind in SPANS else len(branch))
    assert cache.stats().nodes > TOKENS
    with cache.pin(tokens):
        end(cache)
        cache.validate()
    assert cache.store(tokens, model.filled(tokens), length=TOKENS).reason == "already"
    stats = cache.stats()
    assert (stats.nodes, stats.ntokens) == (NODES, TOKENS)
    assert stats.checkpoints == (kind not in SPANS)
    assert stats.buffers <= arrays * TOKENS
    assert_settled(cache)
    hit = cache.fetch([*tokens, 1])
    assert hit.length == TOKENS
    model.check(hit.prompt_cache, tokens)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("at", [3, 16, 20, 32, 36])
def test_a_joined_node_is_cut_again(kind: str, at: int) -> None:
    # Blocks so long that the ends of stores keep no less than `GRAIN` tokens apart.
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=16 * GRAIN)
    tokens = prompt(TOKENS)

    def store(key: list[int], label: str = "") -> str:
        return cache.store(key, model.filled(key), length=len(key), label=label).reason

    # A chat that grows in steps is joined as it grows, but for where checkpoints are.
    for length in range(4, TOKENS, 3):
        store(tokens[:length], label=str(length % 2))
    assert store(tokens) == "stored"
    if kind in SPANS:
        assert cache.stats().nodes == NODES
    branch = [*tokens[:at], *prompt(9, first=2)]
    assert store(branch) == "stored"
    for key in (tokens, branch):
        hit = cache.fetch([*key, 1])
        assert hit.length == len(key)
        model.check(hit.prompt_cache, key)
    taken = cache.fetch([*branch, 1], take=True)
    model.check(taken.prompt_cache, branch)
    assert_settled(cache)
    cache.clear()
    assert cache.nbytes == cache.stats().buffers == 0
    cache.validate()


@pytest.mark.parametrize("kind", MODELS)
def test_the_ledger_counts_the_arrays_of_joined_nodes(kind: str) -> None:
    """An eviction by buffers takes what is really there, and a limit holds for it."""
    model = MODELS[kind]()
    cache, tokens = KVPrefixCache(segment_tokens=GRAIN, max_buffers=60), prompt(GRAIN)
    for length in range(1, GRAIN + 1):
        cache.store(tokens[:length], model.filled(tokens[:length]), length=length)
        assert cache.stats().buffers <= 60
        cache.validate()
    if hit := cache.fetch([*tokens, 1]):
        model.check(hit.prompt_cache, tokens[: hit.length])
    assert_settled(cache)
