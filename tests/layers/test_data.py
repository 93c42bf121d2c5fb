"""Values as JSON: whatever a layer cache keeps comes back exactly, or is refused; data runs no code."""

from __future__ import annotations

import enum
import json
import math
import struct
import sys
import types
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.layers.data import DataError, decode, encode, require_json
from kvcache.layers.numbers import Mark


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"
    CRIMSON = 1  # noqa: PIE796 - a name for a member that has one


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    A = "a"


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    ONE = 1
    HUGE = 1 << 80


class Outer:
    class Inner(enum.Enum):
        X = (1, 2)


MEMBERS = [
    *Colour,
    Colour.CRIMSON,
    Level.LOW,
    Word.A,
    Mode.READ,
    Mode.READ | Mode.WRITE,
    Mode(0),
    Bits.ONE,
    Bits.ONE | Bits.HUGE,
    Bits(64),
    Outer.Inner.X,
]
DTYPES = [value for value in vars(mx).values() if isinstance(value, mx.Dtype)]
NUMPY = [
    np.float32(0.1),
    np.float16("nan"),
    np.float64("-inf"),
    np.longdouble(0.1),
    np.int8(-3),
    np.uint64(2**64 - 1),
    np.longlong(5),
    np.bool_(True),
    np.complex64(1 - 2j),
    np.datetime64("2020-01-02T03", "h"),
    np.datetime64("NaT"),
    np.timedelta64(3, "25s"),
    np.str_("a\0"),
    np.str_(""),
    np.bytes_(b"a\0"),
    np.bytes_(b""),
]
NAN = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63), 2**64, True, 1, 1.0, -0.0, math.nan, NAN, -math.inf])
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.sampled_from(["\ud800", "\0", "tuple", "same", "array"])
    | st.binary()
    | st.sampled_from(MEMBERS)
    | st.sampled_from(DTYPES)
    | st.sampled_from(NUMPY)
)
KEYS = st.recursive(SCALARS, lambda keys: st.lists(keys, max_size=3).map(tuple), max_leaves=4)
VALUES = st.recursive(
    SCALARS,
    lambda values: (
        st.lists(values, max_size=4)
        | st.lists(values, max_size=4).map(tuple)
        | st.dictionaries(KEYS, values, max_size=4)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
        # One object at two places.
        | values.map(lambda value: [value, (value, [value])])
    ),
    max_leaves=12,
)


def written(value: Any, arrays: list[Any] | None = None) -> Any:
    """The data, which JSON holds as it is."""
    data = encode(value, arrays)
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again == data == require_json(data)
    return again


def canonical(value: Any, seen: dict[int, int] | None = None) -> Any:  # noqa: PLR0911 - a table
    """All that there is to a value: types, bits, order, and which containers are one object."""
    seen = {} if seen is None else seen
    kind = type(value)
    if kind in (list, dict, tuple):
        if id(value) in seen:
            return "again", seen[id(value)]
        seen[id(value)] = len(seen)
    if kind in (list, tuple):
        return kind, [canonical(part, seen) for part in value]
    if kind is dict:
        return kind, [(canonical(key), canonical(part, seen)) for key, part in value.items()]
    if kind in (set, frozenset):
        return kind, sorted((canonical(part) for part in value), key=repr)
    if kind is float:
        return kind, struct.pack(">d", value)
    if kind is complex:
        return kind, struct.pack(">dd", value.real, value.imag)
    if isinstance(value, np.str_ | np.bytes_):
        return kind, value[:]
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, enum.Enum):
        return kind, id(value)
    return kind, hex(value) if kind is int else value


@settings(max_examples=400)
@given(VALUES)
def test_every_value_comes_back_exactly(value: Any) -> None:
    found = decode(written(value))
    assert canonical(found) == canonical(value)
    assert json.dumps(encode(found)) == json.dumps(encode(value))


@pytest.mark.parametrize("value", [*MEMBERS, *DTYPES, *NUMPY], ids=repr)
def test_every_kind_of_scalar_comes_back(value: Any) -> None:
    for found in (decode(written(value)), *decode(written([{value}]))[0], *decode(written({value: 1}))):
        assert canonical(found) == canonical(value)


def test_containers_that_are_one_object_or_hold_themselves() -> None:
    shared: list[Any] = [1]
    whole: dict[str, Any] = {"one": shared, "pair": (shared, {"key": shared})}
    whole["self"] = whole
    shared.append(shared)
    found = decode(written(whole))
    assert found["self"] is found
    assert found["one"] is found["pair"][0] is found["pair"][1]["key"] is found["one"][1]
    assert found["one"] is not shared
    assert found["one"][0] == 1


