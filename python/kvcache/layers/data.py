"""Python values as JSON, and back to exactly the same values.

JSON has no tuples, bytes or NaN, and no objects that are met twice. What it lacks is an object with
one key, which says what the value is:

| value | data |
|---|---|
| None, bool, text, finite float, int of up to 64 bits, list | themselves |
| other ints and floats | ``{"int": "-0x1…"}``, ``{"float": "7ff8000000000000"}`` (the bits) |
| bytes, complex | ``{"bytes": base64}``, ``{"complex": [real, imaginary]}`` |
| tuple, set, frozenset | ``{"tuple": [...]}`` and so on |
| dict | ``{"dict": [key, value, key, value, ...]}`` |
| an array | ``{"array": n}``: the n-th of a list that is kept next to the data |
| a container met again | ``{"same": n}``: the n-th that was begun |
| ``mx.Dtype`` | ``{"dtype": "bfloat16"}`` |
| numpy scalar | ``{"numpy": ["float32", base64]}`` |
| enum member | ``{"enum": [module, class, name]}``, of a Flag ``[module, class, value]`` |

Reading data runs no code that the data names: nothing is imported or unpickled. An enum is looked up
in the modules that this process has loaded; one that is not there is refused.
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
# In place of an immutable container that is still being built.
_OPEN: Final = object()


def encode(value: Any, arrays: list[Array] | None = None) -> Any:
    """A value as JSON-able data.

    Args:
        value: Plain values and containers of them.
        arrays: Where arrays in the value are put; without it they cannot be written.

    Raises:
        DataError: Some part is of another type, nested too deeply, or a tuple or set holds itself.
    """
    return _Writer(arrays).value(value, 0)


def decode(data: Any, arrays: Sequence[Array] = ()) -> Any:
    """The value that :func:`encode` was given, in containers of its own.

    Raises:
        DataError: The data is no such value, or names an enum that this process has not loaded.
    """
    try:
        return _Reader(arrays).value(data)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"the data cannot be read ({type(error).__name__}: {error})") from error


def require_json(data: Any) -> Any:
    """The data as it comes back from JSON.

    Raises:
        DataError: Something else comes back, or JSON cannot hold it.
    """
    try:
        again = json.loads(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"JSON cannot hold it ({error})") from error
    if again != data:
        raise DataError("it comes back from JSON as something else; tuples and keys other than texts do")
    return again


class _Writer:
    def __init__(self, arrays: list[Array] | None) -> None:
        self._arrays = arrays
        self._slots: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._open: set[int] = set()

    def value(self, value: Any, depth: int) -> Any:
        if isinstance(value, mx.array):
            return self._array(value)
        if type(value) not in (list, tuple, dict, set, frozenset):
            return write_scalar(value)
        if id(value) not in self._begun:
            if depth >= _DEPTH:
                raise DataError(f"it holds containers nested more than {_DEPTH} deep")
            self._begun[id(value)] = len(self._begun)
            return self._container(value, depth + 1)
        if id(value) in self._open:
            raise DataError("it holds a tuple that holds itself")
        return {"same": self._begun[id(value)]}

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
        # In an order that does not depend on how the set came about.
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
            found = self._made[_number(content)]
            if found is _OPEN:
                raise DataError("the data holds a tuple that holds itself")
            return found
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
        raise DataError(f"the data has {content!r} where a number is due")
    return content


def _write_key(key: Any) -> Any:
    """Keys of dicts and members of sets: plain values and tuples of them, which nothing can share."""
    if type(key) is tuple:
        return {"tuple": [_write_key(part) for part in key]}
    try:
        return write_scalar(key)
    except DataError as error:
        raise DataError(f"as a key of a dict or in a set {error}") from None


def _read_key(data: Any) -> Any:
    if type(data) is dict and data.keys() == {"tuple"}:
        return tuple([_read_key(part) for part in data["tuple"]])
    return read_scalar(data)
