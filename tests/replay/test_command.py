"""`kvcache replay` from end to end: reference figures, own traces, sentences and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcache.cli import main

TRACES = Path(__file__).parents[1] / "data" / "traces"

ROW = {
    "budget": str,
    "budget_tokens": int,
    "budget_bytes": (int, type(None)),
    "hit_rate": float,
    "optimal_hit_rate": float,
    "hit_tokens": int,
    "optimal_hit_tokens": int,
    "prefill_tokens_saved": int,
    "evictions": int,
    "evicted_tokens": int,
    "prompts_cut": int,
}
TRACE = {
    "name": str,
    "requests": int,
    "requested_tokens": int,
    "unique_tokens": int,
    "unlimited_hit_rate": float,
    "block_tokens": (int, type(None)),
    "segment_tokens": int,
    "bytes_per_token": (int, type(None)),
    "seconds": float,
    "budgets": list,
}


def _replay(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["replay", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])["traces"]


def _sentence(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    capsys.readouterr()
    assert main(["replay", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.endswith("…")]
    if code == 1:
        assert len(lines) == 1, captured.err
        assert lines[0].startswith("kvcache: ")
        assert lines[0].endswith(".")
    else:
        assert lines[0].startswith("usage: kvcache replay")
        assert lines[-1].startswith("kvcache replay: error: ")
    return lines[-1]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Two chats in turns: 10 tokens, then the same and 5 more, then an exact repeat."""
    path = tmp_path / "chats.jsonl"
    first, second = list(range(15)), list(range(100, 115))
    prompts = [first[:10], second[:10], first, second, first]
    path.write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    return path


@pytest.mark.parametrize(
    ("name", "budget", "leaf", "bound", "unlimited"),
    [("lmcache_agents", "1%", 57.2, 63.7, 73.8), ("mooncake_synth", "20%", 39.3, 60.8, 64.0)],
)
def test_reference_figures(
    capsys: pytest.CaptureFixture[str], name: str, budget: str, leaf: float, bound: float, unlimited: float
) -> None:
    path = TRACES / f"{name}.jsonl"
    block = json.loads(path.read_text().partition("\n")[0])["block_tokens"]
    (trace,) = _replay(capsys, path, "--budget", budget, "--segment-tokens", str(block))
    (row,) = trace["budgets"]
    assert 100 * row["hit_rate"] == pytest.approx(leaf, abs=0.1)
    assert 100 * row["optimal_hit_rate"] == pytest.approx(bound, abs=0.1)
    assert 100 * trace["unlimited_hit_rate"] == pytest.approx(unlimited, abs=0.05)


def test_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [TRACES / "lmcache_agents.jsonl", TRACES / "mooncake_synth.jsonl"]
    traces = _replay(capsys, *paths)
    assert [trace["name"] for trace in traces] == ["lmcache_agents", "mooncake_synth"]
    for trace in traces:
        assert set(trace) == set(TRACE)
        assert all(isinstance(trace[key], kind) for key, kind in TRACE.items())
        assert [row["budget"] for row in trace["budgets"]] == ["1%", "2%", "5%", "10%", "20%", "50%", "100%"]
        for row in trace["budgets"]:
            assert set(row) == set(ROW)
            assert all(isinstance(row[key], kind) for key, kind in ROW.items())
            assert 0 <= row["prefill_tokens_saved"] <= row["hit_tokens"] <= row["optimal_hit_tokens"]
        rates = [row["optimal_hit_rate"] for row in trace["budgets"]]
        assert rates == sorted(rates)
        assert rates[-1] == trace["unlimited_hit_rate"]


def test_a_trace_of_ones_own(capsys: pytest.CaptureFixture[str], chats: Path) -> None:
    (trace,) = _replay(capsys, chats, "--budget", "50%,100%", "--segment-tokens", "5")
    assert (trace["name"], trace["requests"], trace["block_tokens"]) == ("chats", 5, None)
    assert (trace["requested_tokens"], trace["unique_tokens"]) == (65, 30)
    tight, full = trace["budgets"]
    # All of what was seen before; of the exact repeat one token has to be run again.
    assert (full["hit_tokens"], full["prefill_tokens_saved"], full["evictions"]) == (35, 34, 0)
    # 15 tokens: each chat drives the other's tail out; 5 of the 10 tokens are left at its next turn.
    assert (tight["budget_tokens"], tight["hit_tokens"], tight["optimal_hit_tokens"]) == (15, 5, 25)
    assert tight["evictions"] * 5 == tight["evicted_tokens"]


def test_objects_with_tokens_and_empty_lines(
    capsys: pytest.CaptureFixture[str], chats: Path, tmp_path: Path
) -> None:
    path = tmp_path / "objects.jsonl"
    lines = [json.dumps({"t": 1.5, "tokens": json.loads(line)}) for line in chats.read_text().splitlines()]
    path.write_text("\n\n".join(lines))
    (bare,), (objects,) = _replay(capsys, chats), _replay(capsys, path)
    assert objects["budgets"] == bare["budgets"]


