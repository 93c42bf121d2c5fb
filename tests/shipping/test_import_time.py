"""`import kvcache` costs an application next to nothing: what it imports, and what that costs side by side.

The measure is the import of loguru and psutil, which it needs, in the same run: a busy machine takes longer
over both. Time is the processor's.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE

NEEDED = "import loguru, psutil"
# Its own modules, the extension among them, and the standard library's that they use.
MOST = 2.0
# As many as it takes where several processes share a core.
RUNS = 25
PROGRAM = """
from time import process_time
begin = process_time()
{code}
print(process_time() - begin)
"""
PACKAGES = """
import sys
before = set(sys.modules)
import kvcache
for name in {name.partition(".")[0] for name in set(sys.modules) - before}:
    if name not in sys.stdlib_module_names and not name.startswith("_"):
        print(name)
"""


def _run(code: str) -> tuple[float, str]:
    """Seconds of a whole process, and what it printed."""
    # A preloaded OpenBLAS starts threads of its own, which poll.
    environ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-c", code]
    before = os.times()
    result = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=PATIENCE, env=environ
    )
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, result.stdout


def test_an_import_brings_two_packages_and_none_of_the_heavy_ones() -> None:
    """No mlx, mlx_lm, transformers, numpy, rich: they wait until they are used."""
    assert set(_run(PACKAGES)[1].split()) == {"kvcache", "loguru", "psutil"}


def test_an_import_costs_little_on_top_of_these_two() -> None:
    needed = whole = float("inf")
    for _ in range(RUNS):
        needed = min(needed, float(_run(PROGRAM.format(code=NEEDED))[1]))
        whole = min(whole, float(_run(PROGRAM.format(code="import kvcache"))[1]))
        if whole <= MOST * needed:
            return
    pytest.fail(f"{whole / needed:.1f} times the import of loguru and psutil")


def test_a_process_that_imports_it_is_as_little_slower() -> None:
    """Including what an import leaves to the end of a process."""
    needed = whole = float("inf")
    for _ in range(RUNS):
        needed, whole = min(needed, _run(NEEDED)[0]), min(whole, _run("import kvcache")[0])
        if whole <= MOST * needed:
            return
    pytest.fail(f"{whole / needed:.1f} times a process that imports loguru and psutil")
