"""The machine's memory under exo's thresholds, which environment variables set."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvcache.errors import ConfigError
from kvcache.memory.pressure import SystemMemoryPressure

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryPressure(SystemMemoryPressure):
    """``EXO_MEMORY_THRESHOLD``, else the default of ``SystemMemoryPressure``.

    Raises:
        ConfigError: A threshold that cannot be used.
    """

    def __init__(self) -> None:
        super().__init__(_fraction("EXO_MEMORY_THRESHOLD"))
        prefill = _fraction("EXO_PREFILL_MEMORY_THRESHOLD")
        if prefill is not None and prefill > self.threshold:
            raise ConfigError(
                f"EXO_PREFILL_MEMORY_THRESHOLD must be at most {self.threshold}, the other threshold, "
                f"found {prefill}"
            )
        self._prefill = max(0.0, self.threshold - 0.1) if prefill is None else prefill

    @contextmanager
    def before_prefill(self) -> Iterator[None]:
        """Applies the lower threshold inside the context."""
        usual, self.threshold = self.threshold, self._prefill
        try:
            yield
        finally:
            self.threshold = usual


def _fraction(name: str) -> float | None:
    text = os.environ.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise ConfigError(f"{name} must be a fraction above 0 and up to 1, found {text!r}")
    return value
