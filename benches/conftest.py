"""One compact table at the end of a run: each figure beside its limit from the same rounds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# `benches` is imported as a package by its files, also where pytest was not started by `python -m`.
sys.path.insert(0, str(Path(__file__).parent.parent))

HEADINGS = ("call", "tokens", "as", "leaves at", "median us", "best us", "beside it", "us", "ratio", "bar")
ROWS = pytest.StashKey[list[tuple[str, ...]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def row(request: pytest.FixtureRequest):
    """Adds a row to the table."""
    return lambda *cells: request.config.stash[ROWS].append(tuple(str(cell) for cell in cells))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if not rows:
        return
    widths = [max(len(row[at]) for row in (HEADINGS, *rows)) for at in range(len(HEADINGS))]
    terminalreporter.section("beside the limit, interleaved in the same run; ratio of medians")
    for cells in (HEADINGS, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        terminalreporter.write_line(line.rstrip())
