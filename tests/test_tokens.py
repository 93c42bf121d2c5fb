"""Tokens in every form that is accepted, and every one that is not."""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from kvcache import ConfigError, KVPrefixCache, MediaSpan, PrefixIndex, TokenError
from tests.support.layers import KV, Arrays
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable

LAST = 2**31 - 1
STORED = [5, 6, 7, 8, 9, 10]
ASKED = [5, 6, 7, 8, 1, 2]


class Subclass(list):
    """A list with another way of reading its items, which is nobody's business."""

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)


def _read_only(values: list[int]) -> np.ndarray:
    tokens = np.array(values, np.int32)
    tokens.setflags(write=False)
    return tokens


def _unaligned(values: list[int]) -> np.ndarray:
    raw = np.zeros(4 * len(values) + 1, np.uint8)
    raw[1:] = np.frombuffer(np.array(values, np.int32).tobytes(), np.uint8)
    return raw[1:].view(np.int32)


NUMPY = ("int16", "uint16", "int32", "uint32", "int64", "uint64")
FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "subclass": Subclass,
    "numpy scalars": lambda values: [np.int64(value) for value in values],
    "numpy scalars, unsigned": lambda values: tuple(np.uint16(value) for value in values),
    **{f"array {code}": lambda values, code=code: array(code, values) for code in "hHiIlLqQ"},
    **{f"numpy {name}": lambda values, name=name: np.array(values, name) for name in NUMPY},
    **{f"mlx {name}": lambda values, name=name: mx.array(values, getattr(mx, name)) for name in NUMPY},
    "mlx lazy": lambda values: mx.array(values) + 0,
    "mlx one row": lambda values: mx.array([values]),
    "mlx reversed twice": lambda values: mx.array(values[::-1])[::-1],
    "numpy one row": lambda values: np.array([values]),
    "numpy one row of many": lambda values: np.array([values, values[::-1]], np.int32)[:1],
    "numpy every other": lambda values: np.repeat(np.array(values, np.int32), 2)[::2],
    "numpy backwards": lambda values: np.array(values[::-1], np.int32)[::-1],
    "numpy column": lambda values: np.array([values, values], np.int32, order="F")[0],
    "numpy read-only": _read_only,
    "numpy unaligned": _unaligned,
}
NARROW = {
    "array h",
    "array H",
    "numpy int16",
    "numpy uint16",
    "mlx int16",
    "mlx uint16",
    "numpy scalars, unsigned",
}
forms = pytest.mark.parametrize("form", FORMS)


def _flat(tokens: Any) -> list[int]:
    return np.array(tokens).reshape(-1).tolist()


@pytest.fixture(scope="module")
def model() -> PosKV:
    return PosKV(KV())


@pytest.fixture
def cache(model: PosKV) -> KVPrefixCache:
    cache = KVPrefixCache(segment_tokens=4)
    cache.store(STORED, model.filled(STORED))
    return cache


@forms
def test_a_fetch_reads_it_and_gives_the_rest_in_kind(form: str, cache: KVPrefixCache, model: PosKV) -> None:
    tokens = FORMS[form](ASKED)
    for hit in (cache.fetch(tokens), cache.peek(tokens)):
        assert (hit.length, hit.matched) == (4, 4)
        assert type(hit.remaining) is (list if form == "subclass" else type(tokens))
        assert getattr(hit.remaining, "dtype", None) == getattr(tokens, "dtype", None)
        assert getattr(hit.remaining, "ndim", 1) == getattr(tokens, "ndim", 1)
        assert _flat(hit.remaining) == ASKED[4:]
    model.check(cache.fetch(tokens).prompt_cache, ASKED[:4])


@forms
def test_a_store_reads_it(form: str, model: PosKV) -> None:
    cache = KVPrefixCache(segment_tokens=4)
    assert cache.store(FORMS[form](STORED), model.filled(STORED)).length == len(STORED)
    cache.validate()
    assert cache.peek([*STORED, 1]).length == len(STORED)
    with cache.pin(FORMS[form](STORED)) as pin:
        assert pin.tokens == len(STORED)


@forms
def test_the_index_reads_it(form: str) -> None:
    index = PrefixIndex()
    assert index.insert(FORMS[form](STORED)).new_tokens == len(STORED)
    assert index.match_prefix(FORMS[form](ASKED)).length == 4


