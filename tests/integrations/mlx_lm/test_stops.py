"""`kvcache serve` ends with status 0 whenever it is asked to, and finishes what is under way."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

from kvcache.cli import main
from kvcache.integrations.mlx_lm.door import Door
from tests.support.full import FULL
from tests.support.patience import PATIENCE

from .stopping import KINDS, starting, stop, until_answering, until_logged

if TYPE_CHECKING:
    from pathlib import Path

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the moment is read from /proc")


@SIGNALS
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=LINUX) if kind == "starting" else kind for kind in KINDS]
)
def test_a_stop(tiny: Path, tmp_path: Path, kind: str, number: int) -> None:
    # Only a start has several moments to stop at; a full run repeats the other kinds too.
    for turn in (0, 20) if FULL or kind == "starting" else (0,):
        outcome = stop(tiny, kind, number, tmp_path, turn=turn)
        assert outcome.good, outcome
        assert "Traceback" not in outcome.log


@pytest.mark.parametrize("kind", ["batched", "sequential"])
def test_requests_that_take_longer_than_allowed_are_cut(tiny: Path, tmp_path: Path, kind: str) -> None:
    outcome = stop(tiny, kind, signal.SIGTERM, tmp_path, "--shutdown-timeout", "0")
    assert outcome.status == 0
    if set(outcome.answers) != {"whole"}:  # a fast machine has finished all of them
        assert "requests are cut" in outcome.log
        assert "Fatal Python error" not in outcome.log


@SIGNALS
def test_a_second_signal_ends_the_process_at_once(tiny: Path, tmp_path: Path, number: int) -> None:
    with (
        starting(tiny, tmp_path / "log") as server,
        socket.socket() as client,
    ):
        until_answering(server)
        body = json.dumps({"prompt": "endless", "max_tokens": 10**9, "stream": True})
        client.connect(("127.0.0.1", server.port))
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        assert client.recv(1)
        server.process.send_signal(number)
        until_logged(server, "stopping")
        assert _refused(server.port)
        assert server.process.poll() is None
        server.process.send_signal(number)
        assert server.process.wait(timeout=PATIENCE) == 128 + number


def _refused(port: int) -> bool:
    """Whether a new connection is refused, or its request with 503, from some moment on."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 503:
                return True
        except OSError:
            return True
        finally:
            connection.close()
    return False


def test_the_door() -> None:
    door = Door()
    assert door.enter()
    assert door.enter()
    door.leave()
    assert door.close(0) == 1
    assert not door.enter()
    leaver = threading.Thread(target=door.leave)
    leaver.start()
    assert door.close(120) == 0
    leaver.join()


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "1e9", ""])
def test_a_timeout_that_is_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", "m", "--shutdown-timeout", text]) == 2
    assert "a time is a number of seconds from 0 to 86400" in capsys.readouterr().err
