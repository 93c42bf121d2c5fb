"""The cold side's logits, computed once in a process that never imports kvcache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcache import KVPrefixCache

from .devices import Cold, runnable
from .runs import SEGMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .runs import Case


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Cold:
    output = tmp_path_factory.mktemp("cold") / "cold.npz"
    command = [sys.executable, "-W", "error", "-m", "architectures.cold", str(output)]
    subprocess.run(command, cwd=Path(__file__).parent.parent, check=True)
    with np.load(output) as found:
        return Cold(dict(found))


@pytest.fixture
def prefixes() -> Iterator[KVPrefixCache]:
    with KVPrefixCache(segment_tokens=SEGMENT) as cache:
        yield cache


@pytest.fixture
def model(case: Case) -> Any:
    return runnable(case)
