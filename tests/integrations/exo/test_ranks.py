"""Ranks of one model with layers of different kinds: none waits for another, all reuse the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.ports import LOOPBACK, free_ports

ROOT = Path(__file__).parents[3]


def _played(folder: Path, groups: list[str], count: int) -> list[list[Any]]:
    """What each rank saw of each group of models."""
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"{LOOPBACK}:{port}"] for port in free_ports(count)]))
    ranks = []
    try:
        for rank in range(count):
            environment = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts), "KVCACHE_CHECK_RANKS": "1"}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.integrations.exo.ranks", *groups],
                    cwd=ROOT,
                    env=os.environ | environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outputs = [rank.communicate(timeout=900) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * count, outputs
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def test_ranks_agree(tmp_path: Path) -> None:
    expected = {
        # Checkpoints where the hybrid's chunks end: 12, 24, 36, 48 and 60 of the first prompt.
        "kv,arrays": ([0, 24, 60, 60, 24, 36, 36], 61),
        # States alone do not say how many tokens they have run, so only ends are kept.
        "state-only,arrays": ([0, 0, 60, 60, 0, 0, 0], 61),
        "kv,state-only": ([0, 0, 60, 60, 0, 0, 0], 61),
        # After a chunk of one token the window is out of order, so neither rank keeps anything there.
        "arrays,rotating": ([0, 24, 60, 60, 24, 36, 36], 60),
    }
    ranks = _played(tmp_path, list(expected), 2)
    assert ranks[0] == ranks[1]
    for seen, (hits, after_one) in zip(ranks[0], expected.values(), strict=True):
        turns, (evicted, refused, *again, memory, cleared) = seen[:7], seen[7:]
        assert [turn[0] for turn in turns] == hits
        assert [turn[2] for turn in turns] == [False, False, True, False, False, False, False]
        assert evicted[0] == 1
        assert refused[0] is None
        assert [turn[0] for turn in again[1:]] == [60, 60, after_one]
        assert memory[0] == 0.5
        assert cleared[0] == 0
