"""A short run of the fuzzing harness; ``make fuzz`` makes a long one."""

from __future__ import annotations

from tests.fuzz.runner import run


def test_random_worlds_hold() -> None:
    counted = run(seed=1, operations=1500)
    assert counted.total() == 1500
    assert {"fetch", "take", "store", "chat", "session", "evict"} <= counted.keys()
