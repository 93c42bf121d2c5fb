"""Running things in other threads without waiting for ever."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


THREADS = 8


PATIENCE = 120


def together(work: Callable[[int], None], threads: int = THREADS) -> None:
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
        worker.join(PATIENCE)
    assert not any(worker.is_alive() for worker in workers), "a thread waits for ever"
    if failures:
        raise failures[0]


def elsewhere(action: Callable[[], Any]) -> None:
    """Runs it in another thread, which must not have to wait for this one."""
    together(lambda _: action(), threads=1)
