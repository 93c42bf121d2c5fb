"""The offline optimum and its tree, against exhaustive search on traces small enough for it."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from kvcache import PrefixIndex
from kvcache.replay.optimum import OfflineOptimum
from kvcache.replay.tree import PrefixTree

Prompt = tuple[int, ...]


def _optimum(prompts: list[Prompt], unit_tokens: int = 1) -> OfflineOptimum:
    tree = PrefixTree([np.array(prompt, np.int32) for prompt in prompts])
    return OfflineOptimum(tree, len(prompts), unit_tokens)


def _prefixes(prompt: Prompt) -> set[Prompt]:
    return {prompt[:length] for length in range(1, len(prompt) + 1)}


def _exhaustive(prompts: list[Prompt], capacity: int) -> int:
    """The most hits over every choice of what to hold after each request, closed towards the root."""
    best: dict[frozenset[Prompt], int] = {frozenset(): 0}
    for prompt in prompts:
        following: dict[frozenset[Prompt], int] = {}
        for held, hits in best.items():
            now = hits + len(held & _prefixes(prompt))
            offered = sorted(held | _prefixes(prompt))
            for size in range(min(capacity, len(offered)) + 1):
                for chosen in map(frozenset, itertools.combinations(offered, size)):
                    if all(len(prefix) == 1 or prefix[:-1] in chosen for prefix in chosen):
                        following[chosen] = max(following.get(chosen, 0), now)
        best = following
    return max(best.values())


def _random_prompts(seed: int, count: int, depth: int) -> list[Prompt]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(2) for _ in range(rng.randint(1, depth))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_contents_finds_more(seed: int) -> None:
    prompts = _random_prompts(seed, count=7, depth=3)
    optimum = _optimum(prompts)
    for capacity in range(6):
        assert optimum.hit_tokens(capacity) == _exhaustive(prompts, capacity)


@pytest.mark.parametrize("seed", range(10))
def test_lru_never_finds_more(seed: int) -> None:
    prompts = _random_prompts(seed, count=200, depth=9)
    optimum = _optimum(prompts)
    for capacity in (1, 3, 10, 40, 200):
        for segment_tokens in (1, 2, 8):
            index = PrefixIndex(max_bytes=capacity, segment_tokens=segment_tokens)
            hits = 0
            for prompt in prompts:
                hits += index.match_prefix(list(prompt)).length
                index.insert(list(prompt))
            assert hits <= optimum.hit_tokens(capacity)


@pytest.mark.parametrize("seed", range(10))
def test_the_tree_holds_each_prefix_once(seed: int) -> None:
    prompts = [(), *_random_prompts(seed, count=60, depth=8), (0, 2**31 - 1), (2**31 - 1,)]
    tree = PrefixTree([np.array(prompt, np.int32) for prompt in prompts])
    assert tree.units == len(set().union(*map(_prefixes, prompts)))
    contents: dict[int, set[Prompt]] = {}
    for request, prompt in enumerate(prompts):
        path = tree.path(request)[::-1]
        assert [tree.starts[node] for node in path] == [
            sum(tree.lengths[node] for node in path[:at]) for at in range(len(path))
        ]
        assert sum(tree.lengths[node] for node in path) == len(prompt)
        for node in path:
            contents.setdefault(node, set()).add(prompt[: tree.starts[node] + tree.lengths[node]])
    assert len(contents) == len(tree.lengths)
    assert all(len(prefixes) == 1 for prefixes in contents.values())


def test_blocks_are_cut_at_tokens() -> None:
    optimum = _optimum([(1, 2), (1, 2)], unit_tokens=64)
    assert [optimum.hit_tokens(capacity) for capacity in (0, 63, 64, 100, 128, 500)] == [
        0,
        63,
        64,
        100,
        128,
        128,
    ]


def test_a_prompt_longer_than_the_budget_keeps_its_beginning() -> None:
    prompt = tuple(range(100))
    assert _optimum([prompt, prompt, prompt]).hit_tokens(30) == 60
