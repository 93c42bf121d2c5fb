"""Processes that are ranks of a ring on this machine.

As ``mlx.launch --backend ring`` starts them, less its loop: that one never sleeps and takes a core of
its own, which a machine of two cores does not have to give.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING

from tests.support.ports import LOOPBACK, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


def ring(
    command: Sequence[str], ranks: int, out: Path, seconds: float, environment: Mapping[str, str]
) -> list[int | None]:
    """Runs ``command`` as each rank until all have ended. Returns exit codes; None for who did not end.

    Args:
        command: The same for all.
        ranks: How many.
        out: A folder for ``ring.json`` and ``ring.log``, which all ranks write to.
        seconds: Whoever runs longer is killed, and so is who still runs after another rank failed.
        environment: Beside this process's own.
    """
    hosts = out / "ring.json"
    hosts.write_text(json.dumps([[f"{LOOPBACK}:{port}"] for port in free_ports(ranks)]))
    with (out / "ring.log").open("w") as log, ExitStack() as started:
        processes = [
            started.enter_context(
                _process(command, log, {**environment, "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)})
            )
            for rank in range(ranks)
        ]
        end = monotonic() + seconds
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - monotonic()))
        return [process.poll() for process in processes]


@contextmanager
def _process(
    command: Sequence[str], log: object, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that has a group of its own, and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
