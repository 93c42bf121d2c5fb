"""Tokens in every form that is accepted, and every one that is not."""

from __future__ import annotations

import threading
from array import array
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from kvcache import ConfigError, KVPrefixCache, PrefixIndex
from tests.support.layers import KV
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
    "memoryview": lambda values: memoryview(array("i", values)),
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


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_a_memoryview_of_one_row(dtype: Any, cache: KVPrefixCache, model: PosKV) -> None:
    """Python slices none; the rest is a list."""
    tokens = memoryview(np.array([ASKED], dtype))
    for hit in (cache.fetch(tokens), cache.peek(tokens)):
        assert (hit.length, hit.remaining) == (4, ASKED[4:])
    assert cache.store(tokens, model.filled(ASKED)).length == len(ASKED)
    cache.reserve(0, protect=cache.fetch(tokens))


def test_lazy_tokens_of_another_thread(cache: KVPrefixCache, model: PosKV) -> None:
    """What cannot be computed here says so, and is not said to be of the wrong type."""
    made: list[mx.array] = []

    def make() -> None:
        with mx.stream(mx.new_stream(mx.default_device())):
            made.append(mx.array(ASKED) + 0)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    for call in (
        lambda: cache.fetch(made[0]),
        lambda: cache.store(made[0], model.filled(ASKED)),
        lambda: cache.session(made[0]),
        lambda: cache.pin(made[0]),
        lambda: PrefixIndex().insert(made[0]),
        lambda: PrefixIndex().match_prefix(made[0]),
    ):
        with pytest.raises(ConfigError, match="made on another thread and never computed"):
            call()
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
