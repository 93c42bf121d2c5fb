"""What all ranks of a group can serve of a prompt."""

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

# In this order ranks agree on a miss: the reason furthest down wins.
_REASONS: Final[tuple[Reason, ...]] = ("hit", "no_entry", "no_checkpoint", "media", "too_short")


@dataclass(frozen=True)
class Found:
    """What a lookup found on all ranks; the fields are those of the index's ``Match``."""

    length: int
    matched: int
    reason: Reason
    checkpoint_at: int | None


@dataclass(frozen=True)
class Common:
    """What all ranks can serve.

    Attributes:
        found: The answer, the same on all ranks.
        limit: A lookup of this many tokens at most finds it.
        units: To be evicted before the copy.
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
    """Agrees on what all ranks can serve.

    Each rank proposes its usable length; where they differ, all propose again at or below the
    smallest. One collective, more only while the agreed values differ.

    Args:
        ranks: The group.
        contents: What this rank holds.
        request: The prompt.
        limit: Tokens that may be used at most, on this rank.
        units: Units to evict before a copy of what was found; None: there will be no copy.
    """
    first: Match | None = None
    most = LARGEST

    def propose() -> MatchBid:
        nonlocal first
        request.require()
        found = contents.lookup(request, min(limit, most))
        first = found if first is None else first
        at = NONE if first.checkpoint_at is None else first.checkpoint_at
        reason = _REASONS.index(first.reason)
        if found.layout is None:
            return MatchBid(0, 0, 0, reason, first.matched, at)
        wanted = 0 if units is None else units(found)
        return MatchBid(found.length, found.layout, wanted, reason, first.matched, at)

    while True:
        lows, highs = ranks.propose(MatchBid, propose)
        if lows.length == highs.length and lows.layout == highs.layout:
            break
        # Other layouts at one length cannot be joined into one answer: nothing is reused.
        most = lows.length if lows.length < highs.length else 0
    # Where no rank missed, the miss is that their answers do not go together.
    reason = _REASONS[highs.reason] if lows.length or highs.reason else "no_entry"
    at = lows.checkpoint_at if lows.checkpoint_at > lows.length else None
    return Common(Found(lows.length, lows.matched, reason, at), min(limit, most), highs.units)
