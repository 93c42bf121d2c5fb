"""Media spans: which are refused, and that placeholders play no part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvcache import ConfigError, KVPrefixCache, MediaSpan
from tests.support.layers import KV
from tests.support.poskv import PosKV

STORED = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def model() -> PosKV:
    return PosKV(KV())


@pytest.fixture
def cache(model: PosKV) -> KVPrefixCache:
    cache = KVPrefixCache(segment_tokens=4)
    cache.store(STORED, model.filled(STORED))
    return cache


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
        ((0, 2, "picture \ud800"), ConfigError),
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
    assert cache.peek([90, 0, 0, 91, 2], media=[MediaSpan(1, 2, "cow")]).length == 1


def test_a_text_is_its_bytes(cache: KVPrefixCache, model: PosKV) -> None:
    """One content, however its hash is written down."""
    tokens = [90, 0, 0, 91, 2]
    cache.store(tokens, model.filled(tokens), media=[MediaSpan(1, 2, "K\u00e4tzchen")])
    assert cache.peek([*tokens, 1], media=[MediaSpan(1, 2, "K\u00e4tzchen".encode())]).length == 5


@pytest.mark.parametrize("media", [np.array([1, 2]), {1}, [(0, 1, b"x")]], ids=["array", "set", "tuples"])
def test_what_holds_no_spans_is_named(cache: KVPrefixCache, media: Any) -> None:
    with pytest.raises(TypeError, match=r"^media must be an iterable of MediaSpan, found \w+ in it$"):
        cache.fetch(STORED, media=media)
    cache.validate()


def test_an_empty_array_is_no_span_either(cache: KVPrefixCache) -> None:
    assert cache.fetch(STORED, media=np.array([])).length == len(STORED) - 1
