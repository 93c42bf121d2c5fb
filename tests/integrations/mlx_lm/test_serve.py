"""`kvcache serve` on a tiny model: its command line, its figures, and requests that are no good."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvcache.cli import main
from tests.support.ports import free_port

from .servers import OURS, Server, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("serve") / "log"
    with running(OURS, tiny, log, "--cache-bytes", "2MB", "--prefill-step-size", "64") as server:
        yield server


def _metrics(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures(server: Server) -> None:
    before = _metrics(server.get("/metrics"))
    for seed in (None, 1):
        status, answer = server.post(CHAT | {"seed": seed})
        assert status == 200
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == answer["usage"]["prompt_tokens"] - 1
    after = _metrics(server.get("/metrics"))
    assert after["kvcache_lookups_total"] - before["kvcache_lookups_total"] == 2
    assert after["kvcache_limit_bytes"] == 2_000_000
    assert 0 < after["kvcache_bytes"] <= 2_000_000
    assert after["mlx_memory_bytes/active"] > after["kvcache_bytes"]
    assert after["kvcache_sequences/assistant"] >= 1
    figures = server.cache()
    assert figures["stats"]["nbytes"] == after["kvcache_bytes"]
    assert figures["limits"] == {"max_size": None, "max_bytes": 2_000_000}
    (space,) = figures["largest_namespaces"]
    assert space["model"][1:] == [None, None]
    assert space["nbytes"] == figures["stats"]["nbytes"]


def test_progress_of_a_long_prefill_is_logged(server: Server) -> None:
    server.post({"messages": [{"role": "user", "content": "long " * 100}], "max_tokens": 2})
    log = server.log.read_text()
    assert "Prompt processing progress: 64/" in log
    assert "the cache holds at most 2.00 MB" in log


def test_paths_of_the_server_are_still_there(server: Server) -> None:
    assert json.loads(server.get("/health")) == {"status": "ok"}
    with pytest.raises(OSError, match="404"):
        server.get("/no/such/path")


@pytest.mark.parametrize("seed", [None, 1], ids=["batched", "sequential"])
@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("{", "/v1/chat/completions"),
        ([], "/v1/chat/completions"),
        ({}, "/v1/chat/completions"),
        ({"messages": 5}, "/v1/chat/completions"),
        ({"messages": []}, "/v1/chat/completions"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "/v1/chat/completions"),
        (CHAT | {"temperature": "hot"}, "/v1/chat/completions"),
        (CHAT | {"max_tokens": 0}, "/v1/chat/completions"),
        (CHAT | {"stop": 5}, "/v1/chat/completions"),
        (CHAT | {"stop": ["x", 5]}, "/v1/chat/completions"),
        (CHAT | {"model": "no/such-model"}, "/v1/chat/completions"),
        (CHAT | {"chat_template_kwargs": 5}, "/v1/chat/completions"),
        ({"prompt": ""}, "/v1/completions"),
        ({"prompt": 5}, "/v1/completions"),
        ({"prompt": "x", "stop": [[]]}, "/v1/completions"),
    ],
)
def test_a_bad_request_does_not_end_the_server(
    server: Server, body: Any, path: str, seed: int | None
) -> None:
    if isinstance(body, dict):
        body = body | {"seed": seed}
    try:
        status, answer = server.post(body, path)
    except (ConnectionError, ValueError):
        pass  # mlx-lm's handler drops the connection on some
    else:
        assert 400 <= status < 500 or body.get("messages") == []
        assert answer["error"] if status >= 400 else answer
    assert server.post(CHAT | {"seed": seed})[0] == 200


def test_a_port_of_its_own_for_the_figures(tiny: Path, tmp_path: Path) -> None:
    port = free_port()
    options = ("--metrics-port", str(port), "--prompt-cache-bytes", "1M", "--prompt-cache-size", "3")
    with running(OURS, tiny, tmp_path / "log", *options) as server:
        assert server.post(CHAT)[0] == 200
        assert _metrics(server.get("/metrics", port))["kvcache_lookups_total"] == 1
        assert json.loads(server.get("/cache", port))["limits"] == {"max_size": 3, "max_bytes": 1_000_000}
        for path, where in (("/metrics", server.port), ("/health", port)):
            with pytest.raises(OSError, match="404"):
                server.get(path, where)
        taken = _error(["--port", str(server.port)], tiny)
        assert taken[0] == 1
    assert server.process.returncode == 0


def _error(options: list[str], model: Path) -> tuple[int, str]:
    import subprocess
    import sys

    command = [sys.executable, *OURS, "--model", str(model), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "the following arguments are required: --model"),
        (["--model", "m", "--cache-bytes", "8 gigs"], "the size must be a size like '4GB'"),
        (["--model", "m", "--cache-bytes", "-1"], "--cache-bytes"),
        (["--model", "m", "--prompt-cache-bytes", "much"], "the size must be a size like '4GB'"),
        (["--model", "m", "--metrics-port", "http"], "a port is a number from 0 to 65535, found 'http'"),
        (["--model", "m", "--port", "70000"], "a port is a number from 0 to 65535, found '70000'"),
        (
            ["--model", "m", "--cache-bytes", "1GB", "--prompt-cache-bytes", "1GB"],
            "--prompt-cache-bytes: not allowed with argument --cache-bytes",
        ),
    ],
)
def test_usage_errors(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *options]) == 2
    error = capsys.readouterr().err
    assert "usage: kvcache serve" in error
    assert sentence in error


@pytest.mark.parametrize(
    "options", [["--no-such-option"], ["--max-tokens", "many"], ["--chat-template-args", "{"], ["--temp"]]
)
def test_what_mlx_lms_parser_refuses(
    options: list[str], tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model", str(tiny), *options]) == 2
    error = capsys.readouterr().err
    assert "kvcache serve: error: " in error
    assert options[0] in error


def test_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.startswith("kvcache: There is no folder")


def test_a_port_in_use(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for options in (["--port", port], ["--port", "0", "--metrics-port", port]):
            assert main(["serve", "--model", str(tiny), *options]) == 1
            error = capsys.readouterr().err.splitlines()[-1]
            assert error.startswith(
                f"kvcache: Port {port} on 127.0.0.1 cannot be used (Address already in use"
            )
    assert main(["serve", "--model", str(tiny), "--host", "256.0.0.1", "--port", "0"]) == 1
    assert "cannot be used" in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_ends_the_server(tiny: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((tiny / name).read_text())
    (tmp_path / "model.safetensors").write_text("no tensors")
    code, error = _error(["--port", "0"], tmp_path)
    assert code == 1
    assert error.splitlines()[-1].startswith("kvcache: The model could not be loaded")
