"""A server in a process of its own, and the client that asks it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

from openai import OpenAI

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OURS = ("-m", "kvcache", "serve")
STOCK = ("-c", "from mlx_lm.server import main; main()")


class Server:
    """A running server; ``port`` is where."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def get(self, path: str, port: int | None = None) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port or self.port}{path}", timeout=900) as response:
            return response.read().decode()

    def cache(self) -> dict[str, Any]:
        return json.loads(self.get("/cache"))

    def post(self, body: object, path: str = "/v1/chat/completions") -> tuple[int, Any]:
        """Status and body, whatever the status."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=900)
        try:
            text = body if isinstance(body, str) else json.dumps(body)
            connection.request("POST", path, text)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or "null")
        finally:
            connection.close()

    def leave_after(self, body: dict[str, Any], lines: int, marker: str) -> None:
        """Goes away in mid-answer: after ``lines`` lines that begin with ``marker``."""
        text = json.dumps(body | {"stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(text)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=900) as connection:
            connection.sendall(head.encode() + text)
            with connection.makefile("rb") as answer:
                while lines:
                    line = answer.readline()
                    assert line, "the answer ended before the client could leave"
                    lines -= line.startswith(marker.encode())
            # A reset, as a killed client's system sends it: the server's next write fails.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def until_held(self, ntokens: int) -> int:
        """Waits until at least ``ntokens`` are held; what a client left behind ends some time later."""
        deadline = time.monotonic() + 900
        while (held := self.cache()["stats"]["ntokens"]) < ntokens:
            assert time.monotonic() < deadline, f"{held} tokens held, {ntokens} expected"
            time.sleep(0.2)
        return held

    @contextmanager
    def client(self) -> Iterator[OpenAI]:
        with OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=900
        ) as client:
            yield client


@contextmanager
def running(what: tuple[str, ...], model: Path, log: Path, *options: str) -> Iterator[Server]:
    """Starts a server and waits until it answers; ends it by its own signal."""
    port = free_port()
    command = [sys.executable, *what, "--model", str(model), "--port", str(port), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"HF_HUB_OFFLINE": "1"}
        )
    server = Server(process, port, log)
    try:
        _await(server)
        yield server
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        try:
            process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(server: Server) -> None:
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        assert server.process.poll() is None, server.log.read_text()
        try:
            server.get("/health")
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(server.log.read_text())
