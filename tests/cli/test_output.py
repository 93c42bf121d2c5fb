"""No command ends in a traceback because its output cannot be written, or holds what no encoding has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcache.cli import main
from tests.support.full import only_full

FULL = Path("/dev/full")
NEEDS_FULL = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
COMMANDS: dict[str, list[str]] = {
    "help": ["--help"],
    "version": ["--version"],
    "help of a command": ["replay", "--help"],
    "doctor": ["doctor"],
    "doctor as json": ["doctor", "--json"],
    "replay": ["replay", "TRACE"],
    "replay as json": ["replay", "TRACE", "--json"],
    "demo": ["demo", "--model", "MODEL"],
}
EVERY = pytest.mark.parametrize("name", COMMANDS)
UNBUFFERED = pytest.param("1", marks=only_full, id="unbuffered")
BUFFERED = pytest.mark.parametrize("unbuffered", [pytest.param("", id="buffered"), UNBUFFERED])


@pytest.fixture
def command(tmp_path: Path, tiny_gguf: Path, name: str) -> list[str]:
    from kvcache.cli.gguf import convert

    words = {"TRACE": tmp_path / "trace.jsonl", "MODEL": tmp_path / "model"}
    lines = [list(range(turn, turn + 5000)) for turn in range(5)]
    words["TRACE"].write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if "demo" in name:
        words["MODEL"].mkdir()
        convert(tiny_gguf, words["MODEL"])
    arguments = [str(words.get(word, word)) for word in COMMANDS[name]]
    return [sys.executable, "-m", "kvcache", *arguments]


def _run(command: list[str], unbuffered: str = "", **streams: Any) -> tuple[int, str]:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered, "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, env=environment, check=False, **{"stderr": subprocess.PIPE} | streams)
    error = (ended.stderr or b"").decode()
    assert "Traceback" not in error
    assert "Exception ignored" not in error
    return ended.returncode, error


@NEEDS_FULL
@BUFFERED
@EVERY
def test_a_full_disk(command: list[str], unbuffered: str) -> None:
    with FULL.open("wb") as full:
        status, error = _run(command, unbuffered, stdout=full)
    assert status == 1
    assert error.splitlines()[-1] == "kvcache: the output cannot be written: No space left on device."


@BUFFERED
@EVERY
def test_a_reader_that_goes_away(command: list[str], unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        status, error = _run(command, unbuffered, stdout=writer)
    finally:
        os.close(writer)
    assert status == 141
    assert "kvcache: " not in error


@NEEDS_FULL
@EVERY
def test_an_stderr_that_cannot_be_written(command: list[str], name: str) -> None:
    with FULL.open("wb") as full:
        status, _ = _run(command, stdout=subprocess.DEVNULL, stderr=full)
    # With --json the report itself goes there.
    assert status == (1 if name == "replay as json" else 0)


@NEEDS_FULL
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["replay"], 2),
        (["replay", "--budget", "x"], 2),
        (["no-such-command"], 2),
        (["replay", "no-such-file"], 1),
    ],
)
def test_mistakes_that_cannot_be_told(arguments: list[str], expected: int) -> None:
    with FULL.open("wb") as full:
        assert _run([sys.executable, "-m", "kvcache", *arguments], stdout=full, stderr=full)[0] == expected


def test_names_that_no_encoding_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = "od\udcff"
    try:
        (tmp_path / f"{odd}.jsonl").write_text("[1, 2, 3]\n" * 3)
    except OSError:
        pytest.skip("this file system takes no such name")
    status, _ = _run(
        [sys.executable, "-m", "kvcache", "replay", str(tmp_path / f"{odd}.jsonl")], stdout=subprocess.DEVNULL
    )
    assert status == 0
    assert main(["replay", str(tmp_path / f"{odd}.jsonl")]) == 0
    assert main(["serve", "--model", str(tmp_path / odd)]) == 1
    assert main(["demo", "--model", str(tmp_path / odd)]) == 1
    assert "There is no folder" in capsys.readouterr().err
