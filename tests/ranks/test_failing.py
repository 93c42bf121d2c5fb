"""One rank fails or differs: all raise, refuse or go on together, and meet equally often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.ranks.launch import launch
from tests.ranks.scenarios import SCENARIOS

if TYPE_CHECKING:
    from pathlib import Path

RANKS = 2
Steps = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Steps]]]:
    return launch("scenarios", RANKS, tmp_path_factory.mktemp("scenarios"))


def assert_agreed(results: list[dict[str, list[Steps]]], scenario: str, broken: int) -> dict[str, Any]:
    """The last step of each name, as the first rank saw it."""
    for steps in zip(*(result[scenario][broken] for result in results), strict=True):
        for step in steps:
            assert step["error"] == step["expected"], step
            assert step["kept"], step
            for what in ("name", "result", "spent", "shape"):
                assert step[what] == steps[0][what], (what, steps)
    return {step["name"]: step for step in results[0][scenario][broken]}


@pytest.mark.parametrize("broken", range(RANKS))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_ranks_end_alike(results: Any, scenario: str, broken: int) -> None:
    steps = assert_agreed(results, scenario, broken)
    if "later store" in steps:
        assert steps["later store"]["result"][0] == "stored"
        assert steps["later fetch"]["result"][:2] == ["hit", 20]
        assert steps["later evict"]["result"][0] >= 1


@pytest.mark.parametrize("broken", range(RANKS))
def test_a_refusal_has_one_reason_everywhere(results: Any, broken: int) -> None:
    steps = assert_agreed(results, "refusals", broken)
    reasons = {
        "batched": "batched",
        "empty": "empty",
        "key too short": "key_too_short",
        "another model's": "layout_mismatch",
        "out of step": "offset_mismatch",
        "unsupported": "unsupported_layer",
        "another length": "offset_mismatch",
    }
    assert {name: steps[name]["result"][0] for name in reasons} == reasons


@pytest.mark.parametrize("broken", range(RANKS))
def test_ranks_reuse_what_all_of_them_hold(results: Any, broken: int) -> None:
    empty = assert_agreed(results, "one_is_empty", broken)
    for call in ("peek", "fetch"):
        assert empty[call]["result"][:2] in (["no_entry", 0], ["hit", 30])
    assert empty["pin"]["result"] == [0]
    assert "some hold more of this key than others" in empty["session"]["text"]
    partly = assert_agreed(results, "one_lacks_a_part", broken)
    # The checkpoint at 10 was evicted on one rank.
    lengths = {name: step["result"][1] for name, step in partly.items() if name.startswith(("fetch", "peek"))}
    assert lengths == {"fetch 11": 0, "peek 11": 0, "fetch 15": 0, "peek 15": 0} | {
        f"{call} {end}": 20 for call in ("fetch", "peek") for end in (21, 30)
    }


@pytest.mark.parametrize("broken", range(RANKS))
def test_a_check_names_the_first_difference(results: Any, broken: int) -> None:
    texts = []
    for result in results:
        steps = {step["name"]: step["text"] for step in result["every_call_is_checked"][broken]}
        assert "rank 0 has" in steps["which call"]
        assert "'clear'" in steps["which call"]
        assert "'peek'" in steps["which call"]
        for name, text in steps.items():
            if name.startswith("differs"):
                assert f"before {name.removeprefix('differs: ')}" in text
                assert "rank 0 has 'unit: tokens " in text
                assert "rank 1 has 'unit: tokens " in text
        assert "segments of at most 8 tokens" in steps["grain"]
        assert "segments of at most 16 tokens" in steps["grain"]
        texts.append({name: text for name, text in steps.items() if name != "closed"})
    assert all(text == texts[0] for text in texts)


def test_ranks_that_mlx_launches_are_no_others(tmp_path: Path) -> None:
    options = {"scenarios": ["collectives_of_a_hybrid"]}
    results = launch("scenarios", RANKS, tmp_path, options, by_mlx=True)
    assert_agreed(results, "collectives_of_a_hybrid", 0)


@pytest.mark.parametrize("broken", range(RANKS))
@pytest.mark.parametrize("scenario", ["collectives", "collectives_of_a_hybrid"])
def test_ranks_meet_twice_for_a_hit_and_once_for_a_miss(results: Any, scenario: str, broken: int) -> None:
    steps = assert_agreed(results, scenario, broken)
    spent = {name: step["spent"] for name, step in steps.items()}
    assert spent == {
        "fetch of nothing": 1,
        "store": 7,
        "store again": 2,
        "fetch": 2,
        "peek": 1,
        "take": 2 if steps["take"]["result"][0] == "hit" else 1,
        "evict": 1,
        "clear": 1,
    }
    assert steps["fetch"]["result"][:2] == ["hit", 10]
