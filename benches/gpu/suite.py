"""The tests on a device that CI does not have: one process a file, and a tally to keep.

``python benches/gpu/suite.py --output benches/results/tests_h200.txt`` runs each file of tests/ in a pytest
of its own, several at once, so that a crash takes one file with it and is named. What is done by the time
limit is in the state file: the same command goes on from there, on another machine too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

ROOT: Final = Path(__file__).resolve().parents[2]
PYTEST: Final = [
    *("-m", "pytest", "-v", "-ra", "-p", "no:cacheprovider", "-m", "not real_model"),
    *("-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default"),
]
PACKAGES: Final = ("kvcache", "mlx", "mlx-cuda-13", "mlx-lm", "numpy", "pytest", "hypothesis")
# Tests that take long begin first.
FIRST: Final = (
    "architectures/",
    "test_side_by_side",
    "test_stops",
    "ranks/test_random_calls",
    "test_failures",
    "reports/",
)
# How often a file is run again without the test that ended its process.
CRASHES: Final = 5
STARTED: Final = re.compile(r"^(tests/\S+::.+?)(?: (?:PASSED|FAILED|SKIPPED|ERROR).*)?$", re.MULTILINE)

Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="the tally, as text")
    parser.add_argument("--state", type=Path, help="what is done, as JSON; default: beside the tally")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="files at once")
    parser.add_argument("--seconds", type=float, default=500, help="no file runs on after that many")
    parser.add_argument("--per-file", type=float, default=400, help="seconds for one file")
    parser.add_argument(
        "--without", nargs="*", default=["shipping", "docs"], help="folders that need a compiler or a build"
    )
    parser.add_argument("files", nargs="*", help="only these, as tests/…; run again if they were run")
    options = parser.parse_args()
    state_file = options.state or options.output.with_suffix(".json")
    results: dict[str, Result] = json.loads(state_file.read_text()) if state_file.exists() else {}
    files = options.files or [name for name in _files(options.without) if name not in results]
    end = time.monotonic() + options.seconds

    def run(name: str) -> None:
        left = min(options.per_file, end - time.monotonic())
        if left < 20:
            return  # for the next call
        result = _run(name, left)
        if result["ended"] != "cut off by the time limit" or left == options.per_file:
            results[name] = result
            _write(state_file, json.dumps(results, indent=1))
        print(f"{name}: {result['ended']} {result['counts']}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, files))
    missing = [name for name in _files(options.without) if name not in results]
    _write(options.output, _tally(results, missing, options.without))
    print(options.output.read_text())
    return 0 if not missing else 3


def _files(without: list[str]) -> list[str]:
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.relative_to(ROOT / "tests").parts[0] not in without
    ]
    return sorted(found, key=lambda name: (not any(first in name for first in FIRST), name))


def _run(name: str, seconds: float) -> Result:
    """One file; where a test takes the process down, once more without it."""
    crashed: list[str] = []
    began = time.monotonic()
    while True:
        with tempfile.TemporaryDirectory() as folder:
            xml = Path(folder) / "junit.xml"
            without = [word for test in crashed for word in ("--deselect", test)]
            code, output = _pytest([name, *without, f"--junitxml={xml}"], seconds - time.monotonic() + began)
            result = _read(xml) if xml.exists() else {"counts": {}, "failed": {}, "skipped": {}}
        result["seconds"] = round(time.monotonic() - began, 1)
        result["crashed"] = crashed
        if code is None:
            return result | {"ended": "cut off by the time limit", "tail": output[-1500:]}
        if code >= 0:
            ended = {0: "ran", 1: "ran", 5: "ran"}.get(code, f"exit code {code}")
            return result | {"ended": ended, "tail": "" if ended == "ran" else output[-1500:]}
        started = re.findall(
            r"^(tests/\S+::.+?)(?: (?:PASSED|FAILED|SKIPPED|ERROR).*)?$", output, re.MULTILINE
        )
        if not started or len(crashed) == CRASHES or started[-1].strip() in crashed:
            return result | {"ended": f"ended by {signal.Signals(-code).name}", "tail": output[-1500:]}
        crashed.append(started[-1].strip())


def _pytest(arguments: list[str], seconds: float) -> tuple[int | None, str]:
    """The exit code, negative for a signal and None for the time limit; and what was printed."""
    process = subprocess.Popen(
        [sys.executable, *PYTEST, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, output


def _read(xml: Path) -> Result:
    counts: Counter[str] = Counter()
    failed: dict[str, str] = {}
    skipped: Counter[str] = Counter()
    for case in ET.parse(xml).getroot().iter("testcase"):  # noqa: S314 - written by pytest just now
        kind = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if kind is None:
            counts["passed"] += 1
        elif kind.tag == "skipped":
            counts["skipped"] += 1
            skipped[kind.get("message", "")] += 1
        else:
            counts["failed" if kind.tag == "failure" else "errors"] += 1
            name = f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}"
            failed[name] = (kind.get("message") or "").strip()[:400]
    return {"counts": dict(counts), "failed": failed, "skipped": dict(skipped)}


def _tally(results: dict[str, Result], missing: list[str], without: list[str]) -> str:
    total: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for result in results.values():
        total.update(result["counts"])
        reasons.update(result["skipped"])
    lines = ["kvcache's tests on a device that CI does not have", "", *_machine(), ""]
    lines.append(", ".join(f"{total[kind]} {kind}" for kind in ("passed", "failed", "errors", "skipped")))
    crashes = [test for result in results.values() for test in result["crashed"]]
    lines.append(f"{len(results)} files, {len(crashes)} tests took their process down")
    lines.append(
        f"Not run: tests of a model that is downloaded; {', '.join(without)}; {len(missing)} files left"
    )
    lines += ["", f"{'file':<48} {'passed':>7} {'failed':>7} {'errors':>7} {'skipped':>8} {'s':>7}"]
    for name, result in sorted(results.items()):
        counts = Counter(result["counts"])
        figures = f"{counts['passed']:>7} {counts['failed']:>7} {counts['errors']:>7} {counts['skipped']:>8}"
        note = "" if result["ended"] == "ran" else f"  {result['ended']}"
        lines.append(f"{name:<48} {figures} {result['seconds']:>7.1f}{note}")
    lines += ["", "Skipped"] + [f"{count:>5} {_line(why)}" for why, count in reasons.most_common()]
    for title, tests in (("Crashed", dict.fromkeys(crashes, "")), ("Failed", _failed(results))):
        if tests:
            lines += ["", title] + [f"  {test}\n      {_line(why)}".rstrip() for test, why in tests.items()]
    for name, result in sorted(results.items()):
        if result["tail"]:
            lines += ["", f"Last words of {name}", result["tail"]]
    return _nowhere("\n".join(lines) + "\n")


def _failed(results: dict[str, Result]) -> dict[str, str]:
    return {test: why for _, result in sorted(results.items()) for test, why in result["failed"].items()}


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def _nowhere(text: str) -> str:
    """The same without the folders of the machine that it was run on."""
    for folder, name in ((ROOT, "."), (Path(sys.prefix), "python"), (Path(tempfile.gettempdir()), "tmp")):
        text = text.replace(f"{folder}/", f"{name}/")
    return text


def _machine() -> list[str]:
    import mlx.core as mx

    info = mx.device_info()
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return [
        f"device   {info.get('device_name', 'CPU')} ({mx.default_device()})",
        f"machine  {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        f"packages {', '.join(found)}",
    ]


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
