"""What MLX's allocators on Metal and CUDA charge for an array: their rules, and how a test runs under them.

Metal (mlx/backend/metal/allocator.cpp): sizes above a page are rounded up to pages of 16 KiB; smaller ones
are charged as they are, and below 256 bytes come out of a heap. CUDA (mlx/backend/cuda/allocator.cpp): up to
a page the next power of two, 8 at least; pages above.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE: Final = 16384
ENVIRONMENT: Final = "KVCACHE_TEST_CHARGE"
_COMPILER: Final = shutil.which("cc")
_SOURCE: Final = Path(__file__).with_name("charge.c")


def charge_metal(nbytes: int) -> int:
    return nbytes if nbytes <= PAGE else _pages(nbytes)


def charge_cuda(nbytes: int) -> int:
    if nbytes == 0 or nbytes >= PAGE:
        return _pages(nbytes)
    return max(8, 1 << (nbytes - 1).bit_length())


def charge_cpu(nbytes: int) -> int:
    return nbytes


CHARGES: Final[dict[str, Callable[[int], int]]] = {
    "metal": charge_metal,
    "cuda": charge_cuda,
    "cpu": charge_cpu,
}


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def here() -> str:
    """Whose allocator this process has: a simulated one's name where one is."""
    simulated = os.environ.get(ENVIRONMENT)
    if simulated:
        return simulated
    if mx.metal.is_available():
        return "metal"
    return "cuda" if mx.cuda.is_available() else "cpu"


def why_not_simulated() -> str | None:
    """Why no other device's allocator can be simulated here; None where it can."""
    if here() != "cpu":
        return f"MLX charges as on {here()} already"
    if not sys.platform.startswith("linux"):
        return "an allocator is replaced by preloading, on Linux"
    return None if _COMPILER else "no C compiler"


def simulated(kind: str, folder: Path) -> dict[str, str]:
    """The environment of a process whose MLX charges as on this device."""
    library = folder / "charge.so"
    subprocess.run([_COMPILER, "-O2", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
    preloaded = [os.environ.get("LD_PRELOAD", ""), str(library)]
    return os.environ | {ENVIRONMENT: kind, "LD_PRELOAD": ":".join(filter(None, preloaded))}
