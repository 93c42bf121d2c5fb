"""A trace through the real index, bookkeeping only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvcache._core import PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache.replay.traces import Trace

_MOST_BYTES: Final = 2**62


@dataclass(frozen=True)
class Outcome:
    """What one budget came to.

    Attributes:
        hit_tokens: Tokens found, the whole of a prompt that was stored before included.
        prefill_tokens_saved: The same less one token of a prompt found whole: an engine has to run one.
        evictions: Segments evicted.
        evicted_tokens: Their tokens.
        prompts_cut: Prompts of which only the beginning fitted.
    """

    hit_tokens: int
    prefill_tokens_saved: int
    evictions: int
    evicted_tokens: int
    prompts_cut: int


def replay(
    trace: Trace,
    *,
    max_bytes: int,
    bytes_per_token: int,
    segment_tokens: int,
    tick: Callable[[], None] = lambda: None,
) -> Outcome:
    """Runs all requests through an empty index.

    Args:
        trace: The requests.
        max_bytes: Budget.
        bytes_per_token: What a token takes of it.
        segment_tokens: The grain of eviction.
        tick: Called after each request.
    """
    index = PrefixIndex(max_bytes=min(max_bytes, _MOST_BYTES), segment_tokens=segment_tokens)
    hits = saved = evictions = evicted_tokens = cut = 0
    for tokens in trace.prompts():
        found = index.match_prefix(tokens).length
        inserted = index.insert(tokens, bytes_per_token=bytes_per_token)
        hits += found
        saved += min(found, max(len(tokens) - 1, 0))
        evictions += len(inserted.evicted.ids)
        evicted_tokens += inserted.evicted.tokens
        cut += inserted.length < len(tokens)
        tick()
    return Outcome(hits, saved, evictions, evicted_tokens, cut)
