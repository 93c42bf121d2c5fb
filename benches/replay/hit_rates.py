"""Hit rates on real traffic: LRU beside the reference simulator's figures and the offline optimum.

`make bench-hit-rates TRACES=folder` writes `benches/results/hit_rates.md`. The folder holds the traces and a
README.md whose table "Reference hit rates" names trace, budget and what each of its simulated designs found.
Fails where LRU, with segments as long as the trace's blocks, is more than half a point off the column `leaf`,
or the optimum as far off the column `bound`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kvcache import KVCacheError, __version__
from kvcache.cli.console import Steps
from kvcache.replay.budgets import parse_budget
from kvcache.replay.study import Study, study
from kvcache.replay.traces import Trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOLERANCE = 0.5
DEFAULT_SEGMENT = 1024
SEGMENTS = (64, 128, 256, 512, 1024, 2048, 4096)
TIGHT = ("1%", "2%", "5%")
SWEEP = (*TIGHT, "10%", "20%", "50%", "100%")


@dataclass(frozen=True)
class Reference:
    trace: str
    budget: str
    leaf: float
    bound: float


@dataclass(frozen=True)
class Measured:
    """In percent; the optimum, and the hit rate at each segment length."""

    optimum: float
    hit_rates: dict[int, float]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, help="folder with the traces and their README.md")
    parser.add_argument("--output", type=Path, default=Path("benches/results/hit_rates.md"))
    options = parser.parse_args()
    table = options.traces / "README.md"
    references = _references(table) if table.is_file() else []
    if not references:
        print(f"There is no table of reference hit rates in {table}.", file=sys.stderr)
        return 1
    paths = sorted(options.traces.glob("*.jsonl"))
    measured: dict[tuple[str, str], Measured] = {}
    sweeps: list[Study] = []
    seconds: dict[str, float] = {}
    with Steps(len(paths) * (1 + len(SEGMENTS))) as steps:
        for path in paths:
            began = time.perf_counter()
            try:
                trace = read_trace(path)
            except KVCacheError as error:
                print(error, file=sys.stderr)
                return 1
            wanted = [reference.budget for reference in references if reference.trace == trace.name]
            sweeps.append(_study(trace, SWEEP, DEFAULT_SEGMENT, steps.begin))
            seconds[trace.name] = time.perf_counter() - began
            steps.advance()
            budgets = tuple(dict.fromkeys([*TIGHT, *wanted]))
            measured |= dict(_by_segment(trace, budgets, steps))
    missing = [reference for reference in references if (reference.trace, reference.budget) not in measured]
    if missing:
        print(f"The trace {missing[0].trace} of the reference table is not in the folder.", file=sys.stderr)
        return 1
    blocks = {found.name: found.block_tokens or 1 for found in sweeps}
    text, worst = _against_references(references, measured, blocks)
    document = [_heading(), text, _by_budget(sweeps, seconds), _segments(measured, [*blocks])]
    options.output.write_text("\n".join(document))
    print(f"{options.output} written; largest distance from the reference: {worst:.2f} points")
    return 0 if worst <= TOLERANCE else 1


def _references(path: Path) -> list[Reference]:
    """Rows of the table `| trace | budget | whole | edge | leaf | arc | bound |`."""
    found: list[Reference] = []
    columns: list[str] = []
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if {"trace", "budget", "leaf", "bound"} <= set(cells):
            columns = cells
        elif columns and len(cells) == len(columns) and not cells[0].startswith("-"):
            row = dict(zip(columns, cells, strict=True))
            budget = row["budget"].replace(" ", "")
            found.append(Reference(row["trace"], budget, float(row["leaf"]), float(row["bound"])))
        elif not line.strip():
            columns = []
    return found


def _study(
    trace: Trace, budgets: tuple[str, ...], segment_tokens: int, begin: Callable[[str], None]
) -> Study:
    begin(f"{trace.name}, segments of {segment_tokens}")
    return study(trace, [parse_budget(text) for text in budgets], segment_tokens=segment_tokens)


def _by_segment(
    trace: Trace, budgets: tuple[str, ...], steps: Steps
) -> Iterator[tuple[tuple[str, str], Measured]]:
    rates: dict[str, dict[int, float]] = {budget: {} for budget in budgets}
    optimum = {}
    # The block's own length is what the reference is held against.
    for segment_tokens in sorted({*SEGMENTS, trace.unit_tokens}):
        found = _study(trace, budgets, segment_tokens, steps.begin)
        for row in found.rows:
            rates[row.budget][segment_tokens] = 100 * found.rate(row.outcome.hit_tokens)
            optimum[row.budget] = 100 * found.rate(row.optimal_tokens)
        steps.advance()
    for budget in budgets:
        yield (trace.name, budget), Measured(optimum[budget], rates[budget])


def _heading() -> str:
    when = datetime.now(UTC).date().isoformat()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return f"""# Hit rates on real traffic

