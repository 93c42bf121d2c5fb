"""Room before a long prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.operations.fetch import question
from kvcache.operations.relief import Relief
from kvcache.results import Eviction, Hit
from kvcache.sizes import parse_size

if TYPE_CHECKING:
    from kvcache._core import Lease
    from kvcache.operations.context import State
    from kvcache.operations.fetch import Question


def reserve(state: State, nbytes: int, protect: Hit | None) -> Eviction:
    """Makes room for ``nbytes`` under all limits, and leaves ``protect`` alone."""
    wanted = stamp = 0
    asked: Question | None = None

    def read() -> None:
        nonlocal wanted, stamp, asked
        wanted, stamp = parse_size(nbytes, "nbytes"), state.stamp()
        if protect is not None and not isinstance(protect, Hit):
            raise TypeError(f"protect must be a Hit, found {type(protect).__name__}")
        if protect is None or not protect.length:
            return
        asked = question(protect.tokens, protect.namespace, protect.media, None)
        if state.ranks.grouped:
            # Bad tokens show here: a lease that had to be given up again would count as a use.
            with state.lock:
                state.opened().lookup(asked.key, asked.namespace, asked.spans, 0)

    state.ranks.together(read)
    lease: Lease | None = None
    if asked is not None and protect is not None:
        with state.lock:
            index = state.opened()
            lease = index.acquire(asked.key, asked.namespace, asked.spans, protect.length).lease
    try:
        return _make_room(state, wanted) + state.relieve(Relief(state, wanted))
    finally:
        state.contents.release(lease, stamp)


def _make_room(state: State, nbytes: int) -> Eviction:
    """Under the ledger's limit; where so much room cannot be made on some rank, nothing goes."""
    if not state.ranks.grouped:
        return state.cycle(lambda index: index.make_room(nbytes, 0))

    def count() -> tuple[int, int]:
        with state.lock:
            index = state.opened()
            over = index.over(nbytes)
            return (0, 0) if over is None else (1, index.count_units(nbytes=over))

    lows, highs = state.ranks.propose(count, 2)
    return state.evict_units(highs[1]) if lows[0] else Eviction()
