"""Room before a long prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache._core import Tokens
from kvcache.results import Eviction, media_keys
from kvcache.sizes import parse_size

if TYPE_CHECKING:
    from kvcache.results import Hit
    from kvcache.state import State


def reserve(state: State, nbytes: int, protect: Hit | None) -> Eviction:
    """Makes room for ``nbytes`` under all limits, and leaves ``protect`` alone."""
    lease: int | None = None
    wanted = 0

    def read() -> None:
        nonlocal lease, wanted
        wanted = parse_size(nbytes, "nbytes")
        if protect is None or not protect.length:
            return
        with state.guard() as index:
            key, spans = Tokens(protect.tokens), media_keys(protect.media)
            lease = index.acquire(key, protect.namespace, spans, protect.length).lease

    try:
        state.ranks.together(read)
        return _make_room(state, wanted) + state.relieve(wanted)
    finally:
        state.release(lease)


def _make_room(state: State, nbytes: int) -> Eviction:
    """Under the ledger's limit; where so much room cannot be made on some rank, nothing goes."""
    if not state.ranks.grouped:
        return state.cycle(lambda index: index.make_room(nbytes, 0))

    def count() -> tuple[int, int]:
        with state.guard() as index:
            over = index.over(nbytes)
            return (0, 0) if over is None else (1, index.count_units(nbytes=over))

    lows, highs = state.ranks.propose(count, 2)
    return state.evict_units(highs[1]) if lows[0] else Eviction()
