"""Sizes and other parameters: what is read as what, and how the rest is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcache import ConfigError, KVPrefixCache, MediaSpan, PrefixIndex, SystemMemoryPressure
from kvcache.integrations.mlx_lm import PromptCache
from kvcache.memory.limits import resolve_max_buffers, resolve_memory_limit
from kvcache.memory.pressure import ENVIRONMENT
from kvcache.replay.budgets import parse_budget
from tests.support import inside
from tests.support.entries import alive, fill
from tests.support.layers import KV
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable


GIB = 2**30


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        (4_000_000_000, 4 * 10**9),
        ("4GB", 4 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 kB", 1500),
        ("1.5KiB", 1536),
        (" 7 ", 7),
        ("2TB", 2 * 10**12),
        ("3tib", 3 * 2**40),
        ("9B", 9),
        (0, 0),
    ],
)
def test_a_size_is_what_it_says(size: int | str, nbytes: int) -> None:
    assert resolve_memory_limit(size, {}, 0) == nbytes
    index = inside.index(KVPrefixCache(max_bytes=size))
    assert index.make_room(nbytes, 0) is not None
    assert index.make_room(nbytes + 1, 0) is None


@pytest.mark.parametrize(
    "size", ["12 parsecs", "", "GB", "-1", "1e9", "4 G B", "0x10", "nan", "٣GB", -1, 2**62 + 1, "9999999TB"]
)
@pytest.mark.parametrize("name", ["max_bytes", "memory_limit"])
def test_no_size(name: str, size: int | str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        KVPrefixCache(**{name: size})
    assert repr(size) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_bytes", True),
        ("max_bytes", 1.5),
        ("max_bytes", b"4GB"),
        ("max_buffers", True),
        ("max_buffers", 10.0),
        ("max_buffers", "10"),
        ("memory_limit", False),
        ("memory_limit", [1]),
        ("pressure", 0.8),
        ("pressure", object()),
        ("segment_tokens", "1024"),
        ("segment_tokens", True),
        ("max_checkpoints", 2.0),
        ("max_checkpoints", None),
    ],
)
def test_a_parameter_of_another_type(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        KVPrefixCache(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_buffers", -1),
        ("max_buffers", 2**64),
        ("memory_limit", 0.0),
        ("memory_limit", 1.01),
        ("memory_limit", float("nan")),
        ("segment_tokens", 0),
        ("segment_tokens", -5),
        ("segment_tokens", 2**64),
        ("max_checkpoints", 0),
        ("max_checkpoints", 2**64),
        ("gc", "never"),
    ],
)
def test_a_parameter_out_of_range(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        KVPrefixCache(**{name: value})


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda cache: cache.evict(-1), ConfigError),
        (lambda cache: cache.evict("12 parsecs"), ConfigError),
        (lambda cache: cache.evict(1.5), TypeError),
        (lambda cache: cache.evict(True), TypeError),
        (lambda cache: cache.reserve(-1), ConfigError),
        (lambda cache: cache.reserve(None), TypeError),
        (lambda cache: cache.trim_to(nbytes=-1), ConfigError),
        (lambda cache: cache.trim_to(tokens=-1), ConfigError),
        (lambda cache: cache.trim_to(tokens=1.0), TypeError),
        (lambda cache: cache.trim_to(tokens=2**64), ConfigError),
        (lambda cache: cache.evict_idle(-1), ConfigError),
        (lambda cache: cache.evict_idle(float("nan")), ConfigError),
        (lambda cache: cache.evict_idle("soon"), TypeError),
    ],
)
def test_a_bad_argument_changes_nothing(call: Callable[[KVPrefixCache], Any], error: type[Exception]) -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    fill(cache, model, 2, 10)
    with pytest.raises(error):
        call(cache)
    cache.validate()
    assert alive(cache, 2, 10) == [0, 1]


@pytest.mark.parametrize("forever", [float("inf"), 10**400, Fraction(10**400)])
def test_idle_for_ever_is_never_reached(forever: Any) -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    fill(cache, model, 1, 10)
    assert not cache.evict_idle(forever)
    assert len(cache) == 1


def test_default_buffers_follow_the_device() -> None:
    assert resolve_max_buffers(None, {"resource_limit": 499_000}) == 399_200
    assert resolve_max_buffers(None, {}) is None
    assert resolve_max_buffers(7, {"resource_limit": 499_000}) == 7


HUGE = 10**5000
DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: KVPrefixCache(max_bytes=HUGE), "max_bytes"),
        (lambda: KVPrefixCache(max_bytes=DIGITS), "max_bytes"),
        (lambda: KVPrefixCache(max_bytes="9" * 400 + ".5"), "max_bytes"),
        (lambda: KVPrefixCache(max_bytes="9" * 299 + ".5TB"), "max_bytes"),
        (lambda: KVPrefixCache(memory_limit=f"{DIGITS}.5GB"), "memory_limit"),
        (lambda: KVPrefixCache(max_buffers=HUGE), "max_buffers"),
        (lambda: KVPrefixCache(segment_tokens=HUGE), "segment_tokens"),
        (lambda: KVPrefixCache().evict(DIGITS), "nbytes"),
        (lambda: KVPrefixCache().reserve(HUGE), "nbytes"),
        (lambda: KVPrefixCache().trim_to(tokens=HUGE), "tokens"),
        (lambda: KVPrefixCache().evict_idle(-HUGE), "seconds"),
        (lambda: KVPrefixCache().session([1], kv_bits=HUGE), "kv_bits"),
        (lambda: KVPrefixCache().session([1], kv_bits=np.float32(4)), "kv_bits"),
        (lambda: KVPrefixCache().session([1], kv_group_size=np.float64(64)), "kv_group_size"),
        (lambda: KVPrefixCache().peek([1], media=[MediaSpan(HUGE, 1, "x")]), "media span"),
        (
            lambda: KVPrefixCache().peek([1], media=[MediaSpan(0, HUGE, "x"), MediaSpan(9, 1, "x")]),
            "media span",
        ),
        (lambda: MediaSpan(0, -HUGE, "x"), "media span"),
        (lambda: SystemMemoryPressure(HUGE), "threshold"),
        (lambda: SystemMemoryPressure(Fraction(HUGE)), "threshold"),
        (lambda: SystemMemoryPressure(True), "threshold"),
        (lambda: PromptCache(max_size=-HUGE), "max_size"),
        (lambda: PromptCache().insert_cache("m", [1], [], length=HUGE), "length"),
        (lambda: PrefixIndex(max_bytes=HUGE), "sizes"),
        (lambda: PrefixIndex().evict(HUGE), "sizes"),
        (lambda: parse_budget(DIGITS), "budget"),
        (lambda: parse_budget(f"{DIGITS}%"), "budget"),
        (lambda: parse_budget("9" * 12 + "%"), "budget"),
    ],
)
def test_numbers_beyond_what_python_converts(call: Callable[[], Any], name: str) -> None:
    """One short sentence, whatever the number's type and however many its digits."""
    with pytest.raises(ConfigError, match=name) as caught:
        call()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("limit", "info", "expected"),
    [
        (0.25, {"memory_size": 16 * GIB}, 4 * GIB),
        (0.5, {"max_recommended_working_set_size": 12 * GIB, "memory_size": 16 * GIB}, 6 * GIB),
        (0.5, {"total_memory": 80 * GIB}, 40 * GIB),
        (0.25, {}, 2 * GIB),
        (1.0, {"memory_size": 16 * GIB}, 16 * GIB),
        (1, {"memory_size": 16 * GIB}, 1),
        ("48GB", {"memory_size": 16 * GIB}, 48 * 10**9),
        (None, {"memory_size": 16 * GIB}, None),
    ],
)
def test_memory_limit_in_bytes_or_as_a_fraction(
    limit: Any, info: dict[str, int], expected: int | None
) -> None:
    """REPORTS 34, with a system of 8 GiB behind a device that tells nothing."""
    assert resolve_memory_limit(limit, info, 8 * GIB) == expected


@pytest.mark.parametrize("value", ["", "much", "0", "-0.5", "1.5", "nan", "85"])
def test_a_bad_environment_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, value)
    with pytest.raises(ConfigError, match=ENVIRONMENT):
        SystemMemoryPressure()
    with pytest.raises(ConfigError, match="threshold"):
        SystemMemoryPressure(float("inf"))
