"""Eight threads on one PrefixIndex. Needs no MLX, so it runs on every interpreter the wheels are for."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections import Counter
from random import Random

import pytest

from kvcache import PrefixIndex
from tests.support.threads import THREADS, often, together

OPERATIONS = int(os.environ.get("KVCACHE_STRESS_OPERATIONS", "10000"))
# An operation on a busy machine takes longer than one wants to know: this bounds a hang.
PATIENCE = 900 + OPERATIONS / 10
LIMIT = 400


def random_prompt(random: Random) -> list[int]:
    ending = 1000 * random.randrange(1, 5)
    return [*range(random.randrange(1, 40)), *range(ending, ending + random.randrange(1, 9))]


def test_eight_threads_on_one_index() -> None:
    index = PrefixIndex(max_bytes=LIMIT, segment_tokens=4)
    counts: list[Counter[str]] = [Counter() for _ in range(THREADS)]

    def work(number: int) -> None:
        random, counted = Random(number), counts[number]
        for at in range(OPERATIONS):
            tokens, space = random_prompt(random), str(number % 3)
            match random.randrange(8):
                case 0 | 1 | 2:
                    inserted = index.insert(tokens, namespace=space)
                    assert inserted.length <= len(tokens)
                    counted["in"] += inserted.new_tokens
                    counted["out"] += inserted.evicted.tokens
                case 3 | 4:
                    assert index.match_prefix(tokens, namespace=space).length <= len(tokens)
                case 5:
                    found = index.match_prefix(tokens, namespace=space, touch=False)
                    assert found.length <= len(tokens)
                case 6:
                    counted["out"] += index.evict(random.randrange(20)).tokens
                case _:
                    if random.random() < 0.05:
                        counted["out"] += index.clear().tokens
            counted["operations"] += 1
            assert index.stats().nbytes <= LIMIT
            if at % 100 == 0:
                index.validate()

    with often():
        together(work, patience=PATIENCE)
    index.validate()
    counted = sum(counts, Counter())
    assert counted["operations"] == THREADS * OPERATIONS
    assert counted["in"] - counted["out"] == index.stats().ntokens > 0
    assert index.clear().tokens == counted["in"] - counted["out"]
    index.validate()
    stats = index.stats()
    assert (stats.nbytes, stats.ntokens, stats.segments) == (0, 0, 0)


def test_tokens_that_another_thread_changes_while_they_are_read() -> None:
    """A list that grows and shrinks meanwhile may be read at any of its lengths; nothing worse happens."""
    index, tokens, rounds = PrefixIndex(), list(range(64)), max(200, OPERATIONS // 10)

    def work(number: int) -> None:
        for at in range(rounds):
            if number % 2:
                assert index.insert(tokens).length <= 128
            elif at % 2:
                tokens.extend(range(64, 128))
            else:
                del tokens[64:]

    with often():
        together(work, patience=PATIENCE)
    index.validate()


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="an interpreter with a GIL")
def test_the_extension_does_not_bring_the_gil_back() -> None:
    code = "import sys, kvcache; print(sys._is_gil_enabled())"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=900)
    assert result.stdout.strip() == "False"
