"""Fetch: lease, join, release."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kvcache import arrays
from kvcache._core import Tokens
from kvcache.copying import Piece, join
from kvcache.errors import InternalError
from kvcache.layers.layout import ImageLeaf
from kvcache.layers.prompt import leaf_bytes
from kvcache.pressing import Relief
from kvcache.results import Hit, media_keys, read_media
from kvcache.sizes import LARGEST
from kvcache.texts import check_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcache._core import Acquired, Lease, Match
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
    """What a caller asks for, as the index takes it, and when."""

    tokens: Any
    namespace: str
    media: tuple[MediaSpan, ...]
    key: Tokens
    spans: list[tuple[int, int, bytes]]
    stamp: int

    @property
    def limit(self) -> int:
        """Tokens that can be reused at most: the engine needs one to run."""
        return max(len(self.key) - 1, 0)

    def within(self, length: int) -> list[tuple[int, int, bytes]]:
        """The spans of the first ``length`` tokens."""
        return [span for span in self.spans if span[0] + span[1] <= length]


def question(
    tokens: Any, namespace: str, media: Iterable[MediaSpan], clock: Callable[[], int] | None
) -> Question:
    """Checks the arguments that all calls share, and reads the clock where one is given.

    Raises:
        TokenError: A token id that is out of range, or more than one row.
        TypeError: Another type.
        ConfigError: Media spans that overlap, or that end past the tokens; a namespace that is no
            Unicode text.
    """
    check_text("namespace", namespace)
    key = Tokens(tokens)
    spans = read_media(media, len(key))
    return Question(tokens, namespace, spans, key, media_keys(spans), 0 if clock is None else clock())


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
    need: Callable[[Question, Match], int] | None = None,
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
        with state.lock:
            index = state.opened()
            found = index.lookup(asked.key, asked.namespace, asked.spans, min(most, limit))
        first = found if first is None else first
        at = -1 if first.checkpoint_at is None else first.checkpoint_at
        told = (_REASONS.index(first.reason), first.matched, at)
        if found.layout is None:
            return 0, 0, 0, *told
        relief = Relief(state, 0 if need is None else need(asked, found))
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
        common = agreed(state, ask, need=lambda asked, found: _estimate(state, asked, found, take))
        asked, limit = common.asked, common.limit
        if not common.found.length:
            return _counted(state, hit_of(common.found, asked, None), asked)
    else:
        asked = ask()
        limit = asked.limit
    found, lent = _lend(state, asked, limit, take)
    try:
        if lent is not None:
            relief = Relief(state, lent.allocation()) if common is None else common.relief
            state.relieve(relief, None if common is None else common.units)
            if take:
                found, lent = _withdraw(state, asked, lent)
        prompt_cache = None if lent is None else _copy(state, lent, take)
    finally:
        if lent is not None:
            state.contents.release(lent.lease, asked.stamp)
    answer = found if common is None or lent is None else common.found
    return _counted(state, hit_of(answer, asked, prompt_cache), asked)


def peek(state: State, ask: Callable[[], Question]) -> Hit:
    """What a fetch would find."""
    if state.ranks.grouped:
        common = agreed(state, ask)
        return hit_of(common.found, common.asked, None)
    asked = ask()
    found = state.contents.read(
        lambda index: index.lookup(asked.key, asked.namespace, asked.spans, asked.limit)
    )
    return hit_of(found, asked, None)


@dataclass
class Lent:
    """A hit's arrays under a lease.

    Attributes:
        found: What the lookup found.
        lease: Holds the path; None where all of it was taken.
        layout: The layout of the arrays.
        pieces: Segments from the root down.
        images: The checkpoint's window and state layers.
        trim: The images are past the hit's length and are trimmed to it.
        remaining: Tokens that the caller is going to add.
        takeable: Tokens that leave the cache as they are handed out.
    """

    found: Match
    lease: Lease | None
    layout: Layout
    pieces: list[Piece]
    images: list[Image]
    trim: bool
    remaining: int
    takeable: int

    def allocation(self) -> int:
        """Bytes that handing it out adds to what is held, at the peak."""
        images = [arrays.nbytes(image.arrays) for image in self.images]
        return _allocation(self.layout, self.found.length, self.remaining, images, self.takeable)


def _allocation(layout: Layout, length: int, remaining: int, images: list[int], takeable: int) -> int:
    """Bytes that handing caches out adds to what is held, at the peak: their room included.

    Args:
        layout: Their layout.
        length: Tokens that they hold.
        remaining: Tokens that the caller is going to add.
        images: Bytes of each window or state layer.
        takeable: Tokens that leave the cache as they are handed out. Then layer goes by layer, and what
            is let go of makes room for the next.
    """
    held = peak = 0
    left = iter(images)
    for leaf in layout.leaves:
        if isinstance(leaf, ImageLeaf):
            new = old = next(left)
        else:
            nbytes = leaf_bytes(leaf)
            # A room is filled with one zero, broadcast.
            zeros = sum(dtype.size for _, _, dtype in leaf.arrays)
            new, old = leaf.adapter.capacity(length, remaining) * nbytes + zeros, takeable * nbytes
        peak = max(peak, held + new)
        held += new - old if takeable else new
    return peak


def _lend(state: State, asked: Question, limit: int, take: bool) -> tuple[Match, Lent | None]:
    """Leases what a fetch copies."""
    with state.lock:
        index = state.opened()
        place = asked.key, asked.namespace, asked.spans, limit
        takeable = index.takeable(*place) if take else 0
        acquired = index.acquire(*place)
        return acquired.found, _gather(state, asked, acquired, takeable)


def _withdraw(state: State, asked: Question, lent: Lent) -> tuple[Match, Lent | None]:
    """Moves what was lent out of the cache, as far as nobody else continues it.

    Only now: what fails before the copy has lost nothing. Less of it, or none, where another thread
    dropped it meanwhile.
    """
    with state.lock:
        index = state.opened()
        if lent.lease is not None:
            index.release(lent.lease, asked.stamp)
        acquired = index.take(asked.key, asked.namespace, asked.spans, lent.found.length)
        withdrawn = _gather(state, asked, acquired, lent.takeable)
        state.contents.settle()
    # A lookup of that much and no more has no advice; the first answer had.
    same = acquired.found.length == lent.found.length
    return (lent.found if same else acquired.found), withdrawn


def _counted(state: State, hit: Hit, asked: Question) -> Hit:
    with state.lock:
        state.opened()
        state.counters.fetched(asked.namespace, hit, len(asked.key))
    return hit


def _estimate(state: State, asked: Question, found: Match, take: bool) -> int:
    """Bytes that a copy will need, as far as they are known before it is looked at."""
    if found.layout is None:
        return 0
    with state.lock:
        index = state.opened()
        layout = state.layouts[found.layout]
        # Of the checkpoint only the sum is known here.
        images = [state.checkpoint_bytes.get(found.layout, 0), *[0] * len(layout.leaves)]
        takeable = index.takeable(asked.key, asked.namespace, asked.spans, found.length) if take else 0
    return _allocation(layout, found.length, len(asked.key) - found.length, images, takeable)


def _gather(state: State, asked: Question, acquired: Acquired, takeable: int) -> Lent | None:
    """The arrays of a hit; under the lock. What was taken has no other owner any more."""
    found, taken = acquired.found, acquired.taken
    if found.layout is None:
        return None
    owned = frozenset(taken.segments) if taken else frozenset()
    pieces = []
    for piece in acquired.pieces:
        number, left = piece.segment, piece.tokens
        for part in state.segments.segment(number):
            used = min(left, part[0].shape[-2] if part else left)
            if used:
                pieces.append(Piece(list(part), used, owned=number in owned))
            left -= used
    stored = state.segments.checkpoint(acquired.checkpoint.id) if acquired.checkpoint else []
    return Lent(
        found=found,
        lease=acquired.lease,
        layout=state.layouts[found.layout],
        pieces=pieces,
        images=[replace(image, arrays=list(image.arrays)) for image in stored],
        trim=acquired.checkpoint is not None and acquired.checkpoint.position > found.length,
        remaining=len(asked.key) - found.length,
        takeable=takeable,
    )


def _copy(state: State, lent: Lent, take: bool) -> list[Any]:
    length = lent.found.length
    return state.allocating(
        lambda: join(lent.layout, lent.pieces, lent.images, length, lent.trim, lent.remaining, frugal=take),
        lent.allocation(),
        f"fetching {length} tokens",
        again=not take,
    )[0]
