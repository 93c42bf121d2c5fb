"""`kvcache doctor`."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path

import mlx.core as mx
import pytest

from kvcache import __version__
from kvcache.cli import main


def test_the_report_says_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kvcache"] == __version__
    assert {"mlx", "mlx-lm", "python", "device", "device memory", "resource limit"} <= report.keys()
    assert 0 < report["SystemMemoryPressure threshold"] <= 1


def test_lines_name_nobody_and_no_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert str(Path.home()) not in shown
    assert platform.node() not in shown
    assert getpass.getuser() not in shown.split()


def test_buffers_follow_the_resource_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {"resource_limit": 499_000, "device_name": "a device"})
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["max_buffers by default"] == 399_200
    assert report["device"].endswith("a device")


@pytest.mark.skipif(platform.system() != "Linux", reason="BLAS matters to MLX's CPU wheel on Linux only")
@pytest.mark.skipif(mx.default_device().type != mx.DeviceType.cpu, reason="about the CPU")
def test_blas_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    blas = json.loads(capsys.readouterr().out)["BLAS"]
    # numpy brings an OpenBLAS of its own under another name; MLX does not use that one.
    loaded = "libopenblas" in Path("/proc/self/maps").read_text().lower()
    assert ("openblas" in blas and "reference" not in blas) == loaded