@pytest.mark.parametrize("form", [name for name in FORMS if name not in NARROW])
def test_the_largest_id(form: str, model: PosKV) -> None:
    tokens = FORMS[form]([0, LAST, LAST - 1])
    cache = KVPrefixCache()
    cache.store(tokens, model.filled([0, 1, 2]))
    assert cache.peek([0, LAST, LAST - 1, 4]).length == 3
    assert cache.peek([0, LAST, LAST, 4]).length == 2


EMPTY: dict[str, Any] = {
    "list": [],
    "tuple": (),
    "empty array": array("i"),
    "numpy": np.array([], np.int32),
    "numpy one row": np.zeros((1, 0), np.int64),
    "mlx": mx.array([], mx.int32),
    "mlx one row": mx.zeros((1, 0), mx.uint32),
}


@pytest.mark.parametrize("name", EMPTY)
def test_no_tokens_at_all(name: str, cache: KVPrefixCache, model: PosKV) -> None:
    empty = EMPTY[name]
    hit = cache.fetch(empty)
    assert (hit.length, hit.reason, hit.prompt_cache) == (0, "too_short", None)
    assert type(hit.remaining) is type(empty)
    assert cache.store(empty, model.filled([1])).reason == "key_too_short"
    assert cache.store(empty, model.make_cache()).reason == "empty"
    assert cache.pin(empty).tokens == 0
    cache.validate()
    assert PrefixIndex().insert(empty).length == 0


class Odd:
    """What has no ``__index__`` and no buffer."""

    def __repr__(self) -> str:
        return "Odd()"


class Refusing:
    """An item that raises when it is read."""

    def __index__(self) -> int:
        raise LookupError("not today")


