"""How `kvcache serve` ends: 50 stops of each kind by each signal; fails unless all end with status 0.

A request that is under way has to get its whole answer.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.integrations.mlx_lm.stopping import KINDS, stop
from tests.integrations.mlx_lm.tiny import write_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50, metavar="N", help="stops of each kind (default: 50)")
    times = parser.parse_args().times
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model = write_model(work / "tiny")
        print("kind        signal   good  endings")
        for kind in KINDS:
            for number in (signal.SIGTERM, signal.SIGINT):
                endings: Counter[str] = Counter()
                good = 0
                for turn in range(times):
                    outcome = stop(model, kind, number, work, turn=turn)
                    good += outcome.good
                    endings[f"status {outcome.status}"] += 1
                    endings.update(f"answer {answer}" for answer in outcome.answers)
                bad += times - good
                summary = ", ".join(f"{count} times {ending}" for ending, count in sorted(endings.items()))
                print(f"{kind:<10}  {number.name}  {good:>5}  {summary}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