def test_arrays_are_numbered_in_the_order_of_their_first_places() -> None:
    first, second = mx.array(1), mx.array(2)
    arrays: list[mx.array] = []
    data = written({"a": [first, second], "b": (second, first)}, arrays)
    assert list(map(id, arrays)) == [id(first), id(second)]
    copies = [mx.array(1), mx.array(2)]
    found = decode(data, copies)
    assert found["a"][0] is found["b"][1] is copies[0]
    assert found["a"][1] is found["b"][0] is copies[1]
    with pytest.raises(DataError, match="an array"):
        encode([first])


def test_a_set_is_written_alike_however_it_came_about() -> None:
    """Small integers that collide stay in the order in which they were added."""
    one, other = set([0, 8, 16]), set([16, 8, 0])  # noqa: C405 - literals of constants are built once, sorted
    assert list(one) != list(other)
    assert encode(one) == encode(other)


def test_an_integer_too_long_for_decimals_comes_back() -> None:
    assert decode(written(-(1 << 20_000))) == -(1 << 20_000)


def test_a_number_under_watch_is_written_as_a_number() -> None:
    assert type(decode(written(Mark(3)))) is int


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def tuple_of_itself() -> Any:
    inner: list[Any] = []
    value = (inner,)
    inner.append(value)
    return value


class Text(str):
    __slots__ = ()


def local() -> Any:
    class Hidden(enum.Enum):
        A = 1

    return Hidden.A


def impostor() -> Any:
    """An enum by the name of another."""
    cls = enum.Enum("Colour", {"RED": 1})
    cls.__module__, cls.__qualname__ = __name__, "Colour"
    return cls.RED


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (object, "object"),
        (lambda: Text("a"), "Text"),
        (lambda: {Text("a"): 1}, "Text"),
        (lambda: bytearray(2), "bytearray"),
        (lambda: np.ones(2), "ndarray"),
        (lambda: np.zeros(1, "i4,f4")[0], "void"),
        (lambda: {frozenset({1})}, "frozenset"),
        (lambda: nested(40), "nested"),
        (tuple_of_itself, "holds itself"),
        (local, "no enum of that name is loaded"),
        (impostor, "another object"),
        (lambda: int, "type"),
    ],
)
def test_what_would_not_come_back_is_refused(make: Any, why: str) -> None:
    with pytest.raises(DataError, match=why):
        encode(make())


@pytest.mark.parametrize(
    "data",
    [
        {"enum": ["antigravity", "X", "A"]},
        {"enum": ["os", "system", "A"]},
        {"enum": ["builtins", "int", 1]},
        {"enum": [__name__, "Outer.Missing", "X"]},
        {"enum": [__name__, "Colour", "GREEN"]},
        {"enum": [__name__, "Colour", "__class__"]},
        {"numpy": ["object", "AAAAAAAAAAA="]},
        {"numpy": ["i4,f4", "AAAAAAAAAAA="]},
        {"numpy": ["float32", "AAAA"]},
        {"dtype": "array"},
        {"bytes": "!"},
        {"int": "x"},
        {"same": 3},
        {"same": -1},
        {"array": 0},
        {"array": -1},
        {"array": True},
        {"tuple": [{"same": 0}]},
        {"dict": [1]},
        {"dict": [[1], 2]},
        {"set": [[1]]},
        {"pickle": "gASVCgAAAAAAAACMBm9zL"},
        {"tuple": [], "set": []},
        {},
    ],
    ids=repr,
)
def test_data_that_is_none_is_refused(data: Any) -> None:
    with pytest.raises(DataError):
        decode(data)
    assert "antigravity" not in sys.modules


def test_deep_data_is_refused() -> None:
    with pytest.raises(DataError):
        decode(nested(100_000))


def test_no_module_is_asked_for_a_name_that_it_would_have_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazy")
    asked: list[str] = []
    monkeypatch.setattr(lazy, "__getattr__", asked.append, raising=False)
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    with pytest.raises(DataError, match="loaded"):
        decode({"enum": ["lazy", "Colour", "RED"]})
    assert asked == []


@pytest.mark.parametrize(
    "data",
    [(1,), {1: 2}, math.nan, b"a", {"a": {1}}, [mx.array(1)], 10**5000, len],
    ids=lambda data: type(data).__name__,
)
def test_data_that_json_changes_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match="JSON"):
        require_json(data)
