"""A digest of everything that a model's forward pass may read; equal for equal models in every process."""

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

# Words summed at a time; bounds the temporary memory.
_CHUNK: Final = 1 << 22
_ROUNDS: Final = (
    (30, 0xBF58476D1CE4E5B9),
    (27, 0x94D049BB133111EB),
)
# Attributes of a module that only training uses.
_IGNORED: Final = frozenset({"_no_grad"})
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, mx.Dtype)
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)


def fingerprint(model: Any) -> bytes:
    """Digests a model's modules with all their attributes, its arguments and every array.

    An array is identified by shape, dtype and content, a function by name, code and closure, an object by
    class and attributes. An object that occurs again has the same digest as before. Linear in what is read.
    """
    return _Reader().digest(model)


class _Reader:
    def __init__(self) -> None:
        # Keeps the values alive, too: an id may be reused once its object is freed.
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._open: dict[int, int] = {}

    def digest(self, value: Any) -> bytes:
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            return _hash(type(value).__name__, repr(value))
        if id(value) in self._known:
            return self._known[id(value)][1]
        if id(value) in self._open:
            # The distance to the enclosing object is the same in every process.
            return _hash("cycle", str(len(self._open) - self._open[id(value)]))
        self._open[id(value)] = len(self._open)
        try:
            digest = self._hash_of(value)
        finally:
            del self._open[id(value)]
        self._known[id(value)] = value, digest
        return digest

    def _hash_of(self, value: Any) -> bytes:
        digest: bytes
        if isinstance(value, mx.array):
            digest = _hash("array", f"{value.shape} {value.dtype} {_checksum(value)}")
        elif isinstance(value, np.ndarray | np.generic):
            content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            digest = _hash("numpy", f"{value.shape} {value.dtype} {content}")
        elif isinstance(value, enum.Enum):
            digest = _hash("enum", _name(type(value)), value.name)
        elif isinstance(value, type | types.ModuleType):
            digest = _hash("name", _name(value))
        elif isinstance(value, types.CodeType):
            code = _hash("code", value.co_code.hex(), *value.co_names, *value.co_freevars)
            digest = _hash(code, *map(self.digest, value.co_consts))
        elif isinstance(value, types.CellType):
            digest = _hash("cell", *map(self.digest, _cell(value)))
        elif callable(value) and not isinstance(value, Module):
            digest = self._callable(value)
        else:
            digest = self._object(value)
        return digest

    def _callable(self, value: Any) -> bytes:
        parts = [_name(value if hasattr(value, "__qualname__") else type(value))]
        if isinstance(value, types.FunctionType):
            read: list[Any] = [value.__code__, value.__closure__, value.__defaults__, value.__kwdefaults__]
        elif isinstance(value, types.MethodType):
            read = [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            read = [value.func, value.args, value.keywords]
        else:
            # A function written in C, or a callable object.
            read = [getattr(value, "__wrapped__", None), getattr(value, "__self__", None)]
            return _hash("callable", *parts, *map(self.digest, read), self._object(value))
        return _hash("callable", *parts, *map(self.digest, read))

    def _object(self, value: Any) -> bytes:
        """Digests an object's class, contents and attributes."""
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
        """Digests a class's plain values; its name identifies its methods."""
        if cls in (object, Module, *_CONTAINERS):
            return b""
        values = [
            (name, value)
            for name, value in vars(cls).items()
            if not name.startswith("__") and isinstance(value, (*_PLAIN, *_CONTAINERS, mx.array))
        ]
        return self._pairs(values)

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> bytes:
        """Digests names and values regardless of their order."""
        return _hash("pairs", *sorted(self.digest(name) + self.digest(value) for name, value in pairs))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for name, kept in getattr(value, "__dict__", {}).items():
        if name not in _IGNORED:
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
    """A digest of the parts; each is prefixed with its length, so their boundaries matter."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.digest()


def _checksum(array: mx.array) -> str:
    """Sums the raw bits in words of eight bytes, each scrambled with its position.

    The sum does not depend on the order of the additions. Weighting words by position alone would not detect
    two that are swapped: if their distance is a power of two, their difference can overflow to zero.
    """
    bits = mx.contiguous(array.reshape(-1)).view(mx.uint8) if array.size else mx.array([], dtype=mx.uint8)
    if bits.size % 8:
        bits = mx.pad(bits, (0, -bits.size % 8))
    words = bits.view(mx.uint64)
    total = 0
    for start in range(0, words.size, _CHUNK):
        chunk = words[start : start + _CHUNK]
        positions = mx.arange(start + 1, start + 1 + chunk.size, dtype=mx.uint64)
        total += cast("int", mx.sum(_scrambled(_scrambled(positions) + chunk)).item())
    return f"{total & (1 << 64) - 1:016x}"


def _scrambled(words: mx.array) -> mx.array:
    """The finalizer of SplitMix64 (Steele et al., 2014): a bijection that mixes all bits of a word."""
    for shift, factor in _ROUNDS:
        words = (words ^ (words >> _word(shift))) * _word(factor)
    return words ^ (words >> _word(31))


def _word(value: int) -> mx.array:
    # MLX accepts Python ints of at most 63 bits, so the value passes through numpy.
    return mx.array(np.array(value, dtype=np.uint64))