Token hit rates in percent, `PrefixIndex` under LRU; one lookup and one insert a request, answers not stored.
A budget is a share of the trace's unique tokens. The offline optimum knows the future
(`kvcache.replay.optimum` says how it is computed). Written by `make bench-hit-rates` on {when}: kvcache
{__version__}, Python {platform.python_version()}, {machine}.
"""


def _against_references(
    references: list[Reference], measured: dict[tuple[str, str], Measured], blocks: dict[str, int]
) -> tuple[str, float]:
    text = f"""## Against the reference simulator

`leaf` and `bound` are the reference's columns: LRU on leaf blocks, and its offline optimum. Beside them LRU
with segments as long as the trace's blocks, LRU with the default of {DEFAULT_SEGMENT:,} tokens, and our
optimum.

| trace | budget | leaf | of a block | off by | of {DEFAULT_SEGMENT:,} tokens | bound | optimum | off by |
|---|---:|---:|---:|---:|---:|---:|---:|---:|"""
    lines = [text]
    worst = 0.0
    for reference in references:
        ours = measured[reference.trace, reference.budget]
        block = ours.hit_rates[blocks[reference.trace]]
        off, optimum_off = block - reference.leaf, ours.optimum - reference.bound
        worst = max(worst, abs(off), abs(optimum_off))
        lines.append(
            f"| {reference.trace} | {reference.budget} | {reference.leaf} | {block:.2f} | {off:+.2f} "
            f"| {ours.hit_rates[DEFAULT_SEGMENT]:.2f} | {reference.bound} | {ours.optimum:.2f} "
            f"| {optimum_off:+.2f} |"
        )
    return "\n".join([*lines, ""]), worst


def _by_budget(sweeps: list[Study], seconds: dict[str, float]) -> str:
    text = f"""## By budget

LRU with segments of {DEFAULT_SEGMENT:,} tokens / offline optimum. Seconds: reading the trace and
replaying it at all these budgets.

| trace | {" | ".join(SWEEP)} | unlimited | seconds |
|---|{"---:|" * (len(SWEEP) + 2)}"""
    lines = [text]
    for found in sweeps:
        cells = [
            f"{100 * found.rate(row.outcome.hit_tokens):.1f} / {100 * found.rate(row.optimal_tokens):.1f}"
            for row in found.rows
        ]
        unlimited = f"{100 * found.unlimited_rate:.1f}"
        lines.append(f"| {found.name} | {' | '.join(cells)} | {unlimited} | {seconds[found.name]:.1f} |")
    return "\n".join([*lines, ""])


def _segments(measured: dict[tuple[str, str], Measured], names: list[str]) -> str:
    text = f"""## By segment length

LRU. Nothing shorter than a block is shared in these traces (64 tokens in lmcache_agents, 512 in the others),
so below that a shorter segment can only show a finer grain of eviction.

| trace | budget | {" | ".join(f"{length:,}" for length in SEGMENTS)} |
|---|---:|{"---:|" * len(SEGMENTS)}"""
    lines = [text]
    for name in names:
        for budget in TIGHT:
            cells = [f"{measured[name, budget].hit_rates[length]:.2f}" for length in SEGMENTS]
            lines.append(f"| {name} | {budget} | {' | '.join(cells)} |")
    means = [
        sum(measured[name, budget].hit_rates[length] for name in names for budget in TIGHT)
        / (len(names) * len(TIGHT))
        for length in SEGMENTS
    ]
    lines.append(f"| mean | | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
