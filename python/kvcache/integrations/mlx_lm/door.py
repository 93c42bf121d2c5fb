"""Requests under way, counted."""

from __future__ import annotations

import threading
import time


class Door:
    """Counts requests under way and admits none once it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    def enter(self) -> bool:
        """Whether the request may go on; then it has to leave."""
        with self._changed:
            self._inside += not self._closed
            return not self._closed

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self, timeout: float) -> int:
        """Admits no more and waits up to ``timeout`` seconds for all to leave; returns how many remain."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            while self._inside and (left := deadline - time.monotonic()) > 0:
                # In short waits: a second signal is handled between them on every platform.
                self._changed.wait(min(left, 0.2))
            return self._inside
