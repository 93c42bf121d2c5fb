"""Recorded requests, as unit ids: a unit is a block of a block trace, or a single token.

Two formats, told apart by the first line. A block trace opens with a header that has `block_tokens`; its
other lines have `b`, runs `[first_id, count]` of block ids, where an id names a block and everything before
it. A token trace has one prompt a line, a list of token ids or an object with such a list under `tokens`.
Empty lines are skipped, and so are the other members of an object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvcache.errors import KVCacheError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_LARGEST_ID: Final = 2**31 - 1
_LARGEST_BLOCK: Final = 2**20


class TraceError(KVCacheError, ValueError):
    """A trace cannot be read; names the file, and the line where one is at fault."""


class _BrokenLineError(Exception):
    """What is wrong with a line; the caller adds which."""


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival.

    Attributes:
        name: The header's name, or the file's without its suffix.
        units: The unit ids of each request, int32.
        unit_tokens: Tokens of one unit; 1 in a token trace.
        is_blocks: Whether the file was a block trace.
    """

    name: str
    units: list[NDArray[np.int32]]
    unit_tokens: int
    is_blocks: bool

    @property
    def requested_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(len(units) for units in self.units) * self.unit_tokens

    def prompts(self) -> Iterator[NDArray[np.int32]]:
        """The token ids of each request, made as they are asked for: a block is its id, repeated."""
        for units in self.units:
            yield units if self.unit_tokens == 1 else np.repeat(units, self.unit_tokens)


def read_trace(path: Path) -> Trace:
    """Reads a trace of either format.

    Raises:
        TraceError: The file is missing, unreadable or without a request, or a line is broken.
    """
    try:
        with path.open("rb") as file:
            lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
            return _parse(path, lines)
    except FileNotFoundError as error:
        raise TraceError(f"There is no trace {path}.") from error
    except OSError as error:
        raise TraceError(f"The trace {path} cannot be read: {error.strerror}.") from error


def _parse(path: Path, lines: Iterator[tuple[int, bytes]]) -> Trace:
    name, block_tokens = path.stem, 0
    units: list[NDArray[np.int32]] = []
    for number, line in lines:
        try:
            entry = _decode(line)
            if not units and not block_tokens and isinstance(entry, dict) and "block_tokens" in entry:
                name, block_tokens = _header(entry, name)
            else:
                units.append(_blocks(entry) if block_tokens else _tokens(entry))
        except _BrokenLineError as error:
            raise TraceError(f"{path}, line {number}: {error}.") from error
    if not units:
        raise TraceError(f"The trace {path} has no requests.")
    return Trace(name, units, block_tokens or 1, is_blocks=block_tokens > 0)


def _decode(line: bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError as error:
        raise _BrokenLineError("nested too deeply") from error
    except ValueError as error:
        raise _BrokenLineError(f"this is no JSON ({str(error).partition(':')[0]})") from error


def _header(entry: dict[str, Any], stem: str) -> tuple[str, int]:
    block_tokens, name = entry["block_tokens"], entry.get("name", stem)
    if type(block_tokens) is not int or not 1 <= block_tokens <= _LARGEST_BLOCK:
        raise _BrokenLineError(f"block_tokens must be a whole number from 1 to {_LARGEST_BLOCK}")
    if not isinstance(name, str):
        raise _BrokenLineError("name must be a text")
    return name, block_tokens


def _blocks(entry: Any) -> NDArray[np.int32]:
    runs = entry.get("b") if isinstance(entry, dict) else None
    if not isinstance(runs, list):
        raise _BrokenLineError('a request of a block trace is an object with a list of runs under "b"')
    parts = [np.zeros(0, np.int32)]
    for run in runs:
        if not isinstance(run, list) or [type(number) for number in run] != [int, int]:
            raise _BrokenLineError(f"a run of blocks is [first_id, count], found {json.dumps(run)[:60]}")
        first, count = run
        if first < 0 or count < 0 or first + count > _LARGEST_ID:
            raise _BrokenLineError(f"block ids go from 0 to {_LARGEST_ID}, found the run {run}")
        parts.append(np.arange(first, first + count, dtype=np.int32))
    return np.concatenate(parts)


def _tokens(entry: Any) -> NDArray[np.int32]:
    tokens = entry.get("tokens") if isinstance(entry, dict) else entry
    if not isinstance(tokens, list):
        raise _BrokenLineError('a request is a list of token ids, or an object with one under "tokens"')
    # By type, since to Python true is an integer too.
    if not set(map(type, tokens)) <= {int}:
        at = next(at for at, token in enumerate(tokens) if type(token) is not int)
        raise _BrokenLineError(f"token ids are whole numbers, found {json.dumps(tokens[at])[:40]} at {at}")
    if tokens and not (min(tokens) >= 0 and max(tokens) <= _LARGEST_ID):
        at = next(at for at, token in enumerate(tokens) if not 0 <= token <= _LARGEST_ID)
        raise _BrokenLineError(f"token ids go from 0 to {_LARGEST_ID}, found {tokens[at]} at {at}")
    return np.array(tokens, np.int32)
