"""The report: one table a section and side, each figure beside kvcache's."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benches.peers.python_side import Line

TITLES = {
    "lookup": "Lookup",
    "insert": "Insert",
    "stored": "A path of 8,192 tokens among many short sequences (16 to 32 tokens)",
    "evict": "Evict",
    "chat": "One long chat",
    "bushy": "A bushy tree: one system prompt of 1,024 tokens, 100,000 that go on from it",
    "memory": "Index memory, bytes a token stored",
    "threads": "Lookups from one and from two threads at once",
}
LIMITS = ("memcmp", "memcpy", "memmove")
LOCK = Path(__file__).parent / "Cargo.lock"


def own(lines: Iterable[Line]) -> dict[tuple[str, str, int], float]:
    """kvcache's median by section, case and size; of its two Python forms, the list."""
    found: dict[tuple[str, str, int], float] = {}
    for line in lines:
        if line.contender in {"kvcache", "kvcache, list"}:
            found[line.section, line.case, line.size] = line.median
    return found


def shown(nanoseconds: float) -> str:
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= scale:
            return f"{nanoseconds / scale:,.2f} {unit}"
    return f"{nanoseconds:.0f} ns"


def table(lines: list[Line]) -> Iterable[str]:
    """Rows: case and size. Columns: contenders, each with its median and how it stands to kvcache's."""
    names = list(dict.fromkeys(line.contender for line in lines))
    rows: dict[tuple[str, int], dict[str, Line]] = {}
    for line in lines:
        rows.setdefault((line.case, line.size), {})[line.contender] = line
    beside = own(lines)
    yield f"| | size | {' | '.join(names)} |"
    yield "|---|--:|" + "--:|" * len(names)
    for (case, size), cells in rows.items():
        row = []
        for name in names:
            line = cells.get(name)
            if line is None:
                row.append("-")
                continue
            value = f"{line.median:.2f}" if line.section == "memory" else shown(line.median)
            reference = beside.get((line.section, case, size))
            if reference and not name.startswith("kvcache"):
                value += f" ({line.median / reference:,.2f} x)"
            row.append(value)
        yield f"| {case} | {size:,} | {' | '.join(row)} |"


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())
        model = found.group(1).strip() if found else model
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def versions() -> str:
    parts = [f"CPython {platform.python_version()}"]
    for name in ("kvcache", "mlx", "mlx-lm", "vllm-mlx"):
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            parts.append(f"{name} not installed")
    lock = LOCK.read_text() if LOCK.exists() else ""
    for name in ("kv-index", "dynamo-kv-router"):
        found = re.search(rf'name = "{name}"\nversion = "([^"]+)"', lock)
        parts.append(f"{name} {found.group(1) if found else '?'}")
    return ", ".join(parts)


NOTES = """\
Times are medians; the factor in brackets is that contender's time over kvcache's, so above 1 kvcache
is faster. All contenders of a table run in turn in every round of one process, each starts from raw
token ids, and equal queries are in five buffers, in rotation. `memcmp`, `memcpy` and `memmove` are
the physical limit: reading or copying the same bytes, between two distinct buffers.

What to know when reading:

- kvcache and kv-index know exactly what was stored; dynamo compares 64-bit hashes of blocks and
  leaves the rest of a prompt (up to 15 or 63 tokens) out. It has no eviction order of its own.
- On a miss, and past a divergence, kvcache still reads the rest of the prompt: an invalid token
  anywhere is an error and not a shorter match. kv-index accepts any 32-bit number and stops.
- kv-index stores a new prompt as one vector: one allocation, one copy, which is the limit itself.
  kvcache stores a node for every 1,024 tokens, so that eviction takes tails and a split copies at
  most one segment; that is what an insert pays for here and what a chat or a fork gets back.
- kv-index finds the oldest entry by visiting all of them; kvcache takes the end of a list.
- Two threads share kvcache under one mutex, as in the Python extension.
"""


def write(path: Path, rust: list[Line], python: list[Line]) -> None:
    today = dt.datetime.now(tz=dt.UTC).date()
    out = ["# Prefix indexes side by side", "", "Written by `make bench-peers`; do not edit.", ""]
    out += [f"- date: {today}", f"- machine: {machine()}", f"- versions: {versions()}", "", NOTES]
    for side, lines in (("Rust", rust), ("Python", python)):
        for section, title in TITLES.items():
            chosen = [line for line in lines if line.section == section]
            if chosen:
                out += [f"## {side}: {title}", "", *table(chosen), ""]
    path.write_text("\n".join(out).rstrip() + "\n")
