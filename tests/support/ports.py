"""Ports for processes that a test starts."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from itertools import count as numbers
from typing import Final

LOOPBACK: Final = "127.0.0.1"
# Below those that the system gives out, and apart for each of two processes that run tests side by side: a
# port is free for a moment between the test that finds it and the process that listens on it.
_RANGE: Final = 10_000
_FIRST: Final = 10_000 + _RANGE * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 2)
_next = numbers(os.getpid() * 40)


def free_ports(count: int) -> list[int]:
    """Ports in a row that nobody uses."""
    for _ in range(200):
        first = _FIRST + next(_next) * count % (_RANGE - count)
        ports = list(range(first, first + count))
        with ExitStack() as held, suppress(OSError):
            for port in ports:
                held.enter_context(socket.socket()).bind((LOOPBACK, port))
            return ports
    raise OSError(f"no {count} free ports in a row on {LOOPBACK}")


def free_port() -> int:
    """A port that nobody uses."""
    return free_ports(1)[0]
