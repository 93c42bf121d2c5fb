"""The tiny model's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integrations.mlx_lm.tiny import write_model

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")
