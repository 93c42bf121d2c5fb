"""Agreement among the ranks that run one model.

Each rank stores its own layers' arrays under the same tokens. Ranks that reuse different lengths or evict
different entries would hang in the next collective or compute wrong answers, so they agree on every action
before any of them takes it. The number and order of collectives depend only on the sequence of calls and on
agreed values, never on what a single rank holds, measures or fails at.

Without a group, agreement is immediate: there are no collectives and no cost.
"""

from __future__ import annotations

import os
import sys
import zlib
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

import mlx.core as mx

from kvcache.errors import InternalError, RankError
from kvcache.ranks.bids import CheckBid, Nothing, Units

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
Bid = TypeVar("Bid", bound=tuple[int, ...])
CHECK: Final = "KVCACHE_CHECK_RANKS"


class Agreed(NamedTuple, Generic[Bid]):
    """The smallest and the largest of each value over all ranks."""

    lows: Bid
    highs: Bid

    @property
    def equal(self) -> bool:
        """Whether all ranks made the same bid."""
        return self.lows == self.highs


class Ranks:
    """The ranks of a group, or a single process.

    Attributes:
        grouped: Whether there is more than one rank.
        rank: This process's rank.
        collectives: Number of collectives so far.
        checked: Whether every call first compares the ranks: ``KVCACHE_CHECK_RANKS=1``.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.grouped = group is not None and group.size() > 1
        self.rank = int(group.rank()) if group is not None else 0
        self.collectives = 0
        self.checked = self.grouped and os.environ.get(CHECK, "") not in ("", "0")

    def agree(self, bid: Bid) -> Agreed[Bid]:
        """Agrees on a bid that cannot fail. One collective."""
        if not self.grouped:
            return Agreed(bid, bid)
        rows = self._all(bid)
        return _agreed(type(bid), rows)

    def propose(self, kind: type[Bid], action: Callable[[], Bid]) -> Agreed[Bid]:
        """Has each rank compute a bid, and agrees on it. One collective.

        Raises:
            RankError: Another rank failed. If this rank failed, its own exception is raised instead.
        """
        if not self.grouped:
            bid = action()
            return Agreed(bid, bid)
        width = len(cast("Any", kind)._fields)
        return _agreed(kind, self._attempt(action, width))

    def propose_values(self, action: Callable[[], Sequence[int]], width: int) -> Agreed[tuple[int, ...]]:
        """Like :meth:`propose`, for a bid of ``width`` unnamed values."""
        if not self.grouped:
            values = tuple(action())
            return Agreed(values, values)
        return _agreed(tuple, self._attempt(action, width))

    def together(self, action: Callable[[], T]) -> T:
        """Runs ``action`` on each rank; succeeds only if it succeeds on all. One collective.

        Raises:
            RankError: Another rank failed. If this rank failed, its own exception is raised instead.
        """
        if not self.grouped:
            return action()
        result: list[T] = []

        def act() -> Nothing:
            result.append(action())
            return Nothing()

        self.propose(Nothing, act)
        return result[0]

    def most(self, count: Callable[[], int]) -> int:
        """The largest count of units over all ranks. One collective."""
        return self.propose(Units, lambda: Units(count())).highs.units if self.grouped else count()

    def _attempt(self, action: Callable[[], Sequence[int]], width: int) -> list[list[int]]:
        failure: BaseException | None = None
        values: Sequence[int] = [0] * width
        try:
            values = action()
        except Exception as error:  # noqa: BLE001 - raised again once all ranks know of it
            failure = error
        rows = self._all([failure is None, *values])
        try:
            _raise(failure, [rank for rank, row in enumerate(rows) if not row[0]])
        finally:
            failure = None
        return [row[1:] for row in rows]

    def _all(self, values: Sequence[int]) -> list[list[int]]:
        """The values of every rank, by rank. One collective.

        Uses ``all_gather``, not ``all_min`` of the values and their negatives: on a ring, a reduction
        sends each message around twice, and it would not show which rank had which value.
        """
        self.collectives += 1
        width = len(values)
        mine = mx.array(list(values), dtype=mx.int32)
        gathered = cast("list[int]", mx.distributed.all_gather(mine, group=self._group).tolist())
        return [gathered[at : at + width] for at in range(0, len(gathered), width)]

    def settle(self) -> None:
        """Waits for mlx-lm's generation stream; runs before a call's first collective.

        A generator that is abandoned in mid-answer leaves its next step running on that stream, collectives
        included. Collectives on two streams at once would receive each other's messages.
        """
        generation = sys.modules.get("mlx_lm.generate")
        if generation is not None:
            mx.synchronize(generation.generation_stream)

    def check(self, call: str, lines: list[str], *, closed: bool) -> None:
        """Compares the call that the ranks are about to make, and their indexes.

        One collective if everything is equal. A closed cache is not compared: the call itself fails.

        Args:
            call: The call's name.
            lines: The index's outline.
            closed: Whether this rank's cache is closed.

        Raises:
            InternalError: The ranks differ; raised on all of them, with each rank's version of the first
                difference.
        """
        mine = CheckBid(_code(call), closed, len(lines), _code("\n".join(lines)))
        lows, highs = agreed = self.agree(mine)
        if lows.call != highs.call:
            raise InternalError(f"the ranks make different calls: {self._each(call)}")
        if highs.closed or agreed.equal:
            return
        shared = lows.lines
        none: tuple[int, ...] = ()
        low, high = self.agree(tuple(map(_code, lines[:shared]))) if shared else (none, none)
        at = next((at for at in range(shared) if low[at] != high[at]), shared)
        line = lines[at] if at < len(lines) else "nothing more"
        raise InternalError(f"the ranks' indexes differ before {call}, in line {at}: {self._each(line)}")

    def _each(self, text: str) -> str:
        """Each rank's text, in one sentence. Two collectives."""
        encoded = text.encode()
        longest = max(self.agree((len(encoded),)).highs)
        texts = [bytes(row).decode().rstrip() for row in self._all(encoded.ljust(longest))]
        return "; ".join(f"rank {rank} has {text!r}" for rank, text in enumerate(texts))


def _agreed(kind: type[Bid], rows: list[list[int]]) -> Agreed[Bid]:
    make = cast("Callable[[Sequence[int]], Bid]", getattr(kind, "_make", kind))
    columns = list(zip(*rows, strict=True))
    return Agreed(make([min(column) for column in columns]), make([max(column) for column in columns]))


def _raise(failure: BaseException | None, failed: list[int]) -> None:
    # The frame and the exception would reference each other: a cycle around the caller's arrays.
    try:
        if failure is not None:
            raise failure
        if failed:
            raise RankError(f"rank {failed[0]} of the group failed in this call; see that rank's error")
    finally:
        del failure


def _code(text: str) -> int:
    """A checksum below 2³¹ that is the same in every process."""
    return zlib.crc32(text.encode()) >> 1
