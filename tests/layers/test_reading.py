"""What is read off a caller's layer caches: lengths, numbers, state wherever a class keeps it."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)

from kvcache import ConfigError, KVPrefixCache, layers
from tests.support.failures import assert_settled
from tests.support.layers import KV, Arrays, Chunked, List, Opaque, Rotating
from tests.support.models import prompt
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable

N = 20


# Lengths.


class Uncounted:
    """States of an unknown class that counts nothing."""

    def __init__(self) -> None:
        self.state = mx.ones((1, 4))


def uncounted() -> dict[str, Callable[[], list[Any]]]:
    model = {
        "states": PosKV(Arrays(), Arrays()),
        "in a list": PosKV(List(Arrays(), Arrays()), Arrays()),
        "in a list of lists": PosKV(List(List(Arrays()), Arrays())),
    }
    made = {name: lambda each=each: each.filled(prompt(N)) for name, each in model.items()}
    return made | {"unknown class": lambda: [Uncounted(), Uncounted()]}


@pytest.mark.parametrize("kind", uncounted())
@pytest.mark.parametrize("donate", [False, True])
def test_a_length_that_no_layer_knows_is_asked_for(kind: str, donate: bool) -> None:
    cache, made = KVPrefixCache(), uncounted()[kind]()
    refused = cache.store(prompt(N), made, donate=donate)
    assert (refused.reason, refused.length, refused.new_tokens) == ("unknown_length", 0, 0)
    assert "length=" in refused.detail
    assert len(cache) == cache.nbytes == 0
    assert cache.store(prompt(N), made, length=N + 1).reason in ("key_too_short", "offset_mismatch")
    assert cache.store([*prompt(N), 7], made, length=N, donate=donate).length == N
    assert cache.fetch([*prompt(N), 7, 8]).length == N
    assert dict(cache.stats().refused_by_reason)["unknown_length"] == 1
    assert_settled(cache)


@pytest.mark.parametrize("layer", [KV(), List(KV(), Arrays()), Opaque()])
def test_layers_that_count_answer_for_those_that_do_not(layer: Any) -> None:
    model, cache = PosKV(Arrays(), layer), KVPrefixCache()
    made = model.filled(prompt(N))
    if isinstance(layer, Opaque):
        made[1].offset = N
    assert cache.store([*prompt(N), 7], made).length == N
    assert cache.store(prompt(N), made, length=N).reason == "already"


def test_an_empty_state_holds_no_tokens() -> None:
    cache = KVPrefixCache()
    assert cache.store(prompt(N), [ArraysCache(2)]).reason == "empty"
    assert cache.store(prompt(N), [ArraysCache(2)], length=N).reason in ("empty", "offset_mismatch")
    assert cache.store(prompt(N), [Uncounted()], length=0).reason == "empty"


# Numbers.


def rows(cache: Any, tokens: int = N) -> Any:
    side = mx.ones((1, 1, tokens, 64))
    cache.update_and_fetch(side, side)
    return cache


LAYERS: dict[str, Callable[[], Any]] = {
    "KVCache": lambda: rows(KVCache()),
    "QuantizedKVCache": lambda: rows(KVCache()).to_quantized(group_size=64, bits=4),
    "RotatingKVCache": lambda: rows(RotatingKVCache(max_size=8, keep=2)),
    "ChunkedKVCache": lambda: rows(ChunkedKVCache(8)),
}
NUMBERS = [
    ("KVCache", "offset"),
    ("QuantizedKVCache", "offset"),
    ("QuantizedKVCache", "group_size"),
    ("QuantizedKVCache", "bits"),
    ("RotatingKVCache", "offset"),
    ("RotatingKVCache", "max_size"),
    ("RotatingKVCache", "keep"),
    ("RotatingKVCache", "_idx"),
    ("ChunkedKVCache", "offset"),
    ("ChunkedKVCache", "chunk_size"),
    ("ChunkedKVCache", "start_position"),
]
REASONS = ("offset_mismatch", "unsupported_layer")


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize(
    "bad", [3.7, float("nan"), float("inf"), "4", -1, None, True, np.float32(2.5), mx.array([3, 4]), [4]]
)
def test_a_number_that_is_none_is_refused(kind: str, name: str, bad: Any) -> None:
    cache, layer = KVPrefixCache(), LAYERS[kind]()
    setattr(layer, name, bad)
    stored = cache.store(prompt(N), [layer])
    assert stored.reason in REASONS
    assert stored.detail
    assert (stored.length, cache.nbytes) == (0, 0)
    assert_settled(cache)


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize("same", [float, np.int64, np.float32, lambda n: np.array([n]), mx.array])
def test_a_whole_number_of_any_type_is_taken(kind: str, name: str, same: Callable[[int], Any]) -> None:
    cache, layer = KVPrefixCache(), LAYERS[kind]()
    setattr(layer, name, same(getattr(layer, name)))
    assert cache.store(prompt(N), [layer]).length == N
    found = cache.fetch([*prompt(N), 1]).prompt_cache[0]
    assert type(getattr(found, name)) is int
    found.update_and_fetch(mx.ones((1, 1, 1, 64)), mx.ones((1, 1, 1, 64)))


@pytest.mark.parametrize("bad", [3.7, float("nan"), "4", -1, mx.array([1, 2])])
def test_an_unknown_class_s_offset_is_read_as_carefully(bad: Any) -> None:
    cache, layer = KVPrefixCache(), Uncounted()
    layer.offset = bad  # type: ignore[attr-defined]
    assert cache.store(prompt(N), [layer]).reason == "offset_mismatch"
    assert cache.nbytes == 0


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("QuantizedKVCache", {"bits": 8}),
        ("QuantizedKVCache", {"group_size": 32}),
        ("RotatingKVCache", {"keep": 8}),
        ("RotatingKVCache", {"_idx": 1000}),
        ("ChunkedKVCache", {"start_position": N + 1}),
        ("RotatingKVCache", {"values": mx.ones((1, 1, N + 1, 64))}),
        ("ChunkedKVCache", {"values": mx.ones((1, 1, N, 64))}),
    ],
)
def test_numbers_that_contradict_the_arrays(kind: str, changed: dict[str, Any]) -> None:
    cache, layer = KVPrefixCache(), LAYERS[kind]()
    for name, value in changed.items():
        setattr(layer, name, value)
    assert cache.store(prompt(N), [layer]).reason in REASONS
    assert cache.nbytes == 0


@pytest.mark.parametrize("chunk", [1, 3, 5, N])
@pytest.mark.parametrize("trimmed", [1, 2, 7])
@pytest.mark.parametrize("keep", [0, 2, None])
def test_a_window_trimmed_after_it_dropped_tokens(keep: int | None, chunk: int, trimmed: int) -> None:
    """ChunkedKVCache says that it can be trimmed at any time; what it has dropped does not come back."""
    model = PosKV(KV(), Chunked(8) if keep is None else Rotating(8, keep=keep))
    layers, cache = model.filled(prompt(N), chunk=chunk), KVPrefixCache()
    for layer in layers:
        layer.trim(trimmed)
    # A ring of exactly the window shows nothing, and says itself that it cannot be trimmed.
    if keep is not None and layers[1].keys.shape[-2] == 8:
        return
    tokens = prompt(N - trimmed)
    stored = cache.store(tokens, layers)
    assert stored.reason in ("stored", "offset_mismatch")
    hit = cache.fetch([*tokens, 1])
    model.check(hit.prompt_cache or model.make_cache(), tokens[: hit.length])
    assert_settled(cache)


@pytest.mark.parametrize("trimmed", [1, 3])
def test_a_window_trimmed_in_time_is_stored(trimmed: int) -> None:
    for window in (Chunked(32), Rotating(32), Rotating(32, keep=2)):
        model, cache = PosKV(window), KVPrefixCache()
        layers = model.filled(prompt(N), chunk=3)
        layers[0].trim(trimmed)
        tokens = prompt(N - trimmed)
        assert cache.store(tokens, layers).length == len(tokens)
        model.check(cache.fetch([*tokens, 1]).prompt_cache, tokens)


# State wherever a class keeps it.


class Base:
    __slots__ = ("__hidden", "offset")

    def hide(self, value: Any) -> None:
        self.__hidden = value

    def hidden(self) -> Any:
        return self.__hidden


class Slots(Base):
    """Slots of a base, one of them private, beside attributes."""

    def __init__(self) -> None:
        self.offset = N
        self.hide([mx.array([[5.0]]), "text"])
        self.keys = mx.ones((1, 1, N, 2))

    def seen(self) -> Any:
        return self.offset, self.hidden()[0].tolist(), self.hidden()[1], self.keys.tolist()


class OnlySlots:
    __slots__ = "rows"  # noqa: PLC0205 - Python takes it, so some write it

    def __init__(self) -> None:
        self.rows = mx.ones((1, N))

    def seen(self) -> Any:
        return self.rows.tolist()


class Mapping(dict):
    def __init__(self) -> None:
        super().__init__(state=mx.ones((1, 3)), steps=[1, {2: (mx.zeros((1,)), None)}])
        self.offset = N

    def seen(self) -> Any:
        held = self["steps"][1][2]
        return self.offset, self["state"].tolist(), self["steps"][0], held[0].tolist(), held[1], len(self)


class Listing(list):
    def __init__(self) -> None:
        super().__init__([mx.ones((1, 2)), None, 3])

    def seen(self) -> Any:
        return self[0].tolist(), self[1:]


class Module(nn.Module):
    """A dict by birth."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = mx.ones((1, 2))
        self.steps = 3
        self.marks = {1, "two"}

    def seen(self) -> Any:
        return self.memory.tolist(), self.steps, self.marks


