"""Layer caches that spell out what was put into them, one class per kind.

Each row of keys and values says, in digits of base 16, which token stands at which position, in
which layer, side and head. A window's rows say the same; a state is a fold over the tokens. Digits
from 0 to 15 are exact in every dtype, and in 4 bits too where a group holds both a 0 and a 15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from tests.support.rows import WIDTH, Layer, decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence


class KV:
    """KVCache, or another class with the same face."""

    spans = True
    cls: type = KVCache

    def __init__(self, heads: int = 2) -> None:
        self.heads = heads
        self.number = 0

    def numbered(self, number: int) -> None:
        self.number = number

    def fresh(self) -> Any:
        return self.cls()

    def nbytes(self, length: int) -> int:
        return 2 * self.heads * length * WIDTH * 4

    def roomy(self, length: int, remaining: int) -> int:
        return self.nbytes(length + -(-remaining // 256) * 256)

    def grow(self, cache: Any, tokens: Sequence[int], start: int) -> None:
        positions = range(start, start + len(tokens))
        sides = [encode(tokens, positions, self.number, side, self.heads) for side in (0, 1)]
        cache.update_and_fetch(*map(mx.array, sides))

    def length(self, cache: Any) -> int:
        return 0 if cache.keys is None else cache.offset

    def rows(self, cache: Any) -> tuple[mx.array, mx.array]:
        return cache.keys[..., : cache.offset, :], cache.values[..., : cache.offset, :]

    def tokens(self, cache: Any) -> list[int]:
        if self.length(cache) == 0:
            return []
        found = [decode(array, self.number, side) for side, array in enumerate(self.rows(cache))]
        assert found[0] == found[1], "keys and values disagree"
        tokens, positions = found[0]
        assert positions == list(range(cache.offset)), f"positions {positions} for offset {cache.offset}"
        return tokens

    def check(self, cache: Any, tokens: Sequence[int]) -> None:
        assert type(cache) is self.cls
        assert self.tokens(cache) == list(tokens)


class Concatenate(KV):
    cls = ConcatenateKVCache

    def roomy(self, length: int, remaining: int) -> int:
        return self.nbytes(length)


class Quantized(KV):
    cls = QuantizedKVCache

    def __init__(self, heads: int = 2, bits: int = 4) -> None:
        super().__init__(heads)
        self.bits = bits

    def fresh(self) -> Any:
        return QuantizedKVCache(group_size=WIDTH, bits=self.bits)

    def nbytes(self, length: int) -> int:
        scale_and_bias = 8
        return 2 * self.heads * length * (WIDTH * self.bits // 8 + scale_and_bias)

    def rows(self, cache: Any) -> tuple[mx.array, mx.array]:
        assert (cache.group_size, cache.bits) == (WIDTH, self.bits)
        sides = [[part[..., : cache.offset, :] for part in side] for side in (cache.keys, cache.values)]
        keys, values = (mx.dequantize(*side, group_size=WIDTH, bits=self.bits) for side in sides)
        return mx.round(keys), mx.round(values)


class Rotating(KV):
    """The first ``keep`` rows and the last ones, ``window`` together."""

    spans = False
    cls = RotatingKVCache

    def __init__(self, window: int, keep: int = 0, heads: int = 2) -> None:
        super().__init__(heads)
        self.window = window
        self.keep = keep

    def fresh(self) -> Any:
        return RotatingKVCache(max_size=self.window, keep=self.keep)

    def nbytes(self, length: int) -> int:
        return super().nbytes(min(length, self.window))

    def roomy(self, length: int, remaining: int) -> int:
        return self.nbytes(length)

    def tokens(self, cache: Any) -> None:
        return None

    def check(self, cache: Any, tokens: Sequence[int]) -> None:
        assert type(cache) is self.cls
        assert (cache.max_size, cache.keep) == (self.window, self.keep)
        assert self.length(cache) == len(tokens)
        if not tokens:
            return
        found = [
            decode(self._in_order(cache, side), self.number, at)
            for at, side in enumerate((cache.keys, cache.values))
        ]
        assert found[0] == found[1], "keys and values disagree"
        held, positions = found[0]
        assert held == [tokens[at] for at in positions]
        n = len(tokens)
        assert positions == sorted(set(positions))
        needed = [at for at in range(n) if at < self.keep or at >= n - (self.window - self.keep)]
        assert set(needed) <= set(positions), f"rows {positions} lack some of {needed}"

    def _in_order(self, cache: Any, side: mx.array) -> mx.array:
        index, rows = cache._idx, side.shape[2]
        if index == rows:
            return side
        if index < cache.offset:
            parts = [side[..., : self.keep, :], side[..., index:, :], side[..., self.keep : index, :]]
            return mx.concatenate(parts, axis=2)
        return side[..., :index, :]


class Chunked(KV):
    """The last ``chunk`` rows, front cut before each pass."""

    spans = False
    cls = ChunkedKVCache

    def __init__(self, chunk: int, heads: int = 2) -> None:
        super().__init__(heads)
        self.chunk = chunk

    def fresh(self) -> Any:
        return ChunkedKVCache(self.chunk)

    def nbytes(self, length: int) -> int:
        return super().nbytes(min(length, self.chunk))

    def roomy(self, length: int, remaining: int) -> int:
        return self.nbytes(length)

    def grow(self, cache: Any, tokens: Sequence[int], start: int) -> None:
        cache.maybe_trim_front()
        super().grow(cache, tokens, start)

    def tokens(self, cache: Any) -> None:
        return None

    def check(self, cache: Any, tokens: Sequence[int]) -> None:
        assert type(cache) is self.cls
        assert cache.chunk_size == self.chunk
        assert self.length(cache) == len(tokens)
        if not tokens:
            return
        valid = cache.offset - cache.start_position
        assert valid >= min(self.chunk, len(tokens))
        expected = list(tokens[cache.start_position :]), list(range(cache.start_position, len(tokens)))
        for at, side in enumerate((cache.keys, cache.values)):
            assert decode(side[..., :valid, :], self.number, at) == expected


def fold(tokens: Sequence[int], seed: int) -> int:
    value = seed
    for token in tokens:
        value = (value * 31 + token + 1) % 65521
    return value


class Arrays:
    """A recurrent state: how many tokens and their fold; and the last three as a convolution's."""

    spans = False

    def __init__(self) -> None:
        self.number = 0

    def numbered(self, number: int) -> None:
        self.number = number

    def fresh(self) -> Any:
        return ArraysCache(2)

    def nbytes(self, length: int) -> int:
        return 32 if length else 0

    def roomy(self, length: int, remaining: int) -> int:
        return self.nbytes(length)

    def length(self, cache: Any) -> int:
        return 0 if cache[1] is None else int(cache[1][0, 0, 0].item())

    def grow(self, cache: Any, tokens: Sequence[int], start: int) -> None:
        before = [[-1, -1]] * 3 if cache[0] is None else cache[0][0].tolist()
        last = (before + [[token, start + at] for at, token in enumerate(tokens)])[-3:]
        value = self.number if cache[1] is None else int(cache[1][0, 0, 1].item())
        cache[0] = mx.array([last])
        cache[1] = mx.array([[[start + len(tokens), fold(tokens, value)]]])

    def tokens(self, cache: Any) -> None:
        return None

    def check(self, cache: Any, tokens: Sequence[int]) -> None:
        assert type(cache) is ArraysCache
        self.check_state(cache[0], cache[1], tokens)

    def check_state(self, last: mx.array | None, state: mx.array | None, tokens: Sequence[int]) -> None:
        if not tokens:
            assert last is None
            assert state is None
            return
        expected = [[-1, -1]] * 3 + [[token, at] for at, token in enumerate(tokens)]
        assert last.tolist() == [expected[-3:]]
        assert state.tolist() == [[[len(tokens), fold(tokens, self.number)]]]


