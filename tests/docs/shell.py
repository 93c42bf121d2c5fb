"""What stands behind `$` in a console block: each command is run, or what it names is checked."""

from __future__ import annotations

import io
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from kvcache.cli import main
from tests.support.patience import PATIENCE
from tests.support.ring import ring

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[2]
BIN: Final = Path(sys.executable).parent
SECONDS: Final = PATIENCE
_SETTING: Final = re.compile(r"[A-Z_]+=\S*")


class Shell:
    """Runs the commands of one page, in the folder the page runs in. What it started ends with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: list[subprocess.Popen[str]] = []
        self._ports: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.wait(SECONDS)

    def run(self, line: str) -> str:
        """What the command prints on stdout. One that fails raises."""
        words = shlex.split(line, comments=True)
        settings = dict(word.split("=", 1) for word in words if _SETTING.fullmatch(word))
        words = words[len(settings) :]
        if words[:2] == ["kvcache", "serve"]:
            return self._serve(words)
        known: dict[str, Callable[[list[str], dict[str, str]], str]] = {
            "curl": self._curl,
            "kvcache": self._kvcache,
            "make": self._make,
            "mlx.launch": self._launch,
            "python": self._python,
        }
        assert words[0] in known, f"the tests cannot run {words[0]!r}"
        return known[words[0]](words, settings)

    def _make(self, words: list[str], _settings: dict[str, str]) -> str:
        """A target that exists; its recipe is what other tests and the benches run."""
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        (target,) = words[1:]
        assert target in targets, f"the Makefile has no target {target!r}"
        return ""

    def _kvcache(self, words: list[str], _settings: dict[str, str]) -> str:
        printed = io.StringIO()
        with redirect_stdout(printed):
            code = main(words[1:])
        assert code == 0, f"{words} ended with {code}"
        return printed.getvalue()

    def _python(self, words: list[str], settings: dict[str, str]) -> str:
        ended = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=self._folder,
            input="hello\n\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env=os.environ | settings,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def _launch(self, words: list[str], settings: dict[str, str]) -> str:
        """`mlx.launch -n N --backend ring SCRIPT …` without its launcher, which takes a core of its own."""
        assert words[1::2][:2] == ["-n", "--backend"]
        assert words[4] == "ring"
        codes = ring([sys.executable, *words[5:]], int(words[2]), self._folder, SECONDS, settings)
        printed = (self._folder / "ring.log").read_text()
        assert set(codes) == {0}, printed
        return printed

    def _serve(self, words: list[str]) -> str:
        """The server stays until the page ends. Its ports are free ones; `curl` finds them."""
        for at, word in enumerate(words):
            if word in ("--port", "--metrics-port"):
                words[at + 1] = self._free(words[at + 1])
        if "--port" not in words:
            words += ["--port", self._free("8080")]
        log = (self._folder / "server.log").open("w")
        with log:
            server = subprocess.Popen(
                [str(BIN / "kvcache"), *words[1:]], cwd=self._folder, text=True, stderr=log, stdout=log
            )
        self._servers.append(server)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and server.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(self._ports["8080"])), 1):
                return ""
            time.sleep(0.1)
        raise AssertionError((self._folder / "server.log").read_text())

    def _free(self, written: str) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._ports[written] = str(probe.getsockname()[1])
        return self._ports[written]

    def _curl(self, words: list[str], _settings: dict[str, str]) -> str:
        url = re.sub(r":(\d+)/", lambda found: f":{self._ports[found[1]]}/", words[1])
        options = dict(zip(words[2::2], words[3::2], strict=True))
        assert set(options) <= {"--json"}
        body = options["--json"].encode() if options else None
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - this machine's own server
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - likewise
            return answer.read().decode()