class Shared:
    """Two names for one list, and for one array; and a list that holds itself."""

    def __init__(self) -> None:
        self.one = self.other = [mx.ones((1, 2))]
        self.array = self.one[0]
        self.one.append(self.other)

    def seen(self) -> Any:
        shared = self.one is self.other and self.one[1] is self.one and self.array is self.one[0]
        return shared, self.array.tolist()


class Careful:
    """Its own __setattr__ computes."""

    def __init__(self) -> None:
        object.__setattr__(self, "state", mx.ones((1, 2)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("set it through me")

    def seen(self) -> Any:
        return self.state.tolist()


@pytest.mark.parametrize("make", [Slots, OnlySlots, Mapping, Listing, Module, Shared, Careful])
@pytest.mark.parametrize("donate", [False, True])
def test_all_that_a_class_keeps_comes_back(make: Callable[[], Any], donate: bool) -> None:
    cache, layer = KVPrefixCache(), make()
    expected = layer.seen()
    assert cache.store(prompt(N), [layer], length=N, donate=donate).reason == "stored"
    for _ in range(2):
        found = cache.fetch([*prompt(N), 1]).prompt_cache[0]
        assert type(found) is make
        assert found is not layer
        assert found.seen() == expected
    assert_settled(cache)


class Queue(deque):
    def __init__(self) -> None:
        super().__init__([mx.ones((1, 2))])


class Ordered(OrderedDict):
    def __init__(self) -> None:
        super().__init__(state=mx.ones((1, 2)))


class Pair(tuple):
    __slots__ = ()

    def __new__(cls) -> Any:
        return super().__new__(cls, (mx.ones((1, 2)), 3))


class Keeps:
    def __init__(self, other: Any) -> None:
        self.state, self.other = mx.ones((1, 2)), other


class Sneaky:
    """Does not give a name back as it was set."""

    def __init__(self) -> None:
        self.__dict__["state"] = mx.ones((1, 2))

    @property
    def state(self) -> Any:
        return self.__dict__["state"]


@pytest.mark.parametrize(
    "make",
    [
        Queue,
        Ordered,
        Pair,
        Sneaky,
        lambda: Keeps(threading.Lock()),
        lambda: Keeps(deque([1])),
        lambda: Keeps({1, bytearray(2).decode, 2}),
        lambda: Keeps(Keeps(1)),
        lambda: Keeps({mx.array(1): 2}),
        lambda: Keeps(np.ones(2)),
    ],
)
def test_what_cannot_be_copied_whole_is_refused(make: Callable[[], Any]) -> None:
    cache, layer = KVPrefixCache(), make()
    refused = cache.store(prompt(N), [layer], length=N, donate=True)
    assert (refused.reason, cache.nbytes) == ("unsupported_layer", 0)
    assert type(layer).__name__ in refused.detail
    assert cache.fetch([*prompt(N), 1]).reason == "no_entry"
    assert_settled(cache)


def test_what_cannot_be_built_is_found_at_the_store() -> None:
    class Wanting(KVCache):
        def __init__(self, needed: int) -> None:
            super().__init__()
            self.needed = needed

    layers.register(Wanting, "span")
    cache, layer = KVPrefixCache(), rows(Wanting(3))
    refused = cache.store(prompt(N), [layer], donate=True)
    assert refused.reason == "unsupported_layer"
    assert "needed" in refused.detail
    assert layer.keys is not None
    assert cache.fetch([*prompt(N), 1]).reason == "no_entry"


# One object at several places.


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize(
    "group",
    [
        lambda layer: [layer, layer],
        lambda layer: [CacheList(layer, layer), layer],
        lambda layer: [CacheList(layer, CacheList(layer))],
    ],
)
@pytest.mark.parametrize("kind", [*LAYERS, "ArraysCache"])
def test_a_shared_layer_is_stored_once_and_stays_shared(
    kind: str, group: Callable[[Any], list[Any]], donate: bool
) -> None:
    if kind == "ArraysCache":
        layer: Any = ArraysCache(1)
        layer[0] = mx.ones((1, 4))
    else:
        layer = LAYERS[kind]()
    cache = KVPrefixCache()
    alone = cache.store(prompt(N), [layer], length=N, namespace="alone").nbytes
    assert cache.store(prompt(N), group(layer), length=N, donate=donate).reason == "stored"
    assert cache.stats("").nbytes == alone
    found = list(leaves(cache.fetch([*prompt(N), 1]).prompt_cache))
    assert len(found) == len(list(leaves(group(layer))))
    assert all(each is found[0] for each in found)
    assert_settled(cache)


def leaves(prompt_cache: Any) -> Any:
    for cache in prompt_cache:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def test_arrays_that_another_thread_left_lazy_are_one_sentence() -> None:
    made = [rows(KVCache()), rows(KVCache())]

    lazy: list[Any] = []
    worker = threading.Thread(target=lambda: lazy.append(mx.ones((1, 1, N, 64)) * 2))
    worker.start()
    worker.join()
    made[1].keys = lazy[0]
    cache = KVPrefixCache()
    with pytest.raises(ConfigError, match="made on another thread"):
        cache.store(prompt(N), made)
    assert made[0].keys is not None
    assert_settled(cache)
    assert cache.nbytes == 0


@pytest.mark.parametrize("form", [list, np.array, mx.array])
def test_a_hit_can_be_compared_and_hashed(form: Callable[[list[int]], Any]) -> None:
    cache = KVPrefixCache()
    cache.store(prompt(N), [rows(KVCache())])
    one, other = cache.fetch(form(prompt(N))), cache.fetch(form(prompt(N)))
    assert len({one, other, one}) == 2
    assert one == one  # noqa: PLR0124
    assert one != other
