"""Bad tokens and other bad arguments: the documented exception, and nothing changed."""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from kvcache import ConfigError, KVPrefixCache, PrefixIndex, TokenError
from tests.support.layers import KV, Arrays
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable


STORED = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def model() -> PosKV:
    return PosKV(KV())


@pytest.fixture
def cache(model: PosKV) -> KVPrefixCache:
    cache = KVPrefixCache(segment_tokens=4)
    cache.store(STORED, model.filled(STORED))
    return cache


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
