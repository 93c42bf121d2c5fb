"""Marks: detect whether layer caches have been touched since a session last looked.

An exception can interrupt a forward pass anywhere, even between writing a layer's rows and advancing its
offset. Counters do not show that. But almost every step of an update replaces an array or a number in the
layer, so comparing them with those seen earlier reveals it.

The exception is a full rotating window. It writes a row in place, by assigning to a slice of the same array
object, before it counts the row. The slice ends at ``_idx + tokens``, so a
:class:`~kvcache.layers.numbers.Mark` in place of that number detects the addition.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from kvcache.layers.attributes import snapshot
from kvcache.layers.base import SpanAdapter
from kvcache.layers.numbers import Mark
from kvcache.layers.recurrent import Opaque

if TYPE_CHECKING:
    from kvcache.layers.prompt_cache import Prompt
    from kvcache.layers.registry import Adapter

_INDEX = "_idx"


class Marks:
    """The state of all layers of a prompt cache at one point in time.

    References arrays only weakly, so what the caller drops is freed.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._indexes: list[Mark | None] = []
        for cache in prompt.caches:
            index = getattr(cache, _INDEX, None)
            mark = None
            if isinstance(index, int):
                cache._idx = mark = Mark(index)
            self._indexes.append(mark)
        self._layers = _look(prompt)

    def hold(self, prompt: Prompt) -> bool:
        """Whether no update of any layer appears to have begun since."""
        now = _look(prompt)
        if len(now) != len(self._layers):
            return False
        for cache, mark in zip(prompt.caches, self._indexes, strict=True):
            if mark is not None and (mark.used or getattr(cache, _INDEX, None) is not mark):
                return False
        return all(_equal(*pair) for pair in zip(self._layers, now, strict=True))


def unmark(prompt: Prompt) -> None:
    """Puts plain numbers back."""
    for cache in prompt.caches:
        if type(getattr(cache, _INDEX, None)) is Mark:
            cache._idx = int(cache._idx)


def _look(prompt: Prompt) -> list[list[Any]]:
    """Each layer's class, numbers, and weak references to its arrays."""
    layers = []
    for adapter, cache in zip(prompt.adapters, prompt.caches, strict=True):
        parts: list[Any] = [type(cache)]
        _look_into(adapter, cache, parts)
        layers.append(parts)
    return layers


def _look_into(adapter: Adapter, cache: Any, parts: list[Any]) -> None:
    if isinstance(adapter, Opaque):
        meta, arrays = snapshot(cache)
        parts.append(json.dumps(meta))
        parts.extend(map(weakref.ref, arrays))
    elif hasattr(cache, "__dict__"):
        for value in vars(cache).values():
            _walk(value, parts)
    else:
        # Without a __dict__, only the adapter can read it.
        parts.append(adapter.offset(cache))
        arrays = adapter.arrays(cache) if isinstance(adapter, SpanAdapter) else adapter.image(cache).arrays
        parts.extend(map(weakref.ref, arrays))


def _walk(value: Any, parts: list[Any]) -> None:
    if isinstance(value, mx.array):
        parts.append(weakref.ref(value))
    elif isinstance(value, list | tuple):
        for item in value:
            _walk(item, parts)
    else:
        parts.append(value)


def _equal(before: list[Any], now: list[Any]) -> bool:
    return len(before) == len(now) and all(map(_is, before, now))


def _is(before: Any, now: Any) -> bool:
    if isinstance(before, weakref.ref):
        return isinstance(now, weakref.ref) and before() is not None and before() is now()
    return before is now or (isinstance(before, int | float | str) and bool(before == now))
