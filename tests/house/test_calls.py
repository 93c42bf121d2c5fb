"""A reader who follows a call by hand goes through few files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "benches" / "calls.py"


@pytest.fixture(scope="module")
def traces() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("calls", BENCH)
    assert spec is not None
    assert spec.loader is not None
    calls = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(calls)
    return calls.traced(2)


@pytest.mark.parametrize(("name", "files", "calls"), [("fetch hit", 12, 120), ("first store", 15, 200)])
def test_a_call_crosses_few_files(traces: dict[str, Any], name: str, files: int, calls: int) -> None:
    trace = traces[name]
    assert 5 < len(trace.files) <= files, trace.files
    assert 20 < len(trace.calls) <= calls
