"""mlx_lm.server, unmodified, against `kvcache serve`: same requests, same options, same byte limit.

Counted at the model's `__call__` in both. Fails where ours computes more than half of the prefill
tokens. `make bench-server` writes benches/results/server.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workload import Result, Workload, run

HERE = Path(__file__).parent
BAR = 0.5
COLUMNS = (
    "path", "server", "prefill tokens computed", "prompt tokens", "cached tokens reported",
    "TTFT median", "TTFT p95", "all requests", "peak memory", "held at the end",
)  # fmt: skip
NAMES = {"stock": "mlx_lm.server", "ours": "kvcache serve"}


@dataclass(frozen=True)
class Run:
    """One server's figures."""

    path: str
    which: str
    prefill_tokens: int
    result: Result
    counts: dict[str, int]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a model folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--limit-tokens", type=int, default=3200, help="byte limit, in tokens of KV")
    parser.add_argument("--path", choices=("batched", "sequential", "both"), default="both")
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--output", type=Path, help="write the table there too")
    options = parser.parse_args()

    from kvcache.cli.smollm2 import ensure_demo_model

    model = options.model or ensure_demo_model()
    os.environ["HF_HUB_OFFLINE"] = "1"
    from mlx_lm.utils import load_tokenizer

    tokenizer = load_tokenizer(model)
    workload = Workload(options.conversations, options.turns)
    paths = ("batched", "sequential") if options.path == "both" else (options.path,)
    each = [(path, which) for path in paths for which in NAMES]
    runs = [measure(*one, model, tokenizer, workload, options.limit_tokens) for one in each]
    text = report(runs, workload, options.limit_tokens, model)
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    missed = [each for each in compare(runs) if each[1] > BAR]
    for path, ratio in missed:
        print(
            f"missed on the {path} path: {ratio:.2f} of the prefill tokens, at most {BAR} expected",
            file=sys.stderr,
        )
    return 1 if missed else 0


def token_bytes(model: Path) -> int:
    """Bytes of one token's KV in float32."""
    config = json.loads((model / "config.json").read_text())
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * 4 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * width


def copies(workload: Workload, limit_tokens: int) -> int:
    """Whole conversations of the last turn's length that fit."""
    return limit_tokens // (workload.system_tokens + workload.turns * workload.turn_tokens)


def limits(path: str, which: str, workload: Workload, limit_tokens: int, limit: int) -> list[str]:
    """The options that give a server its limit."""
    if path == "sequential" and which == "stock":
        return ["--prompt-cache-size", str(copies(workload, limit_tokens))]
    return ["--prompt-cache-bytes", str(limit)]


def measure(path: str, which: str, model: Path, tokenizer: Any, workload: Workload, limit_tokens: int) -> Run:
    """Starts one server, asks it everything, ends it."""
    limit = limit_tokens * token_bytes(model)
    with tempfile.TemporaryDirectory() as scratch:
        report, log = Path(scratch) / "report.json", Path(scratch) / "log"
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        command = [sys.executable, str(HERE / "launch.py"), which, str(report), "--model", str(model)]
        command += ["--port", str(port), *limits(path, which, workload, limit_tokens, limit)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            _await(port, process, log)
            print(f"{NAMES[which]}, {path} path ...", file=sys.stderr, flush=True)
            result = run(port, tokenizer, workload, None if path == "batched" else 1)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                # The report is written before it ends, and a driver may take its time.
                process.kill()
                process.wait()
        counts = json.loads(report.read_text())
    # Each generated token was run once, in both servers and on both paths.
    return Run(path, which, counts["tokens_run"] - result.completion_tokens, result, counts)


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


def compare(runs: list[Run]) -> list[tuple[str, float]]:
    """Each path with our share of mlx-lm's prefill tokens."""
    found = {(each.path, each.which): each.prefill_tokens for each in runs}
    return [
        (path, found[path, "ours"] / found[path, "stock"])
        for path in dict.fromkeys(each.path for each in runs)
    ]


def report(runs: list[Run], workload: Workload, limit_tokens: int, model: Path) -> str:
    """The table, in Markdown."""
    limit = limit_tokens * token_bytes(model)
    shape = f"{workload.conversations} conversations of {workload.turns} turns in round robin"
    made = f"kvcache {version('kvcache')}, mlx-lm {version('mlx-lm')}, mlx {version('mlx')}"
    lines = [
        "# mlx-lm's server, as it is and on kvcache",
        "",
        f"{shape}, one request at a time; one system prompt of {workload.system_tokens} tokens,",
        f"{workload.turn_tokens} new tokens a turn, answers included. Model {model.name}.",
        f"The limit is the bytes of {limit_tokens:,} tokens ({limit:,}), as `--prompt-cache-bytes`. On the",
        "sequential path (requests with a seed) mlx-lm applies no byte limit, so there it gets the number of",
        f"whole copies that fit: `--prompt-cache-size {copies(workload, limit_tokens)}`. Tokens are counted",
        "at the model's `__call__` in both. Memory is MLX's, the weights aside: its peak, and what is active",
        "and cached at the end.",
        "",
        f"Written by `make bench-server` on {time.strftime('%Y-%m-%d')}: {made},",
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---:|" * (len(COLUMNS) - 2),
    ]
    for each in runs:
        times = sorted(each.result.first_token)
        weights = each.counts["weights_bytes"]
        cells = (
            each.path,
            NAMES[each.which],
            f"{each.prefill_tokens:,}",
            f"{each.result.prompt_tokens:,}",
            f"{each.result.cached_tokens:,}",
            f"{statistics.median(times):.2f} s",
            f"{times[min(len(times) - 1, int(len(times) * 0.95))]:.2f} s",
            f"{each.result.seconds:.0f} s",
            f"{(each.counts['peak_bytes'] - weights) / 1e6:.0f} MB",
            f"{(each.counts['held_bytes'] - weights) / 1e6:.0f} MB",
        )
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    texts = {(each.path, each.which): each.result.texts for each in runs}
    for path, ratio in compare(runs):
        same = sum(a == b for a, b in zip(texts[path, "stock"], texts[path, "ours"], strict=True))
        lines.append(
            f"On the {path} path kvcache computes {ratio:.2f} of the prefill tokens (bar: {BAR}); "
            f"{same} of {len(texts[path, 'ours'])} greedy answers are the same."
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
