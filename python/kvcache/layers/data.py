"""Writes Python values as JSON, and reads back exactly the same values.

JSON has no tuples, bytes or NaN, and no shared references. Values that it lacks are written as an object with
one key, which names the kind of value:

| value | data |
|---|---|
| None, bool, str, finite float, int of up to 64 bits, list | themselves |
| other ints and floats | ``{"int": "-0x1…"}``, ``{"float": "7ff8000000000000"}`` (the bits) |
| bytes, complex | ``{"bytes": base64}``, ``{"complex": [real, imaginary]}`` |
| tuple, set, frozenset | ``{"tuple": [...]}`` and so on |
| dict | ``{"dict": [key, value, key, value, ...]}`` |
| array | ``{"array": n}``: the n-th in a separate list of arrays |
| container that occurs again | ``{"same": n}``: the n-th container, in the order in which they start |
| ``mx.Dtype`` | ``{"dtype": "bfloat16"}`` |
| numpy scalar | ``{"numpy": ["float32", base64]}`` |
| enum member | ``{"enum": [module, class, name]}``; for a Flag ``[module, class, value]`` |

Reading runs no code that the data names: it imports and unpickles nothing. An enum is looked up in the
modules that this process has loaded; if it is not there, the data is refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from kvcache.layers.scalars import DataError, read_scalar, tagged, write_scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.arrays import Array

_DEPTH: Final = 16
_TAGS: Final = frozenset({"tuple", "set", "frozenset", "dict"})
# Placeholder for an immutable container that is still being built.
_OPEN: Final = object()


def encode(value: Any, arrays: list[Array] | None = None) -> Any:
    """Converts a value to JSON-able data.

    Args:
        value: Plain values and containers of them.
        arrays: Receives the value's arrays; None if arrays are not allowed.

    Raises:
        DataError: Some part has another type or is nested too deeply, or a tuple or set contains itself.
    """
    return _Writer(arrays).value(value, 0)


def decode(data: Any, arrays: Sequence[Array] = ()) -> Any:
    """Converts the data of :func:`encode` back to the value, in new containers.

    Raises:
        DataError: The data is malformed, or names an enum that this process has not loaded.
    """
    try:
        return _Reader(arrays).value(data)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"the data is malformed ({type(error).__name__}: {error})") from error


def require_json(data: Any) -> Any:
    """Writes the data as JSON and returns what reading it gives.

    Raises:
        DataError: JSON cannot represent the data, or changes it.
    """
    try:
        reread = json.loads(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"JSON cannot represent it ({error})") from error
    if reread != data:
        raise DataError("JSON does not preserve it; use lists instead of tuples, and str keys in dicts")
    return reread


class _Writer:
    def __init__(self, arrays: list[Array] | None) -> None:
        self._arrays = arrays
        self._slots: dict[int, int] = {}
        self._started: dict[int, int] = {}
        self._open: set[int] = set()

    def value(self, value: Any, depth: int) -> Any:
        if isinstance(value, mx.array):
            return self._array(value)
        if type(value) not in (list, tuple, dict, set, frozenset):
            return write_scalar(value)
        if id(value) not in self._started:
            if depth >= _DEPTH:
                raise DataError(f"it holds containers nested more than {_DEPTH} deep")
            self._started[id(value)] = len(self._started)
            return self._container(value, depth + 1)
        if id(value) in self._open:
            raise DataError("it holds a tuple that holds itself")
        return {"same": self._started[id(value)]}

    def _container(self, value: Any, depth: int) -> Any:
        if type(value) is list:
            return [self.value(part, depth) for part in value]
        if type(value) is dict:
            pairs = [(_write_key(key), self.value(part, depth)) for key, part in value.items()]
            return {"dict": [part for pair in pairs for part in pair]}
        if type(value) is tuple:
            self._open.add(id(value))
            parts = [self.value(part, depth) for part in value]
            self._open.remove(id(value))
            return {"tuple": parts}
        # Sorted, so that equal sets give equal data.
        return {type(value).__name__: sorted(map(_write_key, value), key=json.dumps)}

    def _array(self, array: Array) -> Any:
        if self._arrays is None:
            raise DataError("it holds an array")
        if id(array) not in self._slots:
            self._slots[id(array)] = len(self._arrays)
            self._arrays.append(array)
        return {"array": self._slots[id(array)]}


class _Reader:
    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self._made: list[Any] = []

    def value(self, data: Any) -> Any:
        if type(data) is list:
            return self._list(data)
        if type(data) is not dict:
            return data
        tag, content = tagged(data)
        if tag == "array":
            return self._arrays[_number(content)]
        if tag == "same":
            container = self._made[_number(content)]
            if container is _OPEN:
                raise DataError("the data holds a tuple that holds itself")
            return container
        return self._container(tag, content) if tag in _TAGS else read_scalar(data)

    def _list(self, content: list[Any]) -> list[Any]:
        made: list[Any] = []
        self._made.append(made)
        made.extend(self.value(part) for part in content)
        return made

    def _container(self, tag: str, content: list[Any]) -> Any:
        if tag == "dict":
            made: dict[Any, Any] = {}
            self._made.append(made)
            for key, part in zip(content[::2], content[1::2], strict=True):
                made[_read_key(key)] = self.value(part)
            return made
        number = len(self._made)
        self._made.append(_OPEN)
        if tag == "tuple":
            self._made[number] = tuple([self.value(part) for part in content])
        else:
            self._made[number] = (set if tag == "set" else frozenset)(map(_read_key, content))
        return self._made[number]


def _number(content: Any) -> int:
    if type(content) is not int or content < 0:
        raise DataError(f"the data has {content!r} in place of a number")
    return content


def _write_key(key: Any) -> Any:
    """Writes a key of a dict or a member of a set: a plain value, or a tuple of them."""
    if type(key) is tuple:
        return {"tuple": [_write_key(part) for part in key]}
    try:
        return write_scalar(key)
    except DataError as error:
        raise DataError(f"{error} as a dict key or in a set") from None


def _read_key(data: Any) -> Any:
    if type(data) is dict and data.keys() == {"tuple"}:
        return tuple([_read_key(part) for part in data["tuple"]])
    return read_scalar(data)
