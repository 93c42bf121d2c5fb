"""Exit codes and sentences of the command, and the demo from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvcache.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def _one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    sentences = [line for line in captured.err.splitlines() if not line.endswith("…")]
    assert len(sentences) == 1, captured.err
    assert sentences[0].startswith("kvcache: ")
    assert sentences[0].endswith(".")
    return sentences[0]


@pytest.fixture
def tiny_model(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from kvcache.cli.gguf import convert

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "tiny"
    folder.mkdir()
    convert(tiny_gguf, folder)
    return folder


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("kvcache ")


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["dmeo"], ["demo", "--modle", "x"], ["demo", "--model"], ["demo", "x"]])
def test_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "usage: kvcache" in capsys.readouterr().err


def test_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(tmp_path / "nowhere")]) == 1
    assert "There is no folder" in _one_sentence(capsys)


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.gguf").write_text("")
    assert main(["demo", "--model", str(tmp_path / "model.gguf")]) == 1
    assert "is a file and no model folder" in _one_sentence(capsys)


@pytest.mark.parametrize(
    ("present", "missing"), [("README.md", "config.json"), ("config.json", "model*.safetensors")]
)
def test_a_folder_that_is_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], present: str, missing: str
) -> None:
    (tmp_path / present).write_text("{}")
    assert main(["demo", "--model", str(tmp_path)]) == 1
    assert f"is no mlx-lm model: it has no {missing}" in _one_sentence(capsys)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"model_type": "no_such_thing"}'),
        ("model.safetensors", "no tensors"),
        ("tokenizer.json", "{"),
    ],
)
def test_an_unreadable_file(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], name: str, content: str
) -> None:
    (tiny_model / name).write_text(content)
    capsys.readouterr()
    assert main(["demo", "--model", str(tiny_model)]) == 1
    assert "cannot be loaded as an mlx-lm model" in _one_sentence(capsys)


def test_python_dash_m_is_the_command(tmp_path: Path) -> None:
    result = _python("-m", "kvcache", "demo", "--model", str(tmp_path / "nowhere"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("kvcache: There is no folder")
    assert _python("-m", "kvcache").returncode == 2


def test_the_command_imports_nothing_heavy() -> None:
    heavy = "{'mlx', 'mlx_lm', 'transformers', 'numpy', 'rich'}"
    code = f"import sys, kvcache.cli as c; c.main(['--version']); print({heavy} & {{*sys.modules}})"
    assert _python("-c", code).stdout.splitlines()[-1] == "set()"


def test_demo_on_any_model_folder(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import mlx.core as mx

    pool_limit = mx.set_cache_limit(1 << 30)
    try:
        assert main(["demo", "--model", str(tiny_model), "--json"]) == 0
        assert mx.set_cache_limit(pool_limit) == 1 << 30  # as it was found
    finally:
        mx.set_cache_limit(pool_limit)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["model"] == "tiny"
    _check(result)


def test_demo_prints_tables_and_no_json(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", str(tiny_model)]) == 0
    output = capsys.readouterr().out
    for word in ("speed-up", "Texts identical", "difference to the ledger"):
        assert word in output
    assert not output.splitlines()[-1].startswith("{")


def test_a_demo_that_reuses_nothing_fails(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcache.cli import chat

    answer = chat.Chat._answer_warm

    def forgetful(self: chat.Chat, tokens: list[int]) -> tuple[str, float, int]:
        text, milliseconds, _ = answer(self, tokens)
        return text, milliseconds, 0

    monkeypatch.setattr(chat.Chat, "_answer_warm", forgetful)
    assert main(["demo", "--model", str(tiny_model), "--json"]) == 1
    captured = capsys.readouterr()
    assert "should give tokens back" in captured.err.splitlines()[-1]
    assert json.loads(captured.out)["turns"][1]["reused_tokens"] == 0


@pytest.mark.real_model
@pytest.mark.timeout(7200)  # without an optimised BLAS it takes minutes
def test_demo_on_the_demo_model() -> None:
    result = _python("-m", "kvcache", "demo", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["model"] == "SmolLM2-135M-Instruct"
    assert report["outputs_equal"] is True
    assert "Paris" in result.stderr
    _check(report)


def _check(report: dict[str, object]) -> None:
    assert set(report) == {"model", "turns", "outputs_equal", "eviction"}
    turns = report["turns"]
    assert len(turns) >= 4
    for turn in turns:
        assert set(turn) == {"prompt_tokens", "reused_tokens", "ttft_cold_ms", "ttft_warm_ms"}
        assert 0 <= turn["reused_tokens"] < turn["prompt_tokens"]
        assert min(turn["ttft_cold_ms"], turn["ttft_warm_ms"]) > 0
    assert turns[0]["reused_tokens"] == 0
    assert all(turn["reused_tokens"] > 0 for turn in turns[1:])
    eviction = report["eviction"]
    assert set(eviction) == {"evicted_bytes", "freed_bytes", "retained_bytes", "reclaim_ms"}
    assert eviction["evicted_bytes"] > 0
    from kvcache.arrays import clear_pool
    from tests.support.memory import spill

    clear_pool()
    # What is held is charged with a spill of its own; none on CPU, where all is exact.
    assert abs(eviction["freed_bytes"] - eviction["evicted_bytes"]) <= spill(1000)
    assert 0 <= eviction["retained_bytes"] <= spill(1000)
