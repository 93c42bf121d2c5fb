"""Fetch: lease, join, release."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kvcache import arrays
from kvcache._core import Tokens
from kvcache.copying import Piece, join
from kvcache.errors import InternalError
from kvcache.layers.prompt import token_bytes
from kvcache.pressing import Relief
from kvcache.results import Hit, media_keys, read_media
from kvcache.sizes import LARGEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcache._core import Acquired, Match
    from kvcache.layers.base import Image
    from kvcache.layers.layout import Layout
    from kvcache.results import MediaSpan, Reason
    from kvcache.state import State

# In this order ranks agree on a miss: the reason furthest down stands for all.
_REASONS: Final[tuple[Reason, ...]] = ("hit", "no_entry", "no_checkpoint", "media", "too_short")


def rest(tokens: Any, length: int) -> Any:
    """``tokens[length:]``; of an array with one row, the rest of that row."""
    return tokens[:, length:] if getattr(tokens, "ndim", 1) == 2 else tokens[length:]


@dataclass(frozen=True)
class Found:
    """What a lookup found on all ranks."""

    length: int
    matched: int
    reason: Reason
    checkpoint_at: int | None


def hit_of(found: Match | Found, asked: Question, prompt_cache: list[Any] | None) -> Hit:
    """The result of a lookup."""
    return Hit(
        length=found.length,
        prompt_cache=prompt_cache,
        remaining=rest(asked.tokens, found.length),
        reason=found.reason,
        matched=found.matched,
        checkpoint_at=found.checkpoint_at,
        tokens=asked.tokens,
        namespace=asked.namespace,
        media=asked.media,
    )


@dataclass
class Question:
    """What a caller asks for, as the index takes it."""

    tokens: Any
    namespace: str
    media: tuple[MediaSpan, ...]
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


def question(tokens: Any, namespace: str, media: Iterable[MediaSpan]) -> Question:
    """Checks the arguments that all calls share.

    Raises:
        TokenError: A token id that is out of range, or more than one row.
        TypeError: Another type.
        ConfigError: Media spans that overlap, or that end past the tokens.
    """
    check_namespace(namespace)
    key = Tokens(tokens)
    spans = read_media(media, len(key))
    return Question(tokens, namespace, spans, key, media_keys(spans))


@dataclass(frozen=True)
class Agreed:
    """What all ranks can serve.

    Attributes:
        asked: The question.
        found: The answer, the same on all ranks.
        limit: A lookup of so many tokens at most finds it.
        relief: Measures the memory for the copy.
        units: To be evicted before the copy.
    """

    asked: Question
    found: Found
    limit: int
    relief: Relief
    units: int


def agreed(
    state: State,
    ask: Callable[[], Question],
    *,
    whole: bool = False,
    need: Callable[[Match], int] | None = None,
) -> Agreed:
    """Agrees on what all ranks can serve.

    Each rank proposes its usable length; where they differ, all propose again at or below the
    smallest. One collective, more only while the agreed values differ.

    Args:
        state: The cache's inside.
        ask: Reads and checks the caller's arguments.
        whole: The whole prompt may be used, as for a pin.
        need: Bytes that a copy of the match would allocate; None: there will be no copy.
    """
    asked: Question | None = None
    first: Match | None = None
    most, limit = 0, LARGEST
    relief = Relief(state, 0)

    def propose() -> tuple[int, ...]:
        nonlocal asked, first, most, relief
        if asked is None:
            asked = ask()
            most = len(asked.key) if whole else asked.limit
        with state.guard() as index:
            found = index.lookup(asked.key, asked.namespace, asked.spans, min(most, limit))
        first = found if first is None else first
        at = -1 if first.checkpoint_at is None else first.checkpoint_at
        told = (_REASONS.index(first.reason), first.matched, at)
        if found.layout is None:
            return 0, 0, 0, *told
        relief = Relief(state, 0 if need is None else need(found))
        return found.length, found.layout, 0 if need is None else relief.units(), *told

    while True:
        lows, highs = state.ranks.propose(propose, 6)
        if lows[:2] == highs[:2]:
            break
        # Other layouts at one length cannot be joined into one answer: nothing is reused.
        limit = lows[0] if lows[0] < highs[0] else 0
    if asked is None:
        raise InternalError("a proposal ended without its question")
    # Where no rank missed, the miss is that their answers do not go together.
    reason = _REASONS[highs[3]] if lows[0] or highs[3] else "no_entry"
    at = lows[5] if lows[5] > lows[0] else None
    found = Found(lows[0], lows[4], reason, at)
    return Agreed(asked, found, min(most, limit), relief, highs[2])


def fetch(state: State, ask: Callable[[], Question], take: bool) -> Hit:
    """Finds the longest usable prefix and hands out a copy of it, or with ``take`` the thing itself."""
    common: Agreed | None = None
    if state.ranks.grouped:
        common = agreed(state, ask, need=lambda found: 0 if take else _nbytes(state, found))
        asked, limit = common.asked, common.limit
        if not common.found.length:
            return _counted(state, hit_of(common.found, asked, None), asked)
    else:
        asked = ask()
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
        prompt_cache = _copy(state, acquired, layout, pieces, images, remaining, common)
    finally:
        state.release(acquired.lease)
    return _counted(state, hit_of(found if common is None else common.found, asked, prompt_cache), asked)


def peek(state: State, ask: Callable[[], Question]) -> Hit:
    """What a fetch would find."""
    if state.ranks.grouped:
        common = agreed(state, ask)
        return hit_of(common.found, common.asked, None)
    asked = ask()
    with state.guard() as index:
        found = index.lookup(asked.key, asked.namespace, asked.spans, asked.limit)
    return hit_of(found, asked, None)


def _counted(state: State, hit: Hit, asked: Question) -> Hit:
    with state.guard():
        state.counters.fetched(asked.namespace, hit, len(asked.key))
    return hit


def _nbytes(state: State, found: Match) -> int:
    """Bytes that a copy will need, as far as they are known before it is looked at."""
    if found.layout is None:
        return 0
    checkpoint = state.checkpoint_bytes.get(found.layout, 0)
    return found.length * token_bytes(state.layouts[found.layout]) + checkpoint


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
    common: Agreed | None,
) -> list[Any]:
    length = acquired.found.length
    trim = acquired.checkpoint is not None and acquired.checkpoint[1] > length
    frugal = acquired.taken is not None
    nbytes = length * token_bytes(layout) + arrays.nbytes(array for image in images for array in image.arrays)
    if common is None:
        state.relieve(Relief(state, 0 if frugal else nbytes))
    else:
        state.relieve(common.relief, common.units)
    return state.allocating(
        lambda: join(layout, pieces, images, length, trim, remaining, frugal),
        nbytes,
        f"fetching {length} tokens",
        again=not frugal,
    )[0]
