"""The offline optimum: what no cache of a given size could beat, had it known all requests in advance.

How: at each request count the tokens held, take the request's tokens in, and while more are held than fit,
evict the token whose next use is farthest away; among equals the deepest. A token without a next use is
not kept at all. Tokens of one tree node share their uses, so whole runs are moved at a time.

Why it is exact: a hit on a token means having kept it from one use to the next. That is an interval on the
line of requests, each is worth one token of hits, and no more than the budget may overlap anywhere. To choose
the most such intervals, dropping whichever ends last wherever too many overlap is optimal (U. Faigle and
W. M. Nawijn, "Note on scheduling intervals on-line", 1995; for pages that must be loaded it is the MIN of
L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966). Only contiguous
prefixes count as hits, and that costs nothing: every use of a token uses all above it, so a token above never
has the later next use, and with the deepest first among equals what is held is closed towards the root.

It is a bound on every policy, at any segment length, that sees requests one at a time and stores no answers:
it may refuse to store, cuts at any token and needs no room to work in.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache.replay.tree import PrefixTree

_NEVER: Final = -1


class OfflineOptimum:
    """The optimum of one trace at any budget. Holds one entry for each node of each request's path.

    Args:
        tree: The trace's prefix tree.
        requests: How many requests it was made of.
        unit_tokens: Tokens of each of its units.
    """

    def __init__(self, tree: PrefixTree, requests: int, unit_tokens: int = 1) -> None:
        self._tokens = [length * unit_tokens for length in tree.lengths]
        self._depths = tree.starts
        # (node, request that uses it next), deepest first
        self._uses: list[list[tuple[int, int]]] = [[] for _ in range(requests)]
        following = [_NEVER] * len(tree.lengths)
        for request in reversed(range(requests)):
            path = tree.path(request)
            self._uses[request] = [(node, following[node]) for node in path]
            for node in path:
                following[node] = request

    def hit_tokens(self, capacity: int, tick: Callable[[], None] = lambda: None) -> int:
        """The most tokens that can be found at a budget of `capacity` tokens.

        Cost: O(log u) for each of the u uses of a node.

        Args:
            capacity: Tokens that may be held between two requests.
            tick: Called after each request.
        """
        tokens, depths = self._tokens, self._depths
        held = [0] * len(tokens)
        next_use = [_NEVER] * len(tokens)
        # Farthest next use first, then the deepest. An entry is out of date once its node was used.
        candidates: list[tuple[int, int, int]] = []
        total = hits = 0
        for uses in self._uses:
            for node, following in uses:
                hits += held[node]
                total -= held[node]
                held[node] = 0 if following == _NEVER else tokens[node]
                total += held[node]
                next_use[node] = following
                if following != _NEVER:
                    heapq.heappush(candidates, (-following, -depths[node], node))
            while total > capacity:
                farthest, _, node = candidates[0]
                if next_use[node] == -farthest and held[node]:
                    cut = min(held[node], total - capacity)
                    held[node] -= cut
                    total -= cut
                else:
                    heapq.heappop(candidates)
            tick()
        return hits
