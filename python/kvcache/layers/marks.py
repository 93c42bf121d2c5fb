"""Signs by which a session sees that layer caches have not been touched since it looked last.

An exception may leave a forward pass anywhere: between two layers, and between a layer's rows and
its offset. No count shows that. But nearly every step of an update puts another array or another
number into the layer, and what a session noted is then no longer there.

The one exception is a rotating window that is full: it writes a row in place, by an assignment to a
slice of the same array object, before it counts it. The slice ends at ``_idx + tokens``, so a
:class:`~kvcache.layers.numbers.Mark` in place of that number sees the addition.
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
    """What all layers of a prompt cache were when they were looked at.

    Holds no array: what a caller drops is free.
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
        """Whether no update of any layer has begun since, as far as can be seen."""
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
        # Only its adapter knows what it keeps.
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
