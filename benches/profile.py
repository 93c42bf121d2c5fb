"""Where the index's time goes: `perf` over one kind of work at a time.

`make profile` writes `benches/results/profile.md`. The work is `rust/core/examples/profile.rs`, built like a
release, with line tables for the names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from kvcache import __version__

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "target" / "profile"
REPORT = ROOT / "benches" / "results" / "profile.md"
WORK = {
    "lookup 131072": "A lookup of 131,072 tokens that are held",
    "lookup 8192": "A lookup of 8,192 tokens that are held",
    "miss 8192": "A lookup of 8,192 tokens of which none is held",
    "insert 8192": "An insert of 8,192 new tokens that evicts as many",
    "insert 24": "An insert of 24 new tokens that evicts as many",
}
# What a symbol is for; the first part that a name contains counts.
PARTS = {
    "memcmp": "comparing tokens (libc memcmp)",
    "any_media": "checking that ids are in range",
    "memmove": "copying tokens (libc memmove)",
    "malloc": "allocator",
    "free": "allocator",
    "alloc": "allocator",
    "profile": "the loop around it",
    "kvcache_core": "walking, linking, counting",
}
OTHER = "kernel and the rest"


def main() -> int:
    perf = shutil.which("perf")
    if perf is None:
        print("perf is not installed (Debian: apt-get install linux-perf)", file=sys.stderr)
        return 1
    environment = os.environ | {
        "CARGO_PROFILE_RELEASE_DEBUG": "line-tables-only",
        "CARGO_TARGET_DIR": str(TARGET),
    }
    build = ["cargo", "build", "--release", "--quiet", "-p", "kvcache-core", "--example", "profile"]
    subprocess.run(build, check=True, cwd=ROOT, env=environment)
    lines = [
        "# Where the index's time goes",
        "",
        f"Written by `make profile` on {datetime.now(UTC).date().isoformat()} with kvcache {__version__}:",
        "shares of samples in percent, by what a function is for.",
    ]
    for work, title in WORK.items():
        print(f"{title} …", file=sys.stderr, flush=True)
        lines += ["", f"## {title}", "", "| share | |", "|--:|---|"]
        shares = _shares(perf, work.split())
        lines += [f"| {share:.0f} | {part} |" for part, share in shares if share >= 1]
    REPORT.write_text("\n".join([*lines, ""]))
    print(REPORT.read_text())
    return 0


def _shares(perf: str, work: list[str]) -> list[tuple[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        program = str(TARGET / "release" / "examples" / "profile")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run([perf, "record", "-o", data, "-F", "997", program, *work], check=True, **quiet)
        report = [perf, "report", "-i", data, "--stdio", "--sort=symbol"]
        printed = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    shares: dict[str, float] = defaultdict(float)
    for line in printed.splitlines():
        fields = line.split()
        if len(fields) < 3 or not fields[0].endswith("%"):
            continue
        kernel, symbol = fields[1] == "[k]", fields[2]
        part = OTHER if kernel else next((PARTS[name] for name in PARTS if name in symbol), OTHER)
        shares[part] += float(fields[0].rstrip("%"))
    return sorted(shares.items(), key=lambda item: -item[1])


if __name__ == "__main__":
    sys.exit(main())
