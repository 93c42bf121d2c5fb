"""Ranks as processes of their own, and what each of them has to say."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[2]
LOOPBACK: Final = "127.0.0.1"


def launch(
    scenario: str,
    ranks: int,
    out: Path,
    options: Mapping[str, Any] | None = None,
    *,
    check: bool = False,
    seconds: float = 60,
) -> list[Any]:
    """Runs ``tests/ranks/<scenario>.py`` on each rank of a ring. Returns their results by rank.

    Args:
        scenario: A module with ``run(group, options)``, whose result goes through JSON.
        ranks: How many.
        out: An empty folder.
        options: For the scenario.
        check: With ``KVCACHE_CHECK_RANKS=1``.
        seconds: Ranks that take longer hang: they say where, and end.
    """
    command = [
        str(Path(sys.executable).parent / "mlx.launch"),
        *("-n", str(ranks), "--backend", "ring", "--starting-port", str(_free_ports(ranks))),
        *("--python", sys.executable, "--env", f"PYTHONPATH={ROOT}"),
        *("--env", f"KVCACHE_CHECK_RANKS={int(check)}"),
        *(str(Path(__file__).with_name("worker.py")), scenario, str(out), json.dumps(options or {})),
        str(seconds),
    ]
    # The launcher reads its standard input and would read the end of a closed one again and again.
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said = process.stdout.read() if process.wait(seconds + 20) is not None and process.stdout else ""
    except subprocess.TimeoutExpired:
        said = f"the ranks did not end within {seconds + 20} seconds"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    files = [out / f"rank{rank}.json" for rank in range(ranks)]
    missing = [file.stem for file in files if not file.exists()]
    if missing:
        pytest.fail(f"no result of {', '.join(missing)}\n{said[-6000:]}", pytrace=False)
    return [json.loads(file.read_text()) for file in files]


def _free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nobody uses."""
    for _ in range(50):
        with ExitStack() as held:
            first = held.enter_context(socket.socket())
            first.bind((LOOPBACK, 0))
            port = first.getsockname()[1]
            with suppress(OSError, OverflowError):
                for more in range(1, count):
                    held.enter_context(socket.socket()).bind((LOOPBACK, port + more))
                return port
    raise OSError(f"no {count} free ports in a row on {LOOPBACK}")