# (tokens, exception, what its sentence names)
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "negative": ([5, -1, 7], TokenError, "found -1 at position 1"),
    "negative, first": ([-2147483648, 5], TokenError, "found -2147483648 at position 0"),
    "too large": ([5, 6, 2**31], TokenError, "found 2147483648 at position 2"),
    "huge": ([5, 10**30], TokenError, f"found {10**30} at position 1"),
    "huge negative": ((5, -(10**30)), TokenError, f"found {-(10**30)} at position 1"),
    "huge, cut short": ([10**100], TokenError, "found 1" + "0" * 39 + "… at position 0"),
    "float": ([5, 6.0], TypeError, "found 6.0 of type float at position 1"),
    "nan": ([float("nan")], TypeError, "found nan of type float at position 0"),
    "bool": ([5, 6, True], TypeError, "found True of type bool at position 2"),
    "numpy bool": ([np.True_], TypeError, "at position 0"),
    "numpy float": ([5, np.float32(6)], TypeError, "of type float32 at position 1"),
    "text": ([5, "6"], TypeError, "found '6' of type str at position 1"),
    "none": ((5, None), TypeError, "found None of type NoneType at position 1"),
    "nested": ([[5, 6, 7]], TypeError, "found [5, 6, 7] of type list at position 0"),
    "odd": ([5, Odd()], TypeError, "found Odd() of type Odd at position 1"),
    "numpy scalar, negative": ([5, np.int64(-3)], TokenError, "position 1"),
    "numpy scalar, too large": ([np.uint64(2**63)], TokenError, "position 0"),
    "int32 array": (np.array([5, 6, -7], np.int32), TokenError, "found -7 at position 2"),
    "uint32 array": (np.array([5, 2**31 + 3], np.uint32), TokenError, "found 2147483651 at position 1"),
    "int64 array": (np.array([5, 2**40], np.int64), TokenError, f"found {2**40} at position 1"),
    "uint64 array": (np.array([2**64 - 1], np.uint64), TokenError, f"found {2**64 - 1} at position 0"),
    "int16 array": (np.array([5, 6, 7, -1], np.int16), TokenError, "found -1 at position 3"),
    "mlx array": (mx.array([5, -6]), TokenError, "found -6 at position 1"),
    "array.array": (array("i", [5, 6, 7, 8, -9]), TokenError, "found -9 at position 4"),
    "two rows": (np.zeros((2, 3), np.int32), TokenError, "[2, 3]"),
    "two rows, mlx": (mx.zeros((2, 3), mx.int32), TokenError, "[2, 3]"),
    "one column": (np.zeros((3, 1), np.int32), TokenError, "[3, 1]"),
    "three dimensions": (np.zeros((1, 1, 3), np.int32), TokenError, "[1, 1, 3]"),
    "no dimension": (np.array(5), TypeError, "found ndarray"),
    "float array": (np.array([5.0]), TypeError, 'format "d" in ndarray'),
    "mlx float array": (mx.array([5.0]), TypeError, 'format "f" in array'),
    "bool array": (np.array([True]), TypeError, 'format "?" in ndarray'),
    "byte array": (np.array([5], np.int8), TypeError, "ndarray"),
    "object array": (np.array([5], object), TypeError, 'format "O" in ndarray'),
    "big-endian array": (np.array([5], ">i4"), TypeError, ">i"),
    "string": ("5 6 7", TypeError, "found str"),
    "bytes": (b"567", TypeError, "found bytes"),
    "int": (5, TypeError, "found int"),
    "none at all": (None, TypeError, "found NoneType"),
    "dict": ({5: 6}, TypeError, "found dict"),
    "generator": ((at for at in [5]), TypeError, "found generator"),
    "range": (range(3), TypeError, "found range"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tokens_are_named_and_change_nothing(case: str, cache: KVPrefixCache, model: PosKV) -> None:
    tokens, error, says = BAD[case]
    before = cache.stats()
    content = [5] * (len(tokens) if getattr(tokens, "shape", ()) or isinstance(tokens, array) else 1)
    prompt_cache = model.filled(content)
    calls: list[Callable[[], Any]] = [
        lambda: cache.fetch(tokens),
        lambda: cache.fetch(tokens, take=True),
        lambda: cache.peek(tokens),
        lambda: cache.pin(tokens),
        lambda: cache.store(tokens, prompt_cache),
        lambda: cache.store(tokens, prompt_cache, donate=True),
        lambda: cache.session(tokens, model=model).__enter__(),
        lambda: PrefixIndex().insert(tokens),
        lambda: PrefixIndex().match_prefix(tokens),
    ]
    for call in calls:
        with pytest.raises(error, match=re.escape(says)) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert type(caught.value) is error
    cache.validate()
    assert cache.stats() == before
    model.check(cache.fetch([*STORED, 1]).prompt_cache, STORED)
    model.check(prompt_cache, content)


@pytest.mark.parametrize("form", ["list", "behind the KV"])
def test_a_bad_token_behind_the_kv(form: str, cache: KVPrefixCache, model: PosKV) -> None:
    tokens = [5, 4, -1] if form == "list" else np.array([5, 4, -1], np.int32)
    with pytest.raises(TokenError, match="found -1 at position 2"):
        cache.store(tokens, model.filled([5, 4]))


def test_a_bad_token_beyond_the_match_is_found_too(cache: KVPrefixCache) -> None:
    with pytest.raises(TokenError, match="position 5"):
        cache.fetch(np.array([5, 6, 7, 8, 1, -1], np.int32))


def test_an_item_that_raises(cache: KVPrefixCache) -> None:
    with pytest.raises((TokenError, LookupError), match="position 1|not today"):
        cache.fetch([5, Refusing()])
    cache.validate()


def test_a_list_that_shrinks_while_it_is_read(cache: KVPrefixCache) -> None:
    tokens: list[Any] = list(STORED)

    class Shrinking:
        def __index__(self) -> int:
            del tokens[2:]
            return 6

    tokens[1] = Shrinking()
    assert cache.peek(tokens).matched == 2
    cache.validate()


def test_a_list_that_grows_while_it_is_read(cache: KVPrefixCache) -> None:
    tokens: list[Any] = [5, None]

    class Growing:
        def __index__(self) -> int:
            if len(tokens) < 6:
                tokens.extend(STORED[2:])
            return 6

    tokens[1] = Growing()
    assert cache.peek(tokens).matched == 6
    cache.validate()


def test_tokens_changed_after_the_call_change_nothing(cache: KVPrefixCache, model: PosKV) -> None:
    tokens = np.array([50, 51, 52], np.int32)
    cache.store(tokens, model.filled([50, 51, 52]))
    tokens[:] = 0
    cache.validate()
    assert cache.peek([50, 51, 52, 1]).length == 3
    assert cache.peek([0, 0, 0, 0]).reason == "no_entry"


def test_a_session_s_key_is_what_it_was_given(cache: KVPrefixCache, model: PosKV) -> None:
    """An engine's token buffer may be used again while the request runs, and may have to grow."""
    buffers: list[Any] = [np.array([60, 61, 62], np.int32), array("i", [70, 71, 72])]
    for tokens in buffers:
        values = list(tokens)
        with cache.session(tokens, model=model) as session:
            model.grow(session.prompt_cache, values)
            tokens[1] = 9
            if isinstance(tokens, array):
                tokens.append(5)
        assert cache.peek([*map(int, values), 1]).length == 3


def test_an_array_can_grow_after_every_call(cache: KVPrefixCache, model: PosKV) -> None:
    tokens = array("i", STORED)
    hit = cache.fetch(tokens)
    cache.store(tokens, model.filled(STORED))
    pin = cache.pin(tokens)
    tokens.append(1)
    pin.release()
    assert hit.length == 5


# Media -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "error"),
    [
        ([MediaSpan(0, 7, "a")], ConfigError),
        ([MediaSpan(5, 2, "a")], ConfigError),
        ([MediaSpan(0, 3, "a"), MediaSpan(2, 2, "b")], ConfigError),
        ([MediaSpan(2**40, 1, "a")], ConfigError),
        ([(0, 3, "a")], TypeError),
        ("ab", TypeError),
    ],
)
def test_bad_spans_change_nothing(
    spans: Any, error: type[Exception], cache: KVPrefixCache, model: PosKV
) -> None:
    prompt_cache = model.filled(STORED)
    for call in (
        lambda: cache.fetch(STORED, media=spans),
        lambda: cache.peek(STORED, media=spans),
        lambda: cache.pin(STORED, media=spans),
        lambda: cache.store(STORED, prompt_cache, media=spans),
    ):
        with pytest.raises(error):
            call()
    cache.validate()
    assert cache.ntokens == len(STORED)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1, 2, "a"), ConfigError),
        ((0, 0, "a"), ConfigError),
        ((0, 2, ""), ConfigError),
        ((0, 2, None), ConfigError),
        ((0.0, 2, "a"), TypeError),
        ((0, True, "a"), TypeError),
    ],
)
def test_a_span_that_is_none(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        MediaSpan(*arguments)


def test_a_placeholder_s_value_plays_no_part(cache: KVPrefixCache, model: PosKV) -> None:
    """Engines put -1 or an id beyond the vocabulary where an image stands."""
    span = [MediaSpan(1, 2, b"cat")]
    for placeholders in ([0, 0], [3, 4]):
        cache.store([90, *placeholders, 91], model.filled([90, 800, 800, 91]), media=span)
    assert cache.ntokens == len(STORED) + 4
    hit = cache.fetch(np.array([90, -1, -1, 91, 2], np.int32), media=span)
    model.check(hit.prompt_cache, [90, 800, 800, 91])
    assert cache.peek([90, 0, 0, 91, 2]).length == 1
    assert cache.peek([90, 0, 0, 91, 2], media=[MediaSpan(1, 2, "cat")]).length == 1


def test_other_types_are_named(cache: KVPrefixCache, model: PosKV) -> None:
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: cache.fetch(STORED, namespace=None), "namespace"),
        (lambda: cache.store(STORED, model.filled(STORED), namespace=b""), "namespace"),
        (lambda: cache.store(STORED, model.filled(STORED), label=3), "label"),
        (lambda: cache.store(STORED, model.filled(STORED), length=2.0), "length"),
        (lambda: cache.store(STORED, model.filled(STORED), length=True), "length"),
        (lambda: cache.store(STORED, None), "prompt_cache"),
        (lambda: cache.store(STORED, model.filled(STORED)[0]), "prompt_cache"),
        (lambda: cache.drop(None), "namespace"),
        (lambda: cache.stats(5), "namespace"),
    ]
    for call, name in calls:
        with pytest.raises(TypeError, match=name):
            call()
    with pytest.raises(ConfigError, match="length"):
        cache.store(STORED, model.filled(STORED), length=-1)
    cache.validate()


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_cache_of_another_length_is_refused(hybrid: bool, model: PosKV) -> None:
    model = PosKV(KV(), Arrays()) if hybrid else PosKV(KV(), KV())
    cache = KVPrefixCache()
    cache.store(STORED, model.filled(STORED))
    longer = model.filled([*STORED, 1])
    assert cache.store(STORED, longer).reason == "key_too_short"
    assert cache.store(STORED, longer, length=8).reason == "offset_mismatch"
    if not hybrid:
        longer[1].trim(2)
        assert cache.store([*STORED, 1], longer).reason == "offset_mismatch"
        assert cache.store([*STORED, 1], longer, length=6).reason == "offset_mismatch"
        assert cache.store([*STORED, 1], longer, length=5).reason == "already"
    cache.validate()
    assert cache.ntokens == len(STORED)