def test_budgets_in_bytes(capsys: pytest.CaptureFixture[str], chats: Path) -> None:
    arguments = ("--bytes-per-token", "1000", "--segment-tokens", "5")
    (trace,) = _replay(capsys, "--budget", "15kB", "50%", "100%,30KB", chats, *arguments)
    by_name = {row["budget"]: row for row in trace["budgets"]}
    assert list(by_name) == ["15kB", "50%", "100%", "30KB"]
    assert [row["budget_bytes"] for row in by_name.values()] == [15_000, 15_000, 30_000, 30_000]
    for same in (("15kB", "50%"), ("30KB", "100%")):
        left, right = ({**by_name[name], "budget": ""} for name in same)
        assert left == right


def test_report_on_stdout(capsys: pytest.CaptureFixture[str], chats: Path) -> None:
    assert main(["replay", str(chats), "--bytes-per-token", "1000"]) == 0
    captured = capsys.readouterr()
    for text in ("hit rate", "optimum", "prefill tokens saved", "evictions", "100%", "smallest budget"):
        assert text in captured.out
    assert "reading chats.jsonl …" in captured.err
    assert "chats at 10% …" in captured.err


@pytest.mark.parametrize(
    ("lines", "number", "why"),
    [
        (["[1, 2]", "[1, 2"], 2, "this is no JSON"),
        (["[1]", "", "7"], 3, "a request is a list of token ids"),
        (['{"prompt": [1]}'], 1, "a request is a list of token ids"),
        (["[1, -1]"], 1, "token ids go from 0 to 2147483647, found -1 at 1"),
        (["[2147483648]"], 1, "token ids go from 0 to 2147483647"),
        (["[1, true]"], 1, "token ids are whole numbers, found true at 1"),
        (["[1.0]"], 1, "token ids are whole numbers"),
        (['{"block_tokens": 0}'], 1, "block_tokens must be a whole number from 1"),
        (['{"block_tokens": 4, "name": 1}'], 1, "name must be a text"),
        (['{"block_tokens": 4}', "[1]"], 2, "a request of a block trace"),
        (['{"block_tokens": 4}', '{"b": [[1]]}'], 2, "a run of blocks is [first_id, count]"),
        (['{"block_tokens": 4}', '{"b": [[1, -1]]}'], 2, "block ids go from 0"),
    ],
)
def test_a_broken_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], number: int, why: str
) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text("\n".join(lines))
    sentence = _sentence(capsys, 1, path)
    assert f"{path}, line {number}: " in sentence
    assert why in sentence


def test_files_that_are_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str], chats: Path) -> None:
    assert "There is no trace" in _sentence(capsys, 1, tmp_path / "nowhere.jsonl")
    assert "There is no trace" in _sentence(capsys, 1, chats, tmp_path / "nowhere.jsonl")
    assert "cannot be read" in _sentence(capsys, 1, tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "has no requests" in _sentence(capsys, 1, tmp_path / "empty.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00\x01")
    assert "line 1: this is no JSON" in _sentence(capsys, 1, tmp_path / "binary.jsonl")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "name at least one TRACE"),
        (["x", "--budget", "0%"], "more than nothing"),
        (["x", "--budget", "4GX"], "a share like 10% or a size like 4GB, found '4GX'"),
        (["x", "--budget", "5%,,1%"], "found ''"),
        (["x", "--budget", "4GB"], "4GB needs --bytes-per-token or --model"),
        (["x", "--segment-tokens", "0"], "a whole number from 1"),
        (["x", "--bytes-per-token", "2.5"], "a whole number from 1"),
        (["x", "--bytes-per-token", "1", "--model", "y"], "not allowed with"),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], why: str) -> None:
    assert why in _sentence(capsys, 2, *arguments)


def test_nothing_heavy_for_a_usage_error_and_never_mlx(chats: Path) -> None:
    def loaded(*arguments: str) -> set[str]:
        script = f"import sys, kvcache.cli as c; c.main(['replay', *{arguments}]); print(*sys.modules)"
        command = [sys.executable, "-c", script]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        return set(result.stdout.splitlines()[-1].split())

    assert not loaded("x", "--budget", "4GB") & {"mlx", "mlx_lm", "numpy", "rich"}
    assert not loaded(str(chats)) & {"mlx", "mlx_lm", "transformers", "matplotlib"}


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str], chats: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, start in (("a.png", b"\x89PNG"), ("b.svg", b"<?xml")):
        assert main(["replay", str(chats), str(chats), "--plot", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_bytes().startswith(start)
    assert "takes a file ending in" in _sentence(capsys, 1, chats, "--plot", tmp_path / "c.txt")
    assert "There is no folder" in _sentence(capsys, 1, chats, "--plot", tmp_path / "no" / "d.png")


def test_plot_without_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, chats: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    sentence = _sentence(capsys, 1, chats, "--plot", tmp_path / "a.png")
    assert "needs matplotlib" in sentence
    assert "kvcache[bench]" in sentence
