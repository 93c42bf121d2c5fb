"""The parts of a cache that its operations share, and the start and end of a public call.

Array work, garbage collection, the caller's clock and the pressure source run outside the lock.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loguru import logger

from kvcache.arguments import LARGEST, number, shown
from kvcache.errors import ConfigError
from kvcache.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from kvcache.media import MediaSpan
    from kvcache.memory.limits import MemoryLimits
    from kvcache.memory.reclaim import Reclaim
    from kvcache.ranks.group import Ranks
    from kvcache.request import StoreOptions
    from kvcache.stats import Counters
    from kvcache.storage.contents import Contents


@dataclass
class Context:
    """The internals of a KVPrefixCache: its parts, and no logic except for the start and end of a call.

    Attributes:
        contents: Index and arrays, with the lock.
        limits: The limits on MLX's memory, and the pressure source.
        reclaim: Returns the memory of dropped arrays.
        counters: Count what calls return; need the lock.
        clock: The caller's time in seconds.
        max_checkpoints: Most checkpoints along one unbranched path.
        ranks: The group, or a single process.
        pressure_responds: Whether the last eviction lowered the pressure source's reading.
    """

    contents: Contents
    limits: MemoryLimits
    reclaim: Reclaim
    counters: Counters
    clock: Callable[[], float]
    max_checkpoints: int
    ranks: Ranks
    pressure_responds: bool = False
    # Actions that a signal handler or a finalizer requested in mid-call, each with its thread.
    _deferred: deque[tuple[int, Callable[[], object]]] = field(default_factory=deque, repr=False)

    def stamp(self) -> int:
        """The caller's time in microseconds. A call reads it once, before it changes anything.

        Raises:
            TypeError: The clock does not return a number.
            ConfigError: It returns NaN, infinity, or more than 2⁶² microseconds.
        """
        seconds = self.clock()
        real = seconds if type(seconds) is float else number("clock must return seconds as a number", seconds)
        microseconds = real * 1e6
        if not math.isfinite(microseconds):
            raise ConfigError(f"clock must return a finite number of seconds, found {shown(seconds)}")
        if microseconds > LARGEST:
            raise ConfigError(
                f"clock must return at most {LARGEST / 1e6:.1e} seconds, found {shown(seconds)}"
            )
        return max(0, int(microseconds))

    def request(
        self,
        tokens: Any,
        namespace: str,
        media: Iterable[MediaSpan],
        *,
        use: bool = True,
        options: StoreOptions | None = None,
    ) -> Request:
        """Reads a call's arguments: see :meth:`Request.read`.

        Args:
            tokens: The prompt.
            namespace: Its namespace.
            media: Its media spans.
            use: Whether the call counts as a use.
            options: For a store.
        """
        clock = self.stamp if use else None
        return Request.read(tokens, namespace, media, clock, options=options, defer=self.ranks.grouped)

    def call(self, name: str) -> Call:
        """A context manager around a public call."""
        return Call(self, name)

    def enter(self, call: str) -> None:
        """Starts a public call; in debug mode compares the ranks before they act."""
        if not self.ranks.grouped:
            return
        self.ranks.settle()
        if self.ranks.checked:
            lines = self.contents.index.outline()
            self.ranks.check(call, lines, closed=self.contents.closed)

    def defer(self, action: Callable[[], object]) -> None:
        """Postpones ``action`` until this thread's current call ends."""
        self._deferred.append((threading.get_ident(), action))

    def leave(self) -> None:
        """Ends a public call: runs the actions deferred on this thread, unless it holds the lock."""
        if not self._deferred or self.contents.lock.owned:
            return
        mine: list[Callable[[], object]] = []
        others: list[tuple[int, Callable[[], object]]] = []
        # `popleft` is atomic; other threads, and calls made by the actions themselves, run this loop too.
        while self._deferred:
            try:
                thread, action = self._deferred.popleft()
            except IndexError:
                break
            if thread == threading.get_ident():
                mine.append(action)
            else:
                others.append((thread, action))
        self._deferred.extend(others)
        for action in mine:
            try:
                action()
            except Exception:  # noqa: BLE001 - its caller has returned, and the current one did not ask for it
                logger.exception("an action deferred by a signal handler or a finalizer failed")


class Call:
    """A public call, as a ``with`` block."""

    __slots__ = ("_context", "_name")

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._name = name

    def __enter__(self) -> None:
        self._context.enter(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.leave()
