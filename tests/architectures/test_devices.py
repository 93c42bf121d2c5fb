"""How a device is met that lacks an operation, or does not repeat itself: with devices that are made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from . import devices
from .devices import FACTOR, Cold, assert_repeated, lacking, runnable, spread
from .runs import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

CASE = BY_NAME["llama.q8"]
SENTENCE = "[quantized_matmul] float32 weights in groups of 32 with 8 bits: not on this device"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(devices, "GPU", True)
    lacking.cache_clear()
    yield
    lacking.cache_clear()


def _refuse(case: Any, *_: Any) -> None:
    if case is CASE:
        raise RuntimeError(SENTENCE)


@pytest.mark.usefixtures("gpu")
def test_a_model_that_a_gpu_cannot_run_is_skipped_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "play", _refuse)
    with pytest.raises(pytest.skip.Exception, match=r"llama\.q8 on .*\[quantized_matmul\] float32 weights"):
        runnable(CASE)
    assert runnable(BY_NAME["llama"])


@pytest.mark.skipif(devices.GPU, reason="about the CPU")
def test_the_cpu_skips_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "play", _refuse)
    assert runnable(CASE)


def _logits(*values: float, tokens: int = 1) -> np.ndarray:
    return np.array([[values] * tokens], np.float32)


def test_a_device_that_repeats_itself_is_held_to_the_bit() -> None:
    one = _logits(1.0, 2.0)
    assert spread([[one], [one.copy()]]) == [0.0]
    assert_repeated([one.copy()], [[one], [one]])
    for other in (_logits(1.0, np.nextafter(np.float32(2), np.float32(3))), _logits(1.0, -0.0)):
        with pytest.raises(AssertionError, match="off by"):
            assert_repeated([other], [[one], [one]])
    cold = Cold({"case/run/0": one})
    cold.same([one.copy()], "case/run", 0)
    with pytest.raises(AssertionError, match="pass 0 of case/run is off"):
        cold.same([_logits(1.0, 2.001)], "case/run", 0)


def test_one_that_does_not_is_held_to_its_own_spread() -> None:
    repeats = [[_logits(1.0)], [_logits(1.5)], [_logits(0.75)]]
    assert spread(repeats) == [0.5]
    assert_repeated([_logits(1.0 + FACTOR * 0.5)], repeats)
    with pytest.raises(AssertionError, match="off by"):
        assert_repeated([_logits(1.1 + FACTOR * 0.5)], repeats)


def test_prefill_that_repeats_is_held_to_the_bit_beside_decodes_that_do_not() -> None:
    cold = Cold(
        {
            "case/run/0": _logits(1.0, tokens=2),
            "case/run/1": _logits(1.0),
            "case/run/1/spread": np.array(0.5),
            "other/run/0": _logits(1.0),
        }
    )
    cold.same([_logits(1.0, tokens=2), _logits(2.0)], "case/run", 0)
    for seen, run in ((_logits(1.1, tokens=2), "case/run"), (_logits(1.1), "other/run")):
        with pytest.raises(AssertionError, match="is off"):
            cold.same([seen], run, 0)


def test_a_shorter_buffer_counts_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = Cold({"case/run/0": _logits(1.0), "case/run and cut/0": _logits(1.25)})
    monkeypatch.setattr(devices, "GPU", True)
    cold.same([_logits(1.25)], "case/run", 0, cut=True)
    with pytest.raises(AssertionError, match="is off"):
        cold.same([_logits(1.125)], "case/run", 0, cut=True)
    monkeypatch.setattr(devices, "GPU", False)
    with pytest.raises(AssertionError, match="is off"):
        cold.same([_logits(1.25)], "case/run", 0, cut=True)
