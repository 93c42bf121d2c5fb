"""The examples run as they are, on a tiny model, and reuse what they should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integrations.mlx_lm.tiny import write_model
from tests.support.patience import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


def _run(name: str, *arguments: str, text: str = "") -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_chat(tiny: Path) -> None:
    printed = _run("mlx_lm_chat.py", str(tiny), text="hello\nwho are you?\nand what?\n\n")
    found = [(int(n), int(reused)) for n, reused in re.findall(r"\[(\d+) tokens, (\d+) from", printed)]
    assert len(found) == 3
    assert found[0][1] == 0
    for (before, _), (tokens, reused) in pairwise(found):
        assert before < reused < tokens


def test_an_engine_of_ones_own(tiny: Path) -> None:
    shared = "a shared beginning " * 40
    printed = _run("own_engine.py", str(tiny), shared + "one", shared + "two", shared + "two")
    reused = [int(n) for n in re.findall(r"tokens, (\d+) from the cache", printed)]
    assert reused == [0, len(shared), len(shared) + 2]
    *_, two, again = (line for line in printed.splitlines() if "from the cache" not in line)
    assert two == again


def test_an_engine_on_a_model_that_needs_checkpoints(tmp_path: Path) -> None:
    layers = ["sliding_attention", "full_attention"]
    sliding = write_model(tmp_path / "sliding", layer_types=layers, sliding_window=16)
    shared = "a shared beginning " * 40
    prompts = [shared + last for last in ("one", "two", "new", "new")]
    reused = [
        int(n) for n in re.findall(r"tokens, (\d+) from", _run("own_engine.py", str(sliding), *prompts))
    ]
    assert reused == [0, 0, len(shared), len(shared)]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60
