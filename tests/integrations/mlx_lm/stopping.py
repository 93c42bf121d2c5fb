"""A server that is told to stop: as it starts, as its model loads, idle, and in the middle of answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.patience import PATIENCE
from tests.support.ports import free_port

from .servers import OURS, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS: Final = ("starting", "loading", "idle", "batched", "sequential")
# A model that never ends to load: the server in its own process, with a load that sleeps.
_LOAD_ENDLESSLY: Final = """
import time
from mlx_lm import server
from kvcache.cli import main
server.load = lambda *_, **__: time.sleep(9999)
main()
"""
_ENDLESS: Final = ("-c", _LOAD_ENDLESSLY, "serve")
_ANSWERS: Final = 3
_TOKENS: Final = 150
_PATIENCE: Final = PATIENCE


@dataclass(frozen=True)
class Outcome:
    """How the process ended, and what its clients got: "whole", or what they saw instead."""

    status: int
    answers: tuple[str, ...]
    log: str

    @property
    def good(self) -> bool:
        return self.status == 0 and set(self.answers) <= {"whole"}


def stop(model: Path, kind: str, number: int, work: Path, *options: str, turn: int = 0) -> Outcome:
    """Starts a server, sends the signal at the moment that ``kind`` names, and waits for its end.

    Args:
        model: The model's folder.
        kind: One of ``KINDS``.
        number: The signal.
        work: A folder for logs.
        options: Of the command.
        turn: Where in the start a "starting" server is stopped: so many fiftieths of two seconds.
    """
    with starting(model, work / "log", *options, what=_ENDLESS if kind == "loading" else OURS) as server:
        clients: list[_Client] = []
        if kind == "starting":
            _until(lambda: _catches(server.process.pid, signal.SIGTERM), server)
            time.sleep(turn / 25)
        else:
            until_answering(server)
        if kind in ("batched", "sequential"):
            clients = [_Client(server.port, kind, number) for number in range(_ANSWERS)]
        for client in clients:
            client.start()
        for client in clients:
            _until(client.begun.is_set, server)
        server.process.send_signal(number)
        status = server.process.wait(timeout=_PATIENCE)
        for client in clients:
            client.join(_PATIENCE)
        return Outcome(status, tuple(client.seen for client in clients), server.log.read_text())


@contextmanager
def starting(model: Path, log: Path, *options: str, what: tuple[str, ...] = OURS) -> Iterator[Server]:
    """A server that may be anywhere in its start, and may end whenever it likes."""
    port = free_port()
    command = [sys.executable, *what, "--model", str(model), "--port", str(port), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | {"HF_HUB_OFFLINE": "1"}
        )
    try:
        yield Server(process, port, log)
    finally:
        process.kill()
        process.wait()


def until_answering(server: Server) -> None:
    """Waits until the server listens; its model may still load."""
    _until(lambda: "serving on" in server.log.read_text(), server)
    _until(lambda: _health(server.port), server)


def until_logged(server: Server, text: str) -> None:
    _until(lambda: text in server.log.read_text(), server)


class _Client(threading.Thread):
    """Asks for a streamed answer; the first of its lines says that the request is under way."""

    def __init__(self, port: int, kind: str, turn: int) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.seen = "nothing"
        self._port = port
        self._body: dict[str, Any] = {"prompt": f"request {turn}", "max_tokens": _TOKENS, "stream": True}
        if kind == "sequential":
            self._body["seed"] = turn

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE)
        try:
            connection.request("POST", "/v1/completions", json.dumps(self._body))
            lines = []
            with connection.getresponse() as response:
                while line := response.readline():
                    # Sequential requests wait for one another: one that waits is under way, too.
                    self.begun.set()
                    lines.append(line)
            self.seen = "whole" if b"data: [DONE]\n" in lines else f"{len(lines)} lines"
        except OSError as error:
            self.seen = repr(error)
        finally:
            self.begun.set()
            connection.close()


def _health(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _until(true: Callable[[], bool], server: Server) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not true():
        assert server.process.poll() is None, server.log.read_text()
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.02)


def _catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal (Linux)."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (mask,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)
