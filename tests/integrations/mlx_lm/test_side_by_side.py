"""The benchmark of the two servers runs, and its bar holds on a tiny model too: counts, not times."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "benches" / "server" / "run.py"


def test_at_most_half_of_the_prefill_tokens(tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "server.md"
    command = [sys.executable, str(BENCH), "--model", str(tiny), "--path", "batched", "--output", str(output)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stderr
    rows = re.findall(r"^\| batched \| (\S+)[^|]*\| ([\d,]+) \|", output.read_text(), re.MULTILINE)
    computed = {name: int(tokens.replace(",", "")) for name, tokens in rows}
    assert 0 < computed["kvcache"] <= computed["mlx_lm.server"] / 2
    assert "32 of 32 greedy answers are the same" in output.read_text()
