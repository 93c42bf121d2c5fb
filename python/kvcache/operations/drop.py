"""Drop, clear and close: remove entries whether they are pinned or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.arguments import text
from kvcache.errors import BusyError
from kvcache.operations.evict import cycle, finish

if TYPE_CHECKING:
    from kvcache.eviction import Eviction
    from kvcache.operations.context import Context


def drop(context: Context, namespace: str) -> Eviction:
    """Drops everything in a namespace, and its counters."""
    context.ranks.together(lambda: _require_open(context, namespace))
    evicted = cycle(context, lambda index: index.drop(namespace))
    with context.contents.lock:
        context.contents.opened()
        context.counters.forget(namespace)
    return evicted


def clear(context: Context) -> Eviction:
    """Drops everything and frees MLX's pool."""
    context.ranks.together(lambda: _require_open(context))
    return finish(context, context.contents.clear())


def close(context: Context) -> None:
    """Drops everything for good. Calls in progress on other threads end with ClosedError.

    In the middle of another call of this thread, the close is deferred until that call ends.
    """
    try:
        removed = context.contents.close()
    except BusyError:
        context.defer(lambda: close(context))
        return
    if removed is not None:
        finish(context, removed)


def _require_open(context: Context, namespace: str = "") -> None:
    """Raises on this rank what would fail later, before any rank acts."""
    text("namespace", namespace)
    with context.contents.lock:
        context.contents.opened()
