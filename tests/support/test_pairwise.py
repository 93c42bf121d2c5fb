"""The part of a product that is run by default has every pair of values, and little more."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations, product
from math import prod
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.support.pairwise import covering
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

SIZES = [(2, 2, 2), (8, 5, 2, 2), (14, 4, 4), (3, 2, 3, 3), (12, 1, 2, 2), (3,) * 5, (1, 1, 1), (4,), (3, 4)]
SUITE = """
import pytest

@pytest.mark.pairwise
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize(("b", "c"), [(1, "x"), (2, "y"), (3, "z")])
@pytest.mark.parametrize("d", ["p", "q"])
class TestClass:
    def test_one(self, a, b, c, d):
        pass

    def test_other(self, a, b, c, d):
        pass

@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", range(4))
@pytest.mark.parametrize("c", range(4))
def test_unmarked(a, b, c):
    pass

@pytest.mark.full
def test_long():
    pass
"""
CONFTEST = "from tests.conftest import pytest_collection_modifyitems"
WHOLE, PART = 2 * 4 * 3 * 2 + 64 + 1, 2 * 4 * 3 + 64


def pairs(rows: list[tuple[int, ...]]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return {pair for row in rows for pair in combinations(enumerate(row), 2)}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_pair_occurs_in_few_rows(sizes: tuple[int, ...]) -> None:
    rows = list(product(*map(range, sizes)))
    chosen = covering(rows)
    assert pairs([rows[number] for number in chosen]) == pairs(rows)
    assert chosen == sorted(set(chosen))
    # No fewer can hold the pairs of the two longest sides.
    least = prod(sorted(sizes)[-2:])
    assert len(chosen) <= 2 * least
    if len(sizes) > 1:
        assert len(chosen) >= least


def test_every_value_occurs_where_rows_are_missing() -> None:
    rows = [row for row in product(range(5), range(4), range(3)) if Random(str(row)).random() < 0.6]
    part = [rows[number] for number in covering(rows)]
    assert pairs(part) == pairs(rows)
    assert len(part) < len(rows)


def test_nothing_of_nothing() -> None:
    assert covering([]) == []


def test_the_same_rows_give_the_same_choice_in_every_process() -> None:
    rows = list(product("abcdef", "ghij", "klm", "no"))
    code = f"from tests.support.pairwise import covering; print(covering({rows!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert ended.stdout.strip() == str(covering(rows))


@pytest.mark.parametrize(
    ("full", "options", "expected"),
    [("", (), PART), ("1", (), WHOLE), ("", ("-m", "full"), WHOLE - PART)],
    ids=["default", "all", "the rest"],
)
def test_what_a_run_takes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str, options: tuple[str, ...], expected: int
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  full: f\n  pairwise: p\n")
    monkeypatch.setenv("KVCACHE_FULL", full)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "--rootdir", str(tmp_path)]
    ended = subprocess.run(
        [*command, "-c", str(tmp_path / "pytest.ini"), str(tmp_path), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert f"{expected} passed" in ended.stdout, ended.stdout + ended.stderr
