"""Running things in other threads without waiting for ever."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


THREADS = 8


def together(work: Callable[[int], None], threads: int = THREADS, patience: float = PATIENCE) -> None:
    """Runs ``work`` in several threads at once; raises what one of them raised."""
    gate = threading.Barrier(threads)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            gate.wait(PATIENCE)
            work(number)
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            failures.append(error)

    workers = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(patience)
    assert not any(worker.is_alive() for worker in workers), "a thread waits for ever"
    if failures:
        raise failures[0]


@contextmanager
def often() -> Iterator[None]:
    """Has the interpreter change threads some hundred times as often, so that more orders are seen."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(20e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def elsewhere(action: Callable[[], Any]) -> None:
    """Runs it in another thread, which must not have to wait for this one."""
    together(lambda _: action(), threads=1)
