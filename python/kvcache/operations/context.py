"""What all operations of one cache share, and where a public call begins and ends.

Array work, collections, the caller's clock and the pressure source run outside the lock.
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
    """The inside of a KVPrefixCache: parts, no logic but for the extent of a call.

    Attributes:
        contents: Index and arrays, with the lock.
        limits: On MLX's memory, and the pressure source.
        reclaim: Gives back what was dropped.
        counters: Of what calls returned; under the lock.
        clock: The caller's time in seconds.
        max_checkpoints: Along one unbranched path.
        ranks: The group, or a single process.
        pressure_answers: Whether the pressure source was last seen to answer to an eviction.
    """

    contents: Contents
    limits: MemoryLimits
    reclaim: Reclaim
    counters: Counters
    clock: Callable[[], float]
    max_checkpoints: int
    ranks: Ranks
    pressure_answers: bool = False
    # What a signal handler or a finalizer asked for in mid-call, with the thread that it came from.
    _deferred: deque[tuple[int, Callable[[], object]]] = field(default_factory=deque, repr=False)

    def stamp(self) -> int:
        """The caller's time in microseconds. Read once a call, before it has changed anything.

        Raises:
            TypeError: The clock returns no number.
            ConfigError: It returns NaN, infinity, or more than 2⁶² microseconds.
        """
        seconds = self.clock()
        real = seconds if type(seconds) is float else number("clock must return seconds as a number", seconds)
        microseconds = real * 1e6
        if not math.isfinite(microseconds) or microseconds > LARGEST:
            raise ConfigError(f"clock must return a finite number of seconds, found {shown(seconds)}")
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
            options: Of a store.
        """
        clock = self.stamp if use else None
        return Request.read(tokens, namespace, media, clock, options=options, defer=self.ranks.grouped)

    def call(self, name: str) -> Call:
        """The extent of a public call."""
        return Call(self, name)

    def enter(self, call: str) -> None:
        """Where a public call begins; in debug mode the ranks are compared before they act."""
        if not self.ranks.grouped:
            return
        self.ranks.settle()
        if self.ranks.checked:
            lines = self.contents.index.outline()
            self.ranks.check(call, lines, closed=self.contents.closed)

    def defer(self, action: Callable[[], object]) -> None:
        """Has ``action`` run when the call ends that this thread is in the middle of."""
        self._deferred.append((threading.get_ident(), action))

    def leave(self) -> None:
        """Where a public call ends: what was deferred on this thread is done, unless still in mid-call."""
        if not self._deferred or self.contents.lock.owned:
            return
        mine: list[Callable[[], object]] = []
        others: list[tuple[int, Callable[[], object]]] = []
        # One bytecode each: other threads, and calls of the actions themselves, come here too.
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
            except Exception:  # noqa: BLE001 - its caller is gone, and this one asked for something else
                logger.exception("what a signal handler or a finalizer had asked for failed")


class Call:
    """The extent of a public call, for a ``with`` block."""

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
