"""The same random calls on all ranks: the same lengths, reasons, evictions and collectives."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.ranks.launch import launch
from tests.support.full import many, only_full
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

OPERATIONS = int(os.environ.get("KVCACHE_RANK_OPERATIONS", many(300, 1000)))
SEED = int(os.environ.get("KVCACHE_RANK_SEED", "1"))


def assert_alike(results: list[dict[str, Any]]) -> Counter[str]:
    """Compares the ranks call by call; returns what happened how often."""
    for number, calls in enumerate(zip(*(result["records"] for result in results), strict=True)):
        assert all(call == calls[0] for call in calls), f"call {number}: {calls}"
    first = results[0]
    for result in results:
        assert not result["strays"], result["strays"][0]
        assert result["outline"] == first["outline"]
        assert result["collectives"] == first["collectives"]
    return Counter(
        happened for name, _, outcome, *_ in first["records"] for happened in _happened(name, outcome)
    )


def _happened(name: str, outcome: list[Any]) -> list[str]:
    if name == "session" and outcome != ["failed"]:
        found, kept = outcome
        return [f"session {found[0]}", f"session {kept[0] if kept else 'nothing stored'}"]
    what = outcome[0] if outcome else ""
    return [f"{name} {what if isinstance(what, str) else 'some' if any(outcome) else 'none'}".strip()]


@pytest.mark.parametrize(
    ("ranks", "share", "check"),
    [(2, 1.0, True), (4, 0.15, False), pytest.param(4, 1.0, False, marks=only_full)],
)
def test_ranks_agree_on_random_calls(tmp_path: Path, ranks: int, share: float, check: bool) -> None:
    count = max(20, int(OPERATIONS * share))
    runs = [{"operations": count, "seed": SEED, "calm": False}]
    if ranks == 2:
        runs.append({"operations": count // 2, "seed": SEED, "calm": True})
    seconds = PATIENCE + count * ranks
    results = launch("random_calls", ranks, tmp_path, {"runs": runs}, check=check, seconds=seconds)
    for number, run in enumerate(runs):
        outcomes = [result[number] for result in results]
        seen, first = assert_alike(outcomes), outcomes[0]
        print(f"{run} on {ranks} ranks: {first['seconds']:.1f} s, {first['collectives']} collectives")
        print(dict(sorted(seen.items())))
        if run["calm"]:
            continue
        # Bytes differ, or nothing was proved.
        assert len({outcome["freed"] for outcome in outcomes}) == ranks
        if run["operations"] >= many(300, 1000):
            for what in (
                "fetch hit",
                "store stored",
                "session hit",
                "evict some",
                "store failed",
                "pin some",
            ):
                assert seen[what], f"{what} never happened: {seen}"
