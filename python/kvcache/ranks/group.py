"""Agreement of the ranks of one model.

Every rank holds its own layers' arrays under the same tokens. Ranks that reuse different lengths or
evict different entries hang in the next collective or answer wrongly, so what each would do is
agreed before anyone acts. The number and order of collectives depend only on the sequence of calls
and on agreed values, never on what a rank holds, measures or fails at.

A cache without a group agrees with itself: no collective, no cost.
"""

from __future__ import annotations

import os
import sys
import zlib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import mlx.core as mx

from kvcache.errors import InternalError, RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
CHECK: Final = "KVCACHE_CHECK_RANKS"


class Ranks:
    """The ranks of a group, or a single process.

    Attributes:
        grouped: Whether there is anyone to agree with.
        rank: This process's number.
        collectives: Collectives so far.
        checked: Whether every call compares the ranks before it acts: ``KVCACHE_CHECK_RANKS=1``.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.grouped = group is not None and group.size() > 1
        self.rank = int(group.rank()) if group is not None else 0
        self.collectives = 0
        self.checked = self.grouped and os.environ.get(CHECK, "") not in ("", "0")

    def agree(self, *values: int) -> tuple[list[int], list[int]]:
        """The smallest and the largest of each value over all ranks. One collective.

        Values have 32 bits.
        """
        if not self.grouped:
            return list(values), list(values)
        columns = list(zip(*self._all(values), strict=True))
        return [min(column) for column in columns], [max(column) for column in columns]

    def _all(self, values: Sequence[int]) -> list[list[int]]:
        """The values of every rank, by rank. One collective.

        A gathering, and not an ``all_min`` of the values and their negatives: on a ring that sends
        each message round twice, and does not say whose value it was.
        """
        self.collectives += 1
        width = len(values)
        mine = mx.array(list(values), dtype=mx.int32)
        told: list[int] = mx.distributed.all_gather(mine, group=self._group).tolist()  # type: ignore[assignment]
        return [told[at : at + width] for at in range(0, len(told), width)]

    def propose(self, action: Callable[[], Sequence[int]], width: int) -> tuple[list[int], list[int]]:
        """Computes ``width`` values on each rank and agrees on them. One collective.

        Raises:
            RankError: Another rank failed. Where this one failed, its own exception.
        """
        if not self.grouped:
            values = list(action())
            return values, values
        failure: BaseException | None = None
        values = [0] * width
        try:
            values = list(action())
        except Exception as error:  # noqa: BLE001 - raised once all ranks know
            failure = error
        told = self._all([failure is None, *values])
        try:
            _raise(failure, [rank for rank, row in enumerate(told) if not row[0]])
        finally:
            failure = None
        columns = list(zip(*told, strict=True))[1:]
        return [min(column) for column in columns], [max(column) for column in columns]

    def together(self, action: Callable[[], T]) -> T:
        """Runs ``action`` on each rank; it counts only if it succeeded on all. One collective.

        Raises:
            RankError: Another rank failed. Where this one failed, its own exception.
        """
        result: list[T] = []

        def act() -> tuple[()]:
            result.append(action())
            return ()

        self.propose(act, 0)
        return result[0]

    def most(self, count: Callable[[], int]) -> int:
        """The largest count of units over all ranks. One collective."""
        return self.propose(lambda: [count()], 1)[1][0]

    def settle(self) -> None:
        """Before a call's first collective: what the model has under way on a stream of its own ends.

        A generator that was left in mid-answer leaves its next step running, collectives included, on
        a stream that mlx-lm keeps for it. Two streams' collectives would take each other's messages.
        """
        generation = sys.modules.get("mlx_lm.generate")
        if generation is not None:
            mx.synchronize(generation.generation_stream)

    def check(self, call: str, lines: list[str], *, closed: bool) -> None:
        """Compares the call that the ranks are about to make, and their indexes.

        One collective where all is equal. A closed cache is not compared: the call itself fails.

        Args:
            call: The call's name.
            lines: The index's outline.
            closed: This rank's cache is closed.

        Raises:
            InternalError: Names the first difference, as each rank has it; on all ranks.
        """
        lows, highs = self.agree(_code(call), closed, len(lines), _code("\n".join(lines)))
        if lows[0] != highs[0]:
            raise InternalError(f"the ranks make different calls: {self._each(call)}")
        if highs[1] or lows == highs:
            return
        shared = lows[2]
        low, high = self.agree(*map(_code, lines[:shared])) if shared else ([], [])
        at = next((at for at in range(shared) if low[at] != high[at]), shared)
        mine = lines[at] if at < len(lines) else "nothing more"
        raise InternalError(f"the ranks' indexes differ before {call}, in line {at}: {self._each(mine)}")

    def _each(self, text: str) -> str:
        """What each rank says. Two collectives."""
        said = text.encode()
        longest = self.agree(len(said))[1][0]
        texts = [bytes(row).decode().rstrip() for row in self._all(said.ljust(longest))]
        return "; ".join(f"rank {rank} has {text!r}" for rank, text in enumerate(texts))


def _raise(failure: BaseException | None, failed: list[int]) -> None:
    # A frame that keeps the exception which keeps the frame is a cycle around the caller's arrays.
    try:
        if failure is not None:
            raise failure
        if failed:
            raise RankError(f"rank {failed[0]} of the group could not do this; see its own error")
    finally:
        del failure


def _code(text: str) -> int:
    """A number below 2³¹ that is equal in every process."""
    return zlib.crc32(text.encode()) >> 1
