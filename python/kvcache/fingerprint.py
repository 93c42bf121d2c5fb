"""A digest of all that a model's forward pass may read: equal in every process, for equal models."""

from __future__ import annotations

import enum
import functools
import hashlib
import types
from typing import TYPE_CHECKING, Any, Final, cast

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Words summed at a time: the work needs a few times as many bytes.
_CHUNK: Final = 1 << 22
# numpy's numbers: MLX takes no Python int beyond 63 bits.
_SHIFTS: Final = np.array([30, 27, 31], np.uint64)
_FACTORS: Final = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
# What a module keeps for training alone.
_UNREAD: Final = frozenset({"_no_grad"})
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, mx.Dtype)
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)


def fingerprint(model: Any) -> bytes:
    """Reads a model's modules with all their attributes, its arguments, and every array.

    Arrays count by shape, dtype and content, functions by name, code and what they close over,
    objects by class and attributes. What is met again counts as it did the first time. Linear in what
    is read.
    """
    return _Reader().digest(model)


class _Reader:
    def __init__(self) -> None:
        # The values themselves are kept, too: an id is one object's only while it lives.
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._open: dict[int, int] = {}

    def digest(self, value: Any) -> bytes:
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            return _hash(type(value).__name__, repr(value))
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:
            # How far up the way down to here: the same in every process.
            return _hash("cycle", str(len(self._open) - self._open[id(value)]))
        self._open[id(value)] = len(self._open)
        try:
            made = self._hash_of(value)
        finally:
            del self._open[id(value)]
        self._known[id(value)] = value, made
        return made

    def _hash_of(self, value: Any) -> bytes:
        made: bytes
        if isinstance(value, mx.array):
            made = _hash("array", f"{value.shape} {value.dtype} {_checksum(value)}")
        elif isinstance(value, np.ndarray | np.generic):
            content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            made = _hash("numpy", f"{value.shape} {value.dtype} {content}")
        elif isinstance(value, enum.Enum):
            made = _hash("enum", _name(type(value)), value.name)
        elif isinstance(value, type | types.ModuleType):
            made = _hash("name", _name(value))
        elif isinstance(value, types.CodeType):
            texts = _hash("code", value.co_code.hex(), *value.co_names, *value.co_freevars)
            made = _hash(texts, *map(self.digest, value.co_consts))
        elif isinstance(value, types.CellType):
            made = _hash("cell", *map(self.digest, _cell(value)))
        elif callable(value) and not isinstance(value, Module):
            made = self._callable(value)
        else:
            made = self._object(value)
        return made

    def _callable(self, value: Any) -> bytes:
        parts = [_name(value if hasattr(value, "__qualname__") else type(value))]
        if isinstance(value, types.FunctionType):
            read: list[Any] = [value.__code__, value.__closure__, value.__defaults__, value.__kwdefaults__]
        elif isinstance(value, types.MethodType):
            read = [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            read = [value.func, value.args, value.keywords]
        else:
            # Written in C, or an object that can be called.
            read = [getattr(value, "__wrapped__", None), getattr(value, "__self__", None)]
            return _hash("callable", *parts, *map(self.digest, read), self._object(value))
        return _hash("callable", *parts, *map(self.digest, read))

    def _object(self, value: Any) -> bytes:
        """Class, contents and attributes."""
        cls = type(value)
        parts: list[str | bytes] = [_name(cls)]
        if cls not in _CONTAINERS:
            parts += [self._of_class(base) for base in cls.__mro__]
            parts.append(self._pairs(_attributes(value)))
        if isinstance(value, dict):
            parts.append(self._pairs(value.items()))
        elif isinstance(value, list | tuple):
            parts += map(self.digest, value)
        elif isinstance(value, set | frozenset):
            parts += sorted(map(self.digest, value))
        return _hash("object", *parts)

    def _of_class(self, cls: type) -> bytes:
        """Values that all objects of a class share; of its methods the class's name speaks."""
        if cls in (object, Module, *_CONTAINERS):
            return b""
        values = [
            (name, value)
            for name, value in vars(cls).items()
            if not name.startswith("__") and isinstance(value, (*_PLAIN, *_CONTAINERS, mx.array))
        ]
        return self._pairs(values)

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> bytes:
        """Names and values; the order in which they were set plays no part."""
        return _hash("pairs", *sorted(self.digest(name) + self.digest(value) for name, value in pairs))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for name, kept in getattr(value, "__dict__", {}).items():
        if name not in _UNREAD:
            yield name, kept
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield name, member.__get__(value, type(value))
                except AttributeError:
                    continue  # not set


def _cell(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []  # empty


def _name(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return value.__name__
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _hash(*parts: str | bytes) -> bytes:
    """A digest of the parts, none of which can be shifted into the next."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.digest()


def _checksum(array: mx.array) -> str:
    """A sum over the raw bits, eight bytes at a time, each scrambled with its place.

    Exact whatever the order of the additions. A sum weighted by places alone would be the same for weights
    that were exchanged: multiplied by a distance that is a power of two, their difference overflows to zero.
    """
    bits = mx.contiguous(array.reshape(-1)).view(mx.uint8) if array.size else mx.array([], dtype=mx.uint8)
    if bits.size % 8:
        bits = mx.pad(bits, (0, -bits.size % 8))
    words = bits.view(mx.uint64)
    total = 0
    for start in range(0, words.size, _CHUNK):
        chunk = words[start : start + _CHUNK]
        places = mx.arange(start + 1, start + 1 + chunk.size, dtype=mx.uint64)
        total += cast("int", mx.sum(_scrambled(_scrambled(places) + chunk)).item())
    return f"{total & (1 << 64) - 1:016x}"


def _scrambled(words: mx.array) -> mx.array:
    """The finalizer of SplitMix64: a bijection in which each bit depends on all others."""
    shifts, factors = mx.array(_SHIFTS), mx.array(_FACTORS)
    for at in range(2):
        words = (words ^ (words >> shifts[at])) * factors[at]
    return words ^ (words >> shifts[2])
