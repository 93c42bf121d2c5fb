"""Agreement on the part of a prompt that all ranks of a group can serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvcache.arguments import LARGEST
from kvcache.ranks.bids import NONE, MatchBid

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache._core import Match
    from kvcache.ranks.group import Ranks
    from kvcache.request import Request
    from kvcache.results import Reason
    from kvcache.storage.contents import Contents

# If ranks miss for different reasons, all of them return the last one in this order.
_REASONS: Final[tuple[Reason, ...]] = ("hit", "no_entry", "no_checkpoint", "media", "too_short")


@dataclass(frozen=True)
class Found:
    """The lookup result that all ranks share; fields as in the index's ``Match``."""

    length: int
    matched: int
    reason: Reason
    checkpoint_at: int | None


@dataclass(frozen=True)
class Common:
    """The agreed match.

    Attributes:
        found: The result, the same on all ranks.
        limit: The limit with which a lookup returns it on this rank.
        units: Units to evict before the copy.
    """

    found: Found
    limit: int
    units: int


def agree_on_match(
    ranks: Ranks,
    contents: Contents,
    request: Request,
    limit: int,
    units: Callable[[Match], int] | None = None,
) -> Common:
    """Agrees on the longest prefix that all ranks can serve.

    Each rank proposes its usable length. If the lengths differ, all propose again at or below the smallest.
    One collective; more only while the proposals differ.

    Args:
        ranks: The group.
        contents: This rank's contents.
        request: The prompt.
        limit: Most tokens to use, on this rank.
        units: Counts the units to evict before a match is copied; None if there will be no copy.
    """
    first: Match | None = None
    agreed_limit = LARGEST

    def propose() -> MatchBid:
        nonlocal first
        request.require()
        match = contents.lookup(request, min(limit, agreed_limit))
        first = match if first is None else first
        at = NONE if first.checkpoint_at is None else first.checkpoint_at
        reason = _REASONS.index(first.reason)
        if match.layout is None:
            return MatchBid(0, 0, 0, reason, first.matched, at)
        evictions = 0 if units is None else units(match)
        return MatchBid(match.length, match.layout, evictions, reason, first.matched, at)

    while True:
        lows, highs = ranks.propose(MatchBid, propose)
        if lows.length == highs.length and lows.layout == highs.layout:
            break
        # Ranks with different layouts at the same length cannot serve one request: nothing is reused.
        agreed_limit = lows.length if lows.length < highs.length else 0
    # If no rank missed alone, the ranks have no prefix in common.
    reason = _REASONS[highs.reason] if lows.length or highs.reason else "no_entry"
    at = lows.checkpoint_at if lows.checkpoint_at > lows.length else None
    return Common(Found(lows.length, lows.matched, reason, at), min(limit, agreed_limit), highs.units)
