"""What `segment_tokens` costs and buys: hit rate, index time, copying, buffers.

`make bench-segments` writes `benches/results/segments.md`. Hit rates are those of the last
`make bench-hit-rates`. Index and copies are measured here, the index with all lengths in turn in every round.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import mlx.core as mx
import numpy as np
from bandwidth import Rate, rates
from entries import Shape

from kvcache import PrefixIndex, __version__
from kvcache.cli.console import Steps

RESULTS = Path(__file__).parents[1] / "results"
SEGMENTS = (128, 256, 512, 1024, 2048, 4096)
TOKENS = 131_072
SHAPE = Shape(tokens=16_384, layers=8, heads=2, width=64, dtype=mx.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS / "segments.md")
    options = parser.parse_args()
    mx.set_default_device(mx.cpu)
    mx.set_cache_limit(0)
    with Steps(options.rounds + len(SEGMENTS)) as steps:
        index = _index_times(options.rounds, steps)
        copies = {}
        # What the first copies meet (fresh pages, large ones) no later ones do.
        list(rates(SHAPE, max(SEGMENTS), 3, lambda _: None))
        for segment_tokens in SEGMENTS:
            steps.begin(f"copies, segments of {segment_tokens}")
            found = rates(SHAPE, segment_tokens, options.rounds, lambda _: None)
            copies[segment_tokens] = {rate.name: rate for rate in found}
            steps.advance()
    options.output.write_text(_document(index, copies, _hit_rates(RESULTS / "hit_rates.md")))
    print(options.output.read_text())


def _index_times(rounds: int, steps: Steps) -> dict[int, tuple[float, float, float]]:
    """Lookup and insert of one prompt in microseconds, and the index's bytes a token."""
    stored = np.random.default_rng(1).integers(0, 150_000, TOKENS, dtype=np.int32)
    queries = [stored.copy() for _ in range(5)]
    lookups: dict[int, list[float]] = {length: [] for length in SEGMENTS}
    inserts: dict[int, list[float]] = {length: [] for length in SEGMENTS}
    nbytes = {}
    for number in range(rounds):
        steps.begin(f"index, round {number + 1} of {rounds}")
        for length in SEGMENTS:
            index = PrefixIndex(segment_tokens=length)
            # The first insert into a new index pays for the heap's growth.
            for name in ("warm", "measured"):
                index.clear()
                began = time.perf_counter()
                index.insert(stored)
                took = time.perf_counter() - began
                if name == "measured":
                    inserts[length].append(took * 1e6)
            for query in queries:
                began = time.perf_counter()
                index.match_prefix(query)
                lookups[length].append((time.perf_counter() - began) * 1e6)
            nbytes[length] = index.stats().index_bytes / TOKENS
        steps.advance()
    return {length: (median(lookups[length]), median(inserts[length]), nbytes[length]) for length in SEGMENTS}


def _hit_rates(path: Path) -> dict[int, float]:
    """The row `mean` of the table by segment length."""
    columns: list[str] = []
    _, _, section = path.read_text().partition("## By segment length")
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[:2] == ["trace", "budget"]:
            columns = cells
        if cells[0] == "mean":
            return {
                int(name.replace(",", "")): float(cell)
                for name, cell in zip(columns[2:], cells[2:], strict=True)
            }
    raise SystemExit(f"there is no row of means in {path}: run make bench-hit-rates first")


def _document(
    index: dict[int, tuple[float, float, float]],
    copies: dict[int, dict[str, Rate]],
    hit_rates: dict[int, float],
) -> str:
    when = datetime.now(UTC).date().isoformat()
    mb = SHAPE.nbytes / 1e6
    lines = [
        "# By segment length",
        "",
        f"Written by `make bench-segments` on {when}: kvcache {__version__}, mlx {mx.__version__} on CPU,",
        f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores.",
        "",
        "- Hit rate: mean token hit rate in percent over the five traces at budgets of 1, 2 and 5 %, from",
        "  [hit_rates.md](hit_rates.md).",
        f"- Lookup, insert: one prompt of {TOKENS:,} int32 tokens in `PrefixIndex`, medians.",
        f"- Store, fetch: {SHAPE.tokens:,} tokens, {SHAPE.layers} layers, {mb:.0f} MB of float32; bytes read",
        "  and written a second, MLX's pool off. `make bench-memory` holds them against plain copies.",
        "- Buffers: MLX arrays that the entry is held in.",
        "- Waste: tokens evicted beyond what was asked for, at most.",
        "",
        "| segment | hit rate | lookup | insert | index bytes a token | store | fetch | buffers | waste |",
        f"|{'--:|' * 9}",
    ]
    for length in SEGMENTS:
        lookup, insert, nbytes = index[length]
        store, fetch = copies[length]["store"], copies[length]["fetch"]
        copied = " | ".join(f"{rate.gb_per_s:.1f} GB/s" for rate in (store, fetch))
        buffers = 2 * SHAPE.layers * SHAPE.tokens // length
        lines.append(
            f"| {length:,} | {hit_rates[length]:.2f} | {lookup:.1f} us | {insert:.1f} us | {nbytes:.2f} "
            f"| {copied} | {buffers:,} | {length - 1:,} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
