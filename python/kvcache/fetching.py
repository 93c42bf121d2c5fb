"""Fetch: lease, join, release."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcache import arrays
from kvcache._core import Tokens
from kvcache.copying import Piece, join
from kvcache.errors import ConfigError, InternalError
from kvcache.layers.prompt import token_bytes
from kvcache.pressing import Relief
from kvcache.results import Hit, media_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcache._core import Acquired, Match
    from kvcache.layers.base import Image
    from kvcache.layers.layout import Layout
    from kvcache.results import MediaSpan, Reason
    from kvcache.state import State


def rest(tokens: Any, length: int) -> Any:
    """``tokens[length:]``; of an array with one row, the rest of that row."""
    return tokens[:, length:] if getattr(tokens, "ndim", 1) == 2 else tokens[length:]


def hit_of(
    found: Match, asked: Question, prompt_cache: list[Any] | None, reason: Reason | None = None
) -> Hit:
    """The result of a lookup; with a ``reason`` of its own, a miss."""
    length = found.length if reason is None else 0
    return Hit(
        length=length,
        prompt_cache=prompt_cache,
        remaining=rest(asked.tokens, length),
        reason=reason or found.reason,
        matched=found.matched,
        checkpoint_at=found.checkpoint_at,
        tokens=asked.tokens,
        namespace=asked.namespace,
        media=tuple(asked.media),
    )


@dataclass
class Question:
    """What a caller asks for, as the index takes it."""

    tokens: Any
    namespace: str
    media: Sequence[MediaSpan]
    key: Tokens
    spans: list[tuple[int, int, bytes]]

    @property
    def limit(self) -> int:
        """Tokens that can be reused at most: the engine needs one to run."""
        return max(len(self.key) - 1, 0)

    def within(self, length: int) -> list[tuple[int, int, bytes]]:
        """The spans of the first ``length`` tokens."""
        return [span for span in self.spans if span[0] + span[1] <= length]


def check_namespace(namespace: str) -> None:
    """Raises ``TypeError`` for anything but a text."""
    if not isinstance(namespace, str):
        raise TypeError(f"namespace must be a str, found {type(namespace).__name__}")


def question(tokens: Any, namespace: str, media: Sequence[MediaSpan]) -> Question:
    """Checks the arguments that all calls share.

    Raises:
        TokenError: A token id that is out of range, or more than one row.
        TypeError: Another type.
        ConfigError: A media span that ends behind the tokens.
    """
    check_namespace(namespace)
    asked = Question(tokens, namespace, media, Tokens(tokens), media_keys(media))
    if asked.spans and (end := asked.spans[-1][0] + asked.spans[-1][1]) > len(asked.key):
        raise ConfigError(f"a media span ends at {end}, behind the {len(asked.key)} tokens")
    return asked


def agreed(
    state: State, ask: Callable[[], Question], *, whole: bool, need: bool
) -> tuple[Question, Match, int, int]:
    """What all ranks can serve: the question, this one's first find, the agreed length, units to evict.

    Each rank proposes its usable length; where they differ, all propose again at or below the
    smallest. One collective, more only while the agreed values differ.

    Args:
        state: The cache's inside.
        ask: Reads and checks the caller's arguments.
        whole: The whole prompt may be used, as for a pin.
        need: Also agree how many units to evict before the copy.
    """
    asked: Question | None = None
    first: Match | None = None
    limit: int | None = None

    def propose() -> tuple[int, int, int]:
        nonlocal asked, first
        asked = ask() if asked is None else asked
        most = len(asked.key) if whole else asked.limit
        with state.guard() as index:
            found = index.lookup(
                asked.key, asked.namespace, asked.spans, most if limit is None else min(most, limit)
            )
            layouts = index.layouts(asked.namespace)
        first = found if first is None else first
        if found.layout is None:
            return 0, 0, 0
        units = 0
        if need:
            nbytes = found.length * token_bytes(state.layouts[found.layout])
            nbytes += state.checkpoint_bytes.get(found.layout, 0)
            units = Relief(state, nbytes).units()
        return found.length, layouts.index(found.layout), units

    while True:
        lows, highs = state.ranks.propose(propose, 3)
        if asked is None or first is None:
            raise InternalError("a proposal ended without a result")
        if lows[:2] == highs[:2]:
            return asked, first, lows[0], highs[2]
        # Other layouts at one length cannot be joined into one answer: nothing is reused.
        limit = lows[0] if lows[0] < highs[0] else 0


def fetch(state: State, ask: Callable[[], Question], take: bool) -> Hit:
    """Finds the longest usable prefix and hands out a copy of it, or with ``take`` the thing itself."""
    if state.ranks.grouped:
        asked, first, limit, units = agreed(state, ask, whole=False, need=not take)
        if limit == 0:
            return _miss(state, asked, first)
    else:
        asked, units = ask(), None
        limit = asked.limit
    with state.guard() as index:
        acquired = (index.take if take else index.acquire)(asked.key, asked.namespace, asked.spans, limit)
        found = acquired.found
        if found.layout is None:
            hit = hit_of(found, asked, None)
            state.counters.fetched(asked.namespace, hit, len(asked.key))
            return hit
        layout = state.layouts[found.layout]
        pieces, images = _gather(state, acquired)
    try:
        remaining = len(asked.key) - found.length
        prompt_cache = _copy(state, acquired, layout, pieces, images, remaining, units)
    finally:
        state.release(acquired.lease)
    hit = hit_of(found, asked, prompt_cache)
    with state.guard():
        state.counters.fetched(asked.namespace, hit, len(asked.key))
    return hit


def peek(state: State, ask: Callable[[], Question]) -> Hit:
    """What a fetch would find."""
    if state.ranks.grouped:
        asked, first, limit, _ = agreed(state, ask, whole=False, need=False)
        if limit == 0:
            return hit_of(first, asked, None, "no_entry" if first.length else first.reason)
    else:
        asked = ask()
        limit = asked.limit
    with state.guard() as index:
        found = index.lookup(asked.key, asked.namespace, asked.spans, limit)
    return hit_of(found, asked, None)


def _miss(state: State, asked: Question, found: Match) -> Hit:
    """The ranks agree that nothing is reused, whatever this one found."""
    hit = hit_of(found, asked, None, "no_entry" if found.length else found.reason)
    with state.guard():
        state.counters.fetched(asked.namespace, hit, len(asked.key))
    return hit


def _gather(state: State, acquired: Acquired) -> tuple[list[Piece], list[Image]]:
    """The arrays of a hit. What was taken has no other owner any more."""
    taken = acquired.taken
    owned = frozenset(taken.segments) if taken else frozenset()
    pieces = []
    for number, tokens in acquired.pieces:
        segment = state.segments.segment(number)
        pieces.append(Piece(list(segment), tokens, owned=number in owned))
    stored = state.segments.checkpoint(acquired.checkpoint[0]) if acquired.checkpoint else []
    images = [replace(image, arrays=list(image.arrays)) for image in stored]
    if taken:
        state.segments.remove(taken)
    return pieces, images


def _copy(
    state: State,
    acquired: Acquired,
    layout: Layout,
    pieces: list[Piece],
    images: list[Image],
    remaining: int,
    units: int | None,
) -> list[Any]:
    length = acquired.found.length
    trim = acquired.checkpoint is not None and acquired.checkpoint[1] > length
    frugal = acquired.taken is not None
    nbytes = length * token_bytes(layout) + arrays.nbytes(array for image in images for array in image.arrays)
    state.relieve(0 if frugal else nbytes, units)
    return state.allocating(
        lambda: join(layout, pieces, images, length, trim, remaining, frugal),
        nbytes,
        f"fetching {length} tokens",
        again=not frugal,
    )[0]
