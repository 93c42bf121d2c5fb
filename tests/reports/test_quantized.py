"""Quantised KV."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from kvcache import KVPrefixCache, model_namespace
from tests.support.layers import KV, Quantized
from tests.support.memory import active, charged
from tests.support.models import prompt
from tests.support.poskv import PosKV, held

from .steps import get, put

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("order", [(list, tuple), (tuple, list), (list, list)])
def test_parts_as_a_list_or_as_a_tuple(order: tuple[type, type]) -> None:
    """85. ``mx.quantize`` gives a list and mlx-lm a tuple; the one continues what the other began."""
    model, cache = PosKV(Quantized(), Quantized(bits=8)), KVPrefixCache(segment_tokens=8)
    for length, kind in zip((20, 33), order, strict=True):
        filled = model.filled(prompt(length))
        for layer in filled:
            layer.keys, layer.values = kind(layer.keys), kind(layer.values)
        stored = cache.store(prompt(length), filled)
        assert (stored.reason, stored.length) == ("stored", length)
    assert stored.new_tokens == 13
    assert get(cache, model, [*prompt(33), 1]).length == 33


def _half_precision(tokens: int) -> KVCache:
    cache = KVCache()
    rows = mx.arange(2 * tokens * 64).reshape(1, 2, tokens, 64).astype(mx.float16) / 999
    cache.update_and_fetch(rows, -rows)
    return cache


@pytest.mark.parametrize(("bits", "ratio"), [(4, 0.28125), (8, 0.53125), (2, 0.15625)])
def test_quantised_in_is_quantised_out(bits: int, ratio: float) -> None:
    """87. To the bit what was stored; 4 bits with a scale and a bias a group of 64: 0.28 of float16."""
    cache, base = KVPrefixCache(segment_tokens=16), active()
    plain = cache.store(prompt(100), [_half_precision(100)], namespace="plain")
    made = _half_precision(100).to_quantized(group_size=64, bits=bits)
    packed = cache.store(prompt(100), [made], namespace="packed")
    assert packed.nbytes / plain.nbytes == ratio
    expected = [np.array(array[..., :100, :]).tobytes() for array in held([made])]
    del made
    assert active() - base == charged(cache)
    assert cache.nbytes == plain.nbytes + packed.nbytes
    (found,) = cache.fetch([*prompt(100), 1], namespace="packed").prompt_cache
    assert (type(found), found.bits, found.group_size, found.offset) == (QuantizedKVCache, bits, 64, 100)
    assert [np.array(array[..., :100, :]).tobytes() for array in held([found])] == expected


class QuantizedWindow:
    """What mlx-lm has no class for yet: a window of packed rows, and how far it has come."""

    def __init__(self, tokens: int) -> None:
        self.offset = tokens
        rows = mx.arange(8 * 64).reshape(1, 1, 8, 64).astype(mx.float32)
        self.keys, self.values = mx.quantize(rows, 64, 4), mx.quantize(-rows, 64, 4)

    def state(self) -> list[list[Any]]:
        return [self.offset, *([array.tolist() for array in side] for side in (self.keys, self.values))]


class Locked(QuantizedWindow):
    """The same with something in it that cannot be copied."""

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.lock = threading.Lock()


class Queued(deque):
    """A class whose contents are in a base that is written in C."""

    def __init__(self, tokens: int) -> None:
        super().__init__([mx.ones((1, 1, tokens, 8))])
        self.offset = tokens


def test_a_class_nobody_knows_is_kept_whole() -> None:
    """88. As an opaque checkpoint, the caller's own on each way."""
    cache, layer, made = KVPrefixCache(), PosKV(KV()), QuantizedWindow(20)
    expected = made.state()
    cache.store(prompt(20), [*layer.filled(prompt(20)), made])
    for array in (*made.keys, *made.values):
        array[...] = 0
    for _ in range(2):
        hit = cache.fetch([*prompt(20), 1])
        assert hit.length == 20
        found = hit.prompt_cache[1]
        assert type(found) is QuantizedWindow
        assert found.state() == expected
        found.offset, found.keys[0][...] = 99, 0
    assert cache.fetch([*prompt(12), 999]).reason == "no_checkpoint"
    cache.validate()


@pytest.mark.parametrize("make", [Locked, Queued])
def test_a_class_that_cannot_be_copied_is_refused_by_name(make: Callable[[int], Any]) -> None:
    """88. With a reason and the class's name; nothing is changed, and nothing crashes later."""
    cache, model = KVPrefixCache(), PosKV(KV())
    refused = cache.store(prompt(20), [*model.filled(prompt(20)), make(20)])
    assert (refused.reason, refused.length, cache.nbytes) == ("unsupported_layer", 0, 0)
    assert make.__name__ in refused.detail
    assert cache.fetch(prompt(20)).reason == "no_entry"
    assert dict(cache.stats().refused_by_reason) == {"unsupported_layer": 1}


def test_bits_never_mix_in_one_cache() -> None:
    """89. 4 and 6 bits, and none, of one prompt in one namespace: each answer is of one kind."""
    models = {4: PosKV(Quantized(bits=4)), 6: PosKV(Quantized(bits=6)), 16: PosKV(KV())}
    cache = KVPrefixCache(segment_tokens=4)
    put(cache, models[4], prompt(20))
    put(cache, models[6], prompt(10))
    put(cache, models[16], prompt(6) + prompt(10, first=1))
    assert get(cache, models[4], [*prompt(20), 1]).length == 20
    assert get(cache, models[4], [*prompt(14), 999]).length == 14
    assert get(cache, models[16], prompt(6) + prompt(20, first=1)).length == 16
    assert put(cache, models[6], prompt(30)).new_tokens == 20
    assert get(cache, models[6], [*prompt(30), 1]).length == 30


@pytest.mark.parametrize(("one", "two"), [(4, 6), (8, None)])
def test_a_change_of_bits_is_another_namespace(one: int, two: int | None) -> None:
    """89. For engines that run one model with several: a change finds nothing of the other's."""
    cache, model = KVPrefixCache(), PosKV(Quantized(bits=one))
    put(cache, model, prompt(20), namespace=model_namespace("llama@1", kv_bits=one))
    other = cache.fetch([*prompt(20), 1], namespace=model_namespace("llama@1", kv_bits=two))
    assert (other.length, other.reason) == (0, "no_entry")
