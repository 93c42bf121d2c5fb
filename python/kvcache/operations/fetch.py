"""Fetch: lease, join, release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcache.operations.allocate import allocate
from kvcache.operations.copy import join
from kvcache.operations.evict import Relief, relieve
from kvcache.ranks.matching import agree_on_match
from kvcache.results import Hit
from kvcache.storage.lending import allocation

if TYPE_CHECKING:
    from kvcache._core import CacheIndex, Match
    from kvcache.operations.context import Context
    from kvcache.ranks.matching import Common, Found
    from kvcache.request import Request
    from kvcache.storage.lending import Lent


def fetch(context: Context, request: Request, *, take: bool) -> Hit:
    """Finds the longest usable prefix and hands out a copy of it, or with ``take`` the thing itself."""
    contents = context.contents
    common: Common | None = None
    relief: Relief | None = None
    limit = request.limit
    if context.ranks.grouped:
        common, relief = _agree(context, request, take)
        limit = common.limit
        if not common.found.length:
            return _counted(context, _hit(common.found, request, None), request)
    found, lent = contents.lend(request, limit, take=take)
    prompt_cache: list[Any] | None = None
    try:
        if lent is not None:
            if relief is not None and common is not None:
                relieve(context, relief, common.units)
            elif context.limits.measured:
                relieve(context, Relief(context, lent.allocation))
            if take:
                found, lent = contents.withdraw(request, lent)
        if lent is not None:
            prompt_cache = _copy(context, lent, take)
    finally:
        if lent is not None:
            contents.release(lent.lease, request.stamp)
    answer = found if common is None or lent is None else common.found
    return _counted(context, _hit(answer, request, prompt_cache), request)


def peek(context: Context, request: Request) -> Hit:
    """What a fetch would find."""
    contents, limit = context.contents, request.limit
    if context.ranks.grouped:
        return _hit(agree_on_match(context.ranks, contents, request, limit).found, request, None)
    return _hit(contents.lookup(request, limit), request, None)


def _agree(context: Context, request: Request, take: bool) -> tuple[Common, Relief]:
    """What all ranks can serve, and what measures the memory for it on this one."""
    relief = Relief(context, 0)

    def units(found: Match) -> int:
        nonlocal relief
        relief = Relief(context, _estimate(context, request, found, take))
        return relief.units()

    common = agree_on_match(context.ranks, context.contents, request, request.limit, units)
    return common, relief


def _estimate(context: Context, request: Request, found: Match, take: bool) -> int:
    """Bytes that a copy will need, as far as they are known before it is looked at."""
    number = found.layout
    if number is None:
        return 0
    contents = context.contents

    def takeable(index: CacheIndex) -> int:
        if not take:
            return 0
        return index.takeable(request.key, request.namespace, request.spans, found.length)

    layout = contents.layouts.by_number[number]
    # Of the checkpoint only the sum is known here.
    images = [contents.layouts.checkpoint_bytes(number), *[0] * len(layout.leaves)]
    remaining = len(request.key) - found.length
    return allocation(layout, found.length, remaining, images, contents.read(takeable))


def _copy(context: Context, lent: Lent, take: bool) -> list[Any]:
    length = lent.found.length
    return allocate(
        context,
        lambda: join(lent.layout, lent.pieces, lent.images, length, lent.trim, lent.remaining, frugal=take),
        lent.allocation,
        f"fetching {length} tokens",
        again=not take,
    )[0]


def _counted(context: Context, hit: Hit, request: Request) -> Hit:
    with context.contents.lock:
        context.contents.opened()
        context.counters.fetched(request.namespace, hit, len(request.key))
    return hit


def _hit(found: Match | Found, request: Request, prompt_cache: list[Any] | None) -> Hit:
    return Hit(
        length=found.length,
        prompt_cache=prompt_cache,
        remaining=request.rest(found.length),
        reason=found.reason,
        matched=found.matched,
        checkpoint_at=found.checkpoint_at,
        tokens=request.tokens,
        namespace=request.namespace,
        media=request.media,
    )
