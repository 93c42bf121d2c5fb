"""Pins: stored prefixes that eviction must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self

from kvcache.ranks.matching import agree_on_match

if TYPE_CHECKING:
    from types import TracebackType

    from kvcache._core import Lease
    from kvcache.operations.context import Context
    from kvcache.request import Request


class Pin:
    """Protects a stored prefix from eviction until it is released or its namespace is dropped.

    Attributes:
        tokens: Tokens pinned; 0 if nothing matched.
    """

    def __init__(self, context: Context, lease: Lease | None, tokens: int) -> None:
        self.tokens = tokens
        self._context = context
        # A lease that is garbage-collected with its pin ends on its own.
        self._lease = lease

    def release(self) -> None:
        """Makes the prefix evictable again, as the most recently used. A second call does nothing."""
        with self._context.call("release"):
            stamp = self._context.stamp()
            lease, self._lease = self._lease, None
            # If this thread is in the middle of another call, dropping the reference ends the lease.
            if not self._context.contents.lock.owned:
                self._context.contents.release(lease, stamp)

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
        raise TypeError(
            "a Pin belongs to the cache that made it and cannot be copied or pickled; call pin() again"
        )

    def __repr__(self) -> str:
        return f"Pin(tokens={self.tokens})"


def pin(context: Context, request: Request) -> Pin:
    """Leases the longest stored prefix."""
    limit = len(request.key)
    if context.ranks.grouped:
        common = agree_on_match(context.ranks, context.contents, request, limit)
        if not common.found.length:
            return Pin(context, None, 0)
        limit = common.limit
    acquired = context.contents.lease(request, limit)
    return Pin(context, acquired.lease, acquired.found.length)
