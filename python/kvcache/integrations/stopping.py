"""How a serving process is asked to stop, and how it ends. Imports nothing heavy: a signal may come early."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

if TYPE_CHECKING:
    from types import FrameType

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """SIGINT and SIGTERM while the context lasts: both ask for the same orderly end.

    Before :meth:`wait` there is nothing to finish, so the process ends with status 0 at once. The first
    signal that comes later makes ``wait`` return. A second one ends the process at once, with status
    128 + its number.

    Attributes:
        number: The first signal that came while there was something to finish.
        waited: Whether :meth:`wait` was entered.

    A handler may run in the middle of any Python code of the main thread, so it takes no lock: it notes
    the number and lets a pipe wake the waiting thread.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.waited = False
        self._woken = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        if threading.current_thread() is threading.main_thread():
            # A signal can be delivered to any thread, whose system calls alone it interrupts. The byte
            # that CPython writes here wakes the main thread in every case.
            self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
        os.close(self._reader)
        os.close(self._writer)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if not self.waited:
            os._exit(0)
        if self.number is not None:
            os._exit(128 + number)
        self.number = number

    def wait(self) -> None:
        """Returns when a signal has come, or :meth:`wake` was called."""
        self.waited = True
        while self.number is None and not self._woken:
            os.read(self._reader, 1)

    def wake(self) -> None:
        """Lets :meth:`wait` return; for other threads."""
        self._woken = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")


def exit_now(status: int) -> NoReturn:
    """Ends the process without the interpreter's finalization, after everything was flushed.

    ``Thread.join`` returns when a thread's Python code has ended, before its C++ thread-local objects are
    destroyed. For a thread that ran MLX those are streams with threads of their own, and if ``exit()``
    destroys MLX's static scheduler at the same time, std::terminate aborts the process (seen in a third
    of all stops). A client that never sends its request holds a thread as well. So whoever has joined
    its threads and closed what it holds ends here: nothing is left that a destructor could save.
    """
    import logging

    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status)
