"""Tensor- and pipeline-parallel models: with the cache the same log probabilities, to the bit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks.launch import launch
from tests.ranks.sharded import CASES, NEW

RANKS = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch("sharded", RANKS, tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("case", CASES)
def test_a_warm_answer_is_the_cold_one(results: list[dict[str, Any]], case: str) -> None:
    ranks = [result[case] for result in results]
    for rank in ranks:
        assert [request["equal"] for request in rank["requests"]] == [True] * 4
    first = ranks[0]
    for rank in ranks[1:]:
        for what in ("outline", "collectives"):
            assert rank[what] == first[what]
        for one, other in zip(first["requests"], rank["requests"], strict=True):
            assert all(one[what] == other[what] for what in ("hit", "stored", "tokens", "bits"))
    # Nothing, what both prompts share, and at last all but the token that has to be run.
    assert [request["hit"] for request in first["requests"]] == [
        ["no_entry", 0],
        ["hit", 16],
        ["hit", 32],
        ["hit", 36],
    ]
    assert [request["stored"][1] for request in first["requests"]] == [33 + NEW, 37 + NEW] * 2
    assert len({tuple(request["tokens"]) for request in first["requests"]}) == 2


def test_each_rank_holds_other_layers(results: list[dict[str, Any]]) -> None:
    layers = [result["pipeline qwen3_next"]["layers"] for result in results]
    assert layers == [["KVCache"], ["ArraysCache"]]
