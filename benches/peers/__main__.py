"""`python -m benches.peers [section…]`: builds the Rust side, runs both, writes the report.

Takes some ten minutes; every step says what it is at. With sections named, only those run, and
the report is printed instead of kept.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "target" / "peers"
REPORT = ROOT / "benches" / "results" / "peers.md"
# vllm-mlx is put here by `make bench-peers`, without its dependencies: they would pull in a server.
sys.path.append(str(TARGET / "python"))

from benches.peers import plots, python_side, report  # noqa: E402


def say(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


def rust_lines(wanted: list[str]) -> list[python_side.Line]:
    manifest = Path(__file__).parent / "Cargo.toml"
    build = ["cargo", "build", "--release", "--manifest-path", str(manifest), "--target-dir", str(TARGET)]
    subprocess.run(build, check=True)
    program = TARGET / "release" / "kvcache-peers"
    printed = subprocess.run([program, *wanted], check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = []
    for line in printed.splitlines():
        section, case, size, contender, median, best = line.split("\t")
        lines.append(python_side.Line(section, case, int(size), contender, float(median), float(best)))
    return lines


def main() -> None:
    wanted = sys.argv[1:]
    rust = rust_lines(wanted)
    python = list(python_side.run(say, wanted))
    if wanted:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "peers.md"
            report.write(path, rust, python)
            print(path.read_text())
        return
    REPORT.parent.mkdir(exist_ok=True)
    report.write(REPORT, rust, python)
    plots.draw(REPORT.parent, rust, python)
    say(f"written: {REPORT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