class Recurrent:
    """A cache class that kvcache has never heard of; no ``state``, no ``from_state``."""

    def __init__(self) -> None:
        self.offset = 0
        self.memory: dict[str, Any] = {"state": None, "last": [None]}


class Opaque(Arrays):
    """A layer with that class."""

    def fresh(self) -> Any:
        return Recurrent()

    def length(self, cache: Any) -> int:
        return cache.offset

    def grow(self, cache: Any, tokens: Sequence[int], start: int) -> None:
        twin = ArraysCache(2)
        twin[0], twin[1] = cache.memory["last"][0], cache.memory["state"]
        super().grow(twin, tokens, start)
        cache.memory["last"][0], cache.memory["state"] = twin[0], twin[1]
        cache.offset += len(tokens)

    def check(self, cache: Any, tokens: Sequence[int]) -> None:
        assert type(cache) is Recurrent
        assert cache.offset == len(tokens)
        self.check_state(cache.memory["last"][0], cache.memory["state"], tokens)


class List:
    """A CacheList of other layers."""

    def __init__(self, *members: Layer) -> None:
        self.members = members
        self.spans = all(member.spans for member in members)

    def numbered(self, number: int) -> None:
        for at, member in enumerate(self.members):
            member.numbered(number + 5 * (at + 1))

    def fresh(self) -> Any:
        return CacheList(*(member.fresh() for member in self.members))

    def nbytes(self, length: int) -> int:
        return sum(member.nbytes(length) for member in self.members)

    def roomy(self, length: int, remaining: int) -> int:
        return sum(member.roomy(length, remaining) for member in self.members)

    def grow(self, cache: Any, tokens: Sequence[int], start: int) -> None:
        for member, part in zip(self.members, cache.caches, strict=True):
            member.grow(part, tokens, start)

    def length(self, cache: Any) -> int:
        lengths = {member.length(part) for member, part in zip(self.members, cache.caches, strict=True)}
        assert len(lengths) == 1
        return lengths.pop()

    def tokens(self, cache: Any) -> list[int] | None:
        pairs = zip(self.members, cache.caches, strict=True)
        found = [tokens for member, part in pairs if (tokens := member.tokens(part)) is not None]
        assert all(tokens == found[0] for tokens in found)
        return found[0] if found else None

    def check(self, cache: Any, tokens: Sequence[int]) -> None:
        assert type(cache) is CacheList
        for member, part in zip(self.members, cache.caches, strict=True):
            member.check(part, tokens)
