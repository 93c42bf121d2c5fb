"""Ranks as processes of their own, and what each of them has to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.patience import PATIENCE
from tests.support.ports import free_ports
from tests.support.ring import kill_group, ring

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).parents[2]


def launch(
    scenario: str,
    ranks: int,
    out: Path,
    options: Mapping[str, Any] | None = None,
    *,
    check: bool = False,
    seconds: float = PATIENCE,
    by_mlx: bool = False,
) -> list[Any]:
    """Runs ``tests/ranks/<scenario>.py`` on each rank of a ring. Returns their results by rank.

    Args:
        scenario: A module with ``run(group, options)``, whose result goes through JSON.
        ranks: How many.
        out: An empty folder.
        options: For the scenario.
        check: With ``KVCACHE_CHECK_RANKS=1``.
        seconds: Ranks that take longer hang: they say where, and end.
        by_mlx: Let ``mlx.launch`` start the ranks.
    """
    worker = str(Path(__file__).with_name("worker.py"))
    arguments = [worker, scenario, str(out), json.dumps(options or {}), str(seconds)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "KVCACHE_CHECK_RANKS": str(int(check))}
    if by_mlx:
        _mlx_launch(arguments, ranks, out, seconds + 20, environment)
    else:
        ring([sys.executable, *arguments], ranks, out, seconds + 20, environment)
    files = [out / f"rank{rank}.json" for rank in range(ranks)]
    missing = [file.stem for file in files if not file.exists()]
    if missing:
        said = (out / "ring.log").read_text()
        pytest.fail(f"no result of {', '.join(missing)}\n{said[-6000:]}", pytrace=False)
    return [json.loads(file.read_text()) for file in files]


def _mlx_launch(
    arguments: Sequence[str], ranks: int, out: Path, seconds: float, environment: Mapping[str, str]
) -> None:
    command = [str(Path(sys.executable).parent / "mlx.launch"), "-n", str(ranks), "--backend", "ring"]
    command += ["--starting-port", str(free_ports(ranks)[0]), "--python", sys.executable]
    for name, value in environment.items():
        command += ["--env", f"{name}={value}"]
    with (out / "ring.log").open("w") as log:
        # It reads its standard input: the end of a closed one it would read again and again.
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        finally:
            kill_group(process)
            if process.stdin is not None:
                process.stdin.close()
