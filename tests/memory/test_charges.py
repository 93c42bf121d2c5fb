"""What a device charges for an array, and that no test takes the CPU's exact allocator for granted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from kvcache import KVPrefixCache
from tests.support.charges import CHARGES, here, simulated, why_not_simulated
from tests.support.entries import fill
from tests.support.full import only_full
from tests.support.layers import KV, Arrays
from tests.support.memory import PAGE_TOKENS, charge, charged, charges, exact, spill
from tests.support.patience import PATIENCE
from tests.support.poskv import PosKV, held

TESTS = Path(__file__).parents[1]
SIZES = [1, 7, 8, 9, 24, 64, 100, 255, 256, 257, 5_000, 5_120, 8_192, 8_193, 16_383, 16_384, 16_385, 20_000]
SIZES += [32_768, 100_000, 1_100_000, 3_000_000]
# Where memory is compared with what arrays are charged.
FILES = [
    "memory/test_given_back.py",
    "memory/test_limits.py",
    "operations/test_peaks.py",
    "memory/test_charges.py",
    "memory/test_cycles.py",
    "memory/test_pressure.py",
    "memory/test_reclaim.py",
    "operations/test_announced.py",
    "operations/test_interference.py",
    "reports",
    "whole/test_soak.py",
]


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_probe_finds_what_the_allocator_s_source_says(nbytes: int) -> None:
    """On CPU that is the size; on a device it says whether the simulation below is still true to MLX."""
    assert charge(nbytes) == CHARGES[here()](nbytes)


def test_only_the_cpu_s_allocator_is_exact() -> None:
    assert exact() == (here() == "cpu")
    assert (spill(3) == 0) == exact()


@pytest.mark.parametrize(
    ("nbytes", "charged_there"),
    [
        (100, 128),
        (5_000, 8_192),
        (5_120, 8_192),
        (20_000, 32_768),
        (100_000, 114_688),
        (1_100_000, 1_114_112),
        (3_000_000, 3_014_656),
    ],
)
def test_cuda_as_it_was_seen(nbytes: int, charged_there: int) -> None:
    """MLX 0.32.4 on an H200."""
    assert CHARGES["cuda"](nbytes) == charged_there


@pytest.mark.parametrize("kind", CHARGES)
def test_every_device_charges_whole_pages_as_they_are(kind: str) -> None:
    model = PosKV(KV())
    for array in held(model.filled(range(256))):
        assert array.nbytes % (256 // PAGE_TOKENS) == 0
        assert CHARGES[kind](array.nbytes) == array.nbytes


def test_a_cache_is_charged_array_by_array() -> None:
    cache, model = KVPrefixCache(segment_tokens=16), PosKV(KV(), KV(heads=1), Arrays())
    fill(cache, model, 3, 40)
    buffers = cache.stats().buffers
    assert cache.nbytes <= charged(cache) <= cache.nbytes + spill(buffers)
    assert charges(held(model.filled([1]))) >= model.nbytes(1)


def test_what_is_in_the_pool_is_no_probe() -> None:
    mx.set_cache_limit(1 << 30)
    mx.eval(mx.ones((7, 7, 7)))
    with pytest.raises(AssertionError, match="before it is on"):
        charge(123_457)
    mx.clear_cache()


@pytest.mark.skipif(why_not_simulated() is not None, reason=str(why_not_simulated()))
@pytest.mark.parametrize(
    ("kind", "files"),
    [
        pytest.param("metal", FILES[:3], id="metal-part"),
        pytest.param("metal", FILES[3:], id="metal-rest", marks=only_full),
        pytest.param("cuda", FILES, id="cuda", marks=only_full),
    ],
)
def test_all_that_is_said_of_memory_holds_there_too(kind: str, files: list[str], tmp_path: Path) -> None:
    """The same tests in a process whose MLX charges as that device's does."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    ended = subprocess.run(
        command,
        cwd=TESTS,
        env=simulated(kind, tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * PATIENCE,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
