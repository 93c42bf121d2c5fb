"""Fetch: lease, join, release."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcache import arrays
from kvcache.copying import Piece, join
from kvcache.layers.prompt import token_bytes
from kvcache.results import Hit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache._core import Acquired, Match, Tokens
    from kvcache.layers.base import Image
    from kvcache.layers.layout import Layout
    from kvcache.results import MediaSpan
    from kvcache.state import State


def rest(tokens: Any, length: int) -> Any:
    """``tokens[length:]``; of an array with one row, the rest of that row."""
    return tokens[:, length:] if getattr(tokens, "ndim", 1) == 2 else tokens[length:]


def hit_of(
    found: Match, tokens: Any, namespace: str, media: Sequence[MediaSpan], prompt_cache: list[Any] | None
) -> Hit:
    """The result of a lookup."""
    return Hit(
        length=found.length,
        prompt_cache=prompt_cache,
        remaining=rest(tokens, found.length),
        reason=found.reason,
        matched=found.matched,
        checkpoint_at=found.checkpoint_at,
        tokens=tokens,
        namespace=namespace,
        media=tuple(media),
    )


def fetch(
    state: State,
    key: Tokens,
    tokens: Any,
    namespace: str,
    media: Sequence[MediaSpan],
    spans: list[tuple[int, int, bytes]],
    take: bool,
) -> Hit:
    """Finds the longest usable prefix and hands out a copy of it, or with ``take`` the thing itself."""
    limit = max(len(key) - 1, 0)
    with state.guard() as index:
        acquired = (index.take if take else index.acquire)(key, namespace, spans, limit)
        found = acquired.found
        if found.layout is None:
            hit = hit_of(found, tokens, namespace, media, None)
            state.counters.fetched(namespace, hit, len(key))
            return hit
        layout = state.layouts[found.layout]
        pieces, images = _gather(state, acquired)
    try:
        prompt_cache = _copy(state, acquired, layout, pieces, images, len(key) - found.length)
    finally:
        state.release(acquired.lease)
    hit = hit_of(found, tokens, namespace, media, prompt_cache)
    with state.guard():
        state.counters.fetched(namespace, hit, len(key))
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
) -> list[Any]:
    length = acquired.found.length
    trim = acquired.checkpoint is not None and acquired.checkpoint[1] > length
    frugal = acquired.taken is not None
    nbytes = length * token_bytes(layout) + arrays.nbytes(array for image in images for array in image.arrays)
    state.relieve(0 if frugal else nbytes)
    return state.allocating(
        lambda: join(layout, pieces, images, length, trim, remaining, frugal),
        nbytes,
        f"fetching {length} tokens",
        again=not frugal,
    )[0]
