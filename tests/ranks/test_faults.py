"""One rank fails: all ranks raise, refuse or go on together, and as often as each other meet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ranks.faults import SCENARIOS
from tests.ranks.launch import launch

RANKS = 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch("faults", RANKS, tmp_path_factory.mktemp("faults"), seconds=120)


def assert_agreed(results: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The steps of a scenario as the first rank saw them."""
    for steps in zip(*(result[name] for result in results), strict=True):
        for step in steps:
            assert step["error"] == step["expected"], step
            assert step["kept"], step
        first = steps[0]
        for step in steps[1:]:
            assert step["name"] == first["name"]
            for what in ("result", "spent"):
                assert step[what] == first[what], (first, step)
            if "closed" not in step["name"]:
                assert step["shape"] == first["shape"], (first, step)
    return results[0][name]


@pytest.mark.parametrize("broken", range(RANKS))
@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in SCENARIOS])
def test_ranks_end_alike(results: list[dict[str, Any]], scenario: str, broken: int) -> None:
    steps = {step["name"]: step for step in assert_agreed(results, f"{scenario}, rank {broken}")}
    if "later store" in steps:
        assert steps["later store"]["result"][0] == "stored"
        assert steps["later fetch"]["result"][:2] == ["hit", 20]
        assert steps["later evict"]["result"][0] == 1
