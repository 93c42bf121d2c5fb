"""``python -m tests.fuzz``: random worlds from a seed on; a failing one is printed with its replay."""

from __future__ import annotations

import argparse
import sys
import traceback

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.fuzz.runner import WorldFailure, length, quiet, run_world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first world's; the next one has the next")
    parser.add_argument("--operations", type=int, default=1500, help="of all worlds together")
    parser.add_argument("--keep-going", action="store_true", help="go on with the next world after a failure")
    parser.add_argument("--traceback", action="store_true", help="print where it failed, too")
    asked = parser.parse_args()
    columns = (
        TextColumn("world {task.fields[seed]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    failures, seed, left = 0, asked.seed, asked.operations
    with Progress(*columns, console=Console(stderr=True)) as progress, quiet():
        bar = progress.add_task("", total=asked.operations, seed=seed)
        while left > 0:
            operations = min(left, length(seed))
            progress.update(bar, seed=seed, completed=asked.operations - left)
            try:
                run_world(seed, operations, lambda _: progress.advance(bar))
            except WorldFailure as failure:
                failures += 1
                print(f"world {seed} failed in {failure}", flush=True)
                if asked.traceback:
                    traceback.print_exception(failure.__cause__)
                if not asked.keep_going:
                    break
                failure.__cause__ = None
            left -= operations
            seed += 1
        progress.update(bar, completed=asked.operations - max(left, 0))
    print(f"{asked.operations - max(left, 0)} operations in {seed - asked.seed} worlds, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
