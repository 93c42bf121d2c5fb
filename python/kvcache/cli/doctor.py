"""`kvcache doctor`: what this machine has and what the cache would choose on it, for bug reports."""

from __future__ import annotations

import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvcache.errors import no_mlx

if TYPE_CHECKING:
    import argparse

_PACKAGES: Final = ("kvcache", "mlx", "mlx-lm", "mlx-metal", "mlx-cpu", "mlx-cuda-12", "mlx-cuda-13", "numpy")
_BLAS: Final = ("openblas", "mkl", "blis", "atlas")


def add_parser(subparsers: Any) -> None:
    """Registers the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="versions, device, memory limits and what the cache chooses by default",
        description="Prints what a bug report needs; no path, host or user name is in it.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report."""
    report = examine()
    if args.json:
        print(json.dumps(report))
        return 0
    width = max(len(name) for name in report)
    for name, value in report.items():
        print(f"{name:<{width}}  {value}")
    return 0


def examine() -> dict[str, Any]:
    """The report, a line each."""
    import psutil

    from kvcache import SystemMemoryPressure
    from kvcache.sizes import format_size

    system = psutil.virtual_memory().total
    report: dict[str, Any] = {name: version for name in _PACKAGES if (version := _version(name))}
    report["python"] = f"{platform.python_implementation()} {platform.python_version()}{_gil()}"
    report["system"] = f"{platform.system()} {platform.machine()}"
    report["memory"] = format_size(system)
    try:
        report |= _device(system)
    except ImportError as error:
        report["device"] = no_mlx(error)
    report["SystemMemoryPressure threshold"] = SystemMemoryPressure().threshold
    return report


def _device(system: int) -> dict[str, Any]:
    """What MLX says, and what the limits' defaults are with it."""
    import mlx.core as mx

    from kvcache.memory.limits import device_memory, resolve_max_buffers
    from kvcache.sizes import format_size

    info = mx.device_info()
    report: dict[str, Any] = {"device": f"{mx.default_device()} {info.get('device_name', '')}".strip()}
    recommended = device_memory(info)
    report["device memory"] = "not reported" if recommended is None else format_size(recommended)
    report["resource limit"] = info.get("resource_limit", "not reported")
    if platform.system() == "Linux" and mx.default_device().type == mx.DeviceType.cpu:
        report["BLAS"] = _blas()
    report["max_bytes by default"] = "no limit"
    buffers = resolve_max_buffers(None, info)
    report["max_buffers by default"] = "no limit" if buffers is None else buffers
    report["memory_limit=0.75 means"] = format_size(int((recommended or system) * 0.75))
    return report


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _gil() -> str:
    enabled = getattr(sys, "_is_gil_enabled", lambda: True)()
    return "" if enabled else ", without the GIL"


def _blas() -> str:
    """Which BLAS library the process has loaded: the wheel's own one is 90 times slower than OpenBLAS."""
    maps = Path("/proc/self/maps")
    loaded = maps.read_text().lower() if maps.is_file() else ""
    found = [name for name in _BLAS if f"lib{name}" in loaded]
    return ", ".join(found) or "reference BLAS of the MLX wheel (slow: preload libopenblas.so.0)"
