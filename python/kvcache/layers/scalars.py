"""Writes plain values that JSON lacks as data; the table is in :mod:`kvcache.layers.data`."""

from __future__ import annotations

import enum
import struct
import sys
from base64 import b64decode, b64encode
from math import isfinite
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
import numpy as np

from kvcache.layers.numbers import Mark

if TYPE_CHECKING:
    from collections.abc import Callable

_DTYPES: Final = {
    str(value).rpartition(".")[2]: value for value in vars(mx).values() if isinstance(value, mx.Dtype)
}
# Longer ints are slow to parse as decimals, and Python refuses very long ones.
_INT_BITS: Final = 63
# numpy's kinds of scalars that consist of their bytes only.
_BYTE_KINDS: Final = "biufcmM"


class DataError(ValueError):
    """A value that cannot be written as data, or data that cannot be read; the message is a clause."""


def write_scalar(value: Any) -> Any:
    """Converts a plain value to data. Raises ``DataError`` for other types; subclasses may hold more."""
    if value is None or type(value) in (bool, str):
        return value
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, enum.Enum):
        return {"enum": _write_enum(value)}
    if isinstance(value, np.generic):
        return {"numpy": _write_numpy(value)}
    raise DataError(f"it holds a {type(value).__qualname__}")


def read_scalar(data: Any) -> Any:
    """Converts the data of :func:`write_scalar` back. Raises ``DataError`` if it is malformed."""
    if type(data) is not dict:
        return data
    tag, content = tagged(data)
    if tag not in _READERS:
        raise DataError(f"the data has an unknown kind of value, {tag!r}")
    return _READERS[tag](content)


def tagged(data: dict[str, Any]) -> tuple[str, Any]:
    """Splits an object with one key into the key and its value."""
    if len(data) != 1:
        raise DataError(f"the data has an object with {len(data)} keys; it must have one, its kind")
    [(tag, content)] = data.items()
    return tag, content


def dtype_name(dtype: mx.Dtype) -> str:
    """The dtype's name, such as ``bfloat16``."""
    return str(dtype).rpartition(".")[2]


def dtype_named(name: str) -> mx.Dtype:
    """The dtype of this name. Raises ``DataError`` if this version of MLX does not have it."""
    if name not in _DTYPES:
        raise DataError(f"the installed MLX has no dtype {name!r}")
    return _DTYPES[name]


def _text(content: bytes) -> str:
    return b64encode(content).decode()


def _bytes(content: str) -> bytes:
    return b64decode(content, validate=True)


def _write_int(value: int) -> Any:
    return value if value.bit_length() <= _INT_BITS else {"int": hex(value)}


def _write_float(value: float) -> Any:
    return value if isfinite(value) else {"float": struct.pack(">d", value).hex()}


def _read_complex(content: list[Any]) -> complex:
    real, imaginary = map(read_scalar, content)
    return complex(real, imaginary)


def _write_enum(member: enum.Enum) -> list[Any]:
    cls = type(member)
    key = member.value if isinstance(member, enum.Flag) else member.name
    data = [cls.__module__, cls.__qualname__, write_scalar(key)]
    if _read_enum(data) is not member:
        raise DataError(f"it holds {member!r}, but looking it up by name gives another object")
    return data


def _read_enum(content: list[Any]) -> enum.Enum:
    module, qualname, key = content
    cls: Any = sys.modules.get(module)
    for name in qualname.split("."):
        # Not getattr: a module's __getattr__ may import something.
        cls = vars(cls).get(name) if isinstance(cls, ModuleType | type) else None
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise DataError(
            f"it holds a member of {module}.{qualname}, but no enum of that name is loaded; define it at a "
            "module's top level and import that module"
        )
    if issubclass(cls, enum.Flag):
        return cls(read_scalar(key))
    if key not in cls.__members__:
        raise DataError(f"{module}.{qualname} has no member {key!r}")
    return cls.__members__[key]


def _write_numpy(value: np.generic) -> list[str]:
    if type(value) is np.str_:
        # Its __str__ drops trailing NUL characters.
        return ["str", "".join(value)]
    if type(value) is np.bytes_:
        return ["bytes", _text(bytes(value))]
    if value.dtype.kind in _BYTE_KINDS:
        # Some types of the same size share a name and differ only in their type code.
        for name in (value.dtype.name, value.dtype.char):
            if np.dtype(name).type is type(value):
                return [name, _text(value.tobytes())]
    raise DataError(f"it holds a {type(value).__module__}.{type(value).__qualname__}")


def _read_numpy(content: list[str]) -> np.generic:
    name, value = content
    if name == "str":
        return np.str_(value)
    raw = _bytes(value)
    if name == "bytes":
        return np.bytes_(raw)
    dtype = np.dtype(name)
    if dtype.kind not in _BYTE_KINDS or dtype.itemsize != len(raw):
        raise DataError(f"{len(raw)} bytes are not a numpy {name}")
    scalar: np.generic = np.frombuffer(raw, dtype)[0]
    return scalar


_WRITERS: Final[dict[type, Callable[[Any], Any]]] = {
    int: _write_int,
    Mark: lambda value: _write_int(int(value)),
    float: _write_float,
    complex: lambda value: {"complex": [_write_float(value.real), _write_float(value.imag)]},
    bytes: lambda value: {"bytes": _text(value)},
    mx.Dtype: lambda value: {"dtype": dtype_name(value)},
}
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": lambda content: int(content, 16),
    "float": lambda content: struct.unpack(">d", bytes.fromhex(content))[0],
    "complex": _read_complex,
    "bytes": _bytes,
    "dtype": dtype_named,
    "enum": _read_enum,
    "numpy": _read_numpy,
}
