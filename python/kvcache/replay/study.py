"""One trace at several budgets."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache.replay.optimum import OfflineOptimum
from kvcache.replay.simulate import Outcome, replay
from kvcache.replay.tree import PrefixTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcache.replay.budgets import Budget
    from kvcache.replay.traces import Trace


@dataclass(frozen=True)
class Row:
    """One budget.

    Attributes:
        budget: As it was written.
        tokens: Tokens that fit.
        nbytes: Bytes; None where the size of a token is unknown.
        outcome: What the replay counted.
        optimal_tokens: The most hit tokens that any policy could have had.
    """

    budget: str
    tokens: int
    nbytes: int | None
    outcome: Outcome
    optimal_tokens: int


@dataclass(frozen=True)
class Study:
    """What a replay of one trace found; rows from the smallest budget to the largest.

    Attributes:
        name: The trace's.
        requests: Their number.
        requested_tokens: Of all prompts together.
        unique_tokens: What an unlimited cache would hold in the end.
        block_tokens: None for a token trace.
        segment_tokens: The grain of eviction.
        bytes_per_token: None where unknown.
        seconds: How long it took.
        rows: One for each budget.
    """

    name: str
    requests: int
    requested_tokens: int
    unique_tokens: int
    block_tokens: int | None
    segment_tokens: int
    bytes_per_token: int | None
    seconds: float
    rows: tuple[Row, ...]

    def rate(self, tokens: int) -> float:
        """Share of the requested tokens, 0..1."""
        return tokens / self.requested_tokens if self.requested_tokens else 0.0

    @property
    def unlimited_rate(self) -> float:
        """Token hit rate of a cache that never evicts."""
        return self.rate(self.requested_tokens - self.unique_tokens)


def study(
    trace: Trace,
    budgets: Sequence[Budget],
    *,
    segment_tokens: int,
    bytes_per_token: int | None = None,
    begin: Callable[[str], None] = lambda _: None,
    tick: Callable[[], None] = lambda: None,
) -> Study:
    """Replays a trace at each budget.

    Args:
        trace: The requests.
        budgets: Those in bytes need `bytes_per_token`.
        segment_tokens: The grain of eviction.
        bytes_per_token: None where unknown.
        begin: Called with the name of each step.
        tick: Called after each request of each run: for each budget the optimum's and the index's.
    """
    started = time.perf_counter()
    begin(f"{trace.name}: prefix tree")
    tree = PrefixTree(trace.units)
    optimum = OfflineOptimum(tree, len(trace.units), trace.unit_tokens)
    size = bytes_per_token or 1
    rows = []
    for budget in budgets:
        tokens = budget.tokens(tree.units, trace.unit_tokens, size)
        nbytes = tokens * size if budget.nbytes is None else budget.nbytes
        begin(f"{trace.name} at {budget.text}")
        optimal = optimum.hit_tokens(tokens, tick)
        outcome = replay(
            trace, max_bytes=nbytes, bytes_per_token=size, segment_tokens=segment_tokens, tick=tick
        )
        known = None if bytes_per_token is None else nbytes
        rows.append(Row(budget.text, tokens, known, outcome, optimal))
    return Study(
        name=trace.name,
        requests=len(trace.units),
        requested_tokens=trace.requested_tokens,
        unique_tokens=tree.units * trace.unit_tokens,
        block_tokens=trace.unit_tokens if trace.is_blocks else None,
        segment_tokens=segment_tokens,
        bytes_per_token=bytes_per_token,
        seconds=time.perf_counter() - started,
        rows=tuple(sorted(rows, key=lambda row: row.tokens)),
    )
