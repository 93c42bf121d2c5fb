"""Pins: prefixes that eviction leaves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self

from kvcache.operations.fetch import agreed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from kvcache._core import Lease
    from kvcache.operations.context import State
    from kvcache.operations.fetch import Question


class Pin:
    """Holds a stored prefix until it is released, or its namespace dropped.

    Attributes:
        tokens: Tokens pinned; 0 where nothing matched.
    """

    def __init__(self, state: State, lease: Lease | None, tokens: int) -> None:
        self.tokens = tokens
        self._state = state
        # A lease that is collected with its pin ends by itself.
        self._lease = lease

    def release(self) -> None:
        """Lets go: the prefix is plain LRU again, most recently used. A second call does nothing."""
        with self._state.call("release"):
            stamp = self._state.stamp()
            lease, self._lease = self._lease, None
            # In the middle of another call of this thread, letting go of it is enough.
            if not self._state.lock.owned:
                self._state.contents.release(lease, stamp)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Pin holds what is in one cache and cannot be copied or pickled; pin again instead")

    def __repr__(self) -> str:
        return f"Pin(tokens={self.tokens})"


def pin(state: State, ask: Callable[[], Question]) -> Pin:
    """Leases the longest stored prefix."""
    if state.ranks.grouped:
        common = agreed(state, ask, whole=True)
        if not common.found.length:
            return Pin(state, None, 0)
        asked, limit = common.asked, common.limit
    else:
        asked = ask()
        limit = len(asked.key)
    with state.lock:
        index = state.opened()
        acquired = index.acquire(asked.key, asked.namespace, asked.spans, limit)
    return Pin(state, acquired.lease, acquired.found.length)
