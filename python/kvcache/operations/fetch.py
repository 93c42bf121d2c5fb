"""Fetch: lease the longest usable prefix, copy it, release the lease."""

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
    from kvcache.storage.lending import Loan


def fetch(context: Context, request: Request, *, take: bool) -> Hit:
    """Copies the longest usable prefix; with ``take``, moves it out of the cache instead."""
    contents = context.contents
    common: Common | None = None
    relief: Relief | None = None
    limit = request.limit
    if context.ranks.grouped:
        common, relief = _agree(context, request, take)
        limit = common.limit
        if not common.found.length:
            return _counted(context, _hit(common.found, request, None), request)
    match, loan = contents.lend(request, limit, take=take)
    prompt_cache: list[Any] | None = None
    try:
        if loan is not None:
            if relief is not None and common is not None:
                relieve(context, relief, common.units)
            elif context.limits.measured:
                relieve(context, Relief(context, loan.allocation))
            if take:
                match, loan = contents.withdraw(request, loan)
        if loan is not None:
            prompt_cache = _copy(context, loan, take)
    finally:
        if loan is not None:
            contents.release(loan.lease, request.stamp)
    answer = match if common is None or loan is None else common.found
    return _counted(context, _hit(answer, request, prompt_cache), request)


def peek(context: Context, request: Request) -> Hit:
    """Returns the hit that a fetch would return, without the copy."""
    contents, limit = context.contents, request.limit
    if context.ranks.grouped:
        return _hit(agree_on_match(context.ranks, contents, request, limit).found, request, None)
    return _hit(contents.lookup(request, limit), request, None)


def _agree(context: Context, request: Request, take: bool) -> tuple[Common, Relief]:
    """Agrees on the prefix that all ranks can serve; also returns this rank's relief for copying it."""
    relief = Relief(context, 0)

    def units(match: Match) -> int:
        nonlocal relief
        relief = Relief(context, _estimate(context, request, match, take))
        return relief.units()

    common = agree_on_match(context.ranks, context.contents, request, request.limit, units)
    return common, relief


def _estimate(context: Context, request: Request, match: Match, take: bool) -> int:
    """Estimates the bytes that a copy needs, without looking at the arrays."""
    number = match.layout
    if number is None:
        return 0
    contents = context.contents

    def takeable(index: CacheIndex) -> int:
        if not take:
            return 0
        return index.takeable(request.key, request.namespace, request.spans, match.length)

    layout = contents.layouts.by_number[number]
    # Only a checkpoint's total is known here, so the first image gets all of it.
    images = [contents.layouts.checkpoint_bytes(number), *[0] * len(layout.leaves)]
    remaining = len(request.key) - match.length
    return allocation(layout, match.length, remaining, images, contents.read(takeable))


def _copy(context: Context, loan: Loan, take: bool) -> list[Any]:
    length = loan.match.length
    return allocate(
        context,
        lambda: join(loan.layout, loan.pieces, loan.images, length, loan.trim, loan.remaining, frugal=take),
        loan.allocation,
        f"fetching {length} tokens",
        repeatable=not take,
    )[0]


def _counted(context: Context, hit: Hit, request: Request) -> Hit:
    with context.contents.lock:
        context.contents.opened()
        context.counters.fetched(request.namespace, hit, len(request.key))
    return hit


def _hit(match: Match | Found, request: Request, prompt_cache: list[Any] | None) -> Hit:
    return Hit(
        length=match.length,
        prompt_cache=prompt_cache,
        remaining=request.rest(match.length),
        reason=match.reason,
        matched=match.matched,
        checkpoint_at=match.checkpoint_at,
        tokens=request.tokens,
        namespace=request.namespace,
        media=request.media,
    )
