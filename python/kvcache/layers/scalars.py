"""Plain values that JSON does not have, as data; :mod:`kvcache.layers.data` has the table."""

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
# Longer ones are slow to read as decimals, and Python refuses the longest.
_INT_BITS: Final = 63
# Kinds of numpy scalars that are nothing but their bytes.
_BYTES: Final = "biufcmM"


class DataError(ValueError):
    """A value that cannot be written as data, or data that cannot be read: a clause that says why."""


def write_scalar(value: Any) -> Any:
    """Raises ``DataError`` for a value of another type; subclasses of plain types may keep more."""
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
    """The value that :func:`write_scalar` was given. Raises ``DataError`` where it is none."""
    if type(data) is not dict:
        return data
    tag, content = tagged(data)
    if tag not in _READERS:
        raise DataError(f"the data has a kind of value that is not known here: {tag!r}")
    return _READERS[tag](content)


def tagged(data: dict[str, Any]) -> tuple[str, Any]:
    """The key of an object with one key, and what it holds."""
    if len(data) != 1:
        raise DataError(f"the data has an object of {len(data)} keys where one names its kind")
    [(tag, content)] = data.items()
    return tag, content


def dtype_name(dtype: mx.Dtype) -> str:
    """As ``bfloat16``."""
    return str(dtype).rpartition(".")[2]


def dtype_named(name: str) -> mx.Dtype:
    """Raises ``DataError`` for a dtype that this version of MLX does not have."""
    if name not in _DTYPES:
        raise DataError(f"MLX has no dtype {name!r} here")
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
    kept = member.value if isinstance(member, enum.Flag) else member.name
    data = [cls.__module__, cls.__qualname__, write_scalar(kept)]
    if _read_enum(data) is not member:
        raise DataError(f"it holds {member!r}, which is another object when it is looked up by its name")
    return data


def _read_enum(content: list[Any]) -> enum.Enum:
    module, qualname, kept = content
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        # No getattr: a module may import something when it is asked for a name.
        found = vars(found).get(name) if isinstance(found, ModuleType | type) else None
    if not (isinstance(found, type) and issubclass(found, enum.Enum)):
        raise DataError(
            f"it holds a member of {module}.{qualname}, and no enum of that name is loaded: "
            "import the module that defines it at its top level"
        )
    if issubclass(found, enum.Flag):
        return found(read_scalar(kept))
    if kept not in found.__members__:
        raise DataError(f"{module}.{qualname} has no member {kept!r}")
    return found.__members__[kept]


def _write_numpy(value: np.generic) -> list[str]:
    if type(value) is np.str_:
        # Its own __str__ drops zeros at the end.
        return ["str", "".join(value)]
    if type(value) is np.bytes_:
        return ["bytes", _text(bytes(value))]
    if value.dtype.kind in _BYTES:
        # Some types of one size differ in their letter only.
        for name in (value.dtype.name, value.dtype.char):
            if np.dtype(name).type is type(value):
                return [name, _text(value.tobytes())]
    raise DataError(f"it holds a {type(value).__module__}.{type(value).__qualname__}")


def _read_numpy(content: list[str]) -> np.generic:
    name, kept = content
    if name == "str":
        return np.str_(kept)
    raw = _bytes(kept)
    if name == "bytes":
        return np.bytes_(raw)
    dtype = np.dtype(name)
    if dtype.kind not in _BYTES or dtype.itemsize != len(raw):
        raise DataError(f"{len(raw)} bytes are no numpy {name}")
    found: np.generic = np.frombuffer(raw, dtype)[0]
    return found


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
