"""All that an object of an unknown class keeps, read out and put into a new one.

Attributes live in ``__dict__``, in ``__slots__`` anywhere in the class's bases, and as the contents
of a class derived from ``dict`` or ``list``. Whatever else an object may keep cannot be seen from
Python, so such classes are refused: copied whole, or not at all.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
import numpy as np

from kvcache.layers.base import Refusal
from kvcache.layers.numbers import Mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcache.arrays import Array

# Immutable, so an object may share them with its copies. Subclasses may carry more and are refused.
_PLAIN: Final = frozenset({int, float, complex, str, bytes, bool, type(None), mx.Dtype})
# Bases whose instances keep nothing but what is read here.
_READ: Final = (object, dict, list)
_HEAP_TYPE: Final = 1 << 9
_DEPTH: Final = 8


@dataclass(frozen=True)
class Slot:
    """The place of the array with this number."""

    number: int


@dataclass(eq=False)
class Node:
    """A container: one that is met twice is one object in the copy, too."""

    kind: type
    items: list[Any]


@dataclass
class Snapshot:
    """What an object keeps, without its arrays.

    Attributes:
        cls: Its class.
        attributes: By name, from ``__dict__`` and ``__slots__``.
        items: The contents of a dict (keys and values in turn) or of a list; None for others.
    """

    cls: type
    attributes: Node
    items: Node | None

    def rebuild(self, arrays: list[Array]) -> Any:
        """A new object that keeps the same, around these arrays."""
        made: dict[int, Any] = {}
        base = next(base for base in (dict, list, object) if issubclass(self.cls, base))
        copy: Any = base.__new__(self.cls)
        # The class's own __setattr__ may compute: attributes are set as they were read.
        for name, value in _build(self.attributes, arrays, made).items():
            object.__setattr__(copy, name, value)
        if self.items is not None:
            items = _build(self.items, arrays, made)
            if base is dict:
                dict.update(copy, items)
            else:
                list.extend(copy, items)
        return copy

    def same(self, other: Snapshot) -> bool:
        """Whether the other keeps the same values, its arrays at the same places."""
        pairs: dict[int, Node] = {}
        return (
            self.cls is other.cls
            and _same(self.attributes, other.attributes, pairs)
            and _same(self.items, other.items, pairs)
        )


def snapshot(cache: Any) -> tuple[Snapshot, list[Array]]:
    """What a layer cache keeps, and its arrays. Copies nothing.

    Raises:
        Refusal: ``unsupported_layer``: it keeps something that cannot be read or copied.
    """
    cls = type(cache)
    arrays: list[Array] = []
    for base in cls.__mro__:
        # Types written in C keep state of their own.
        if not base.__flags__ & _HEAP_TYPE and base not in _READ:
            raise unsupported(cls, f"{base.__qualname__} keeps contents that cannot be read")
    memo: dict[int, Any] = {}
    # Both live until the end: an id is one object's only so long.
    attributes = dict(_attributes(cache))
    contents: dict[Any, Any] | list[Any] | None = None
    if isinstance(cache, dict):
        contents = dict(dict.items(cache))
    elif isinstance(cache, list):
        contents = list(list.__iter__(cache))
    kept = _collect(attributes, arrays, cls, memo, 0)
    items = None if contents is None else _collect(contents, arrays, cls, memo, 0)
    return Snapshot(cls, kept, items), arrays


def unsupported(cls: type, why: str) -> Refusal:
    """The refusal of a layer of this class."""
    return Refusal(
        "unsupported_layer",
        f"{cls.__module__}.{cls.__qualname__} cannot be copied: {why}; "
        "kvcache.layers.register says how it can",
    )


def _attributes(cache: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(cache, "__dict__", {}).items()
    for base in type(cache).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            # As the compiler mangles a private name.
            private = name.startswith("__") and not name.endswith("__")
            full = f"_{base.__name__.lstrip('_')}{name}" if private else name
            try:
                yield full, object.__getattribute__(cache, full)
            except AttributeError:
                continue  # not set


def _collect(value: Any, arrays: list[Array], cls: type, memo: dict[int, Any], depth: int) -> Any:
    if isinstance(value, mx.array):
        if id(value) not in memo:
            memo[id(value)] = Slot(len(arrays))
            arrays.append(value)
        return memo[id(value)]
    if type(value) is Mark:
        return int(value)
    if type(value) in _PLAIN or isinstance(value, enum.Enum | np.generic):
        return value
    kind = type(value)
    if kind not in (list, tuple, dict, set, frozenset) or depth >= _DEPTH:
        raise unsupported(cls, f"it holds a {kind.__qualname__}")
    if id(value) not in memo:
        if kind in (dict, set, frozenset):
            # Plain texts and numbers, or tuples of them: they are found again in the copy.
            for key in value:
                _require_plain(key, cls)
        parts = [part for pair in value.items() for part in pair] if kind is dict else list(value)
        memo[id(value)] = node = Node(kind, [])
        node.items = [_collect(part, arrays, cls, memo, depth + 1) for part in parts]
    return memo[id(value)]


def _require_plain(key: Any, cls: type) -> None:
    if type(key) is tuple:
        for part in key:
            _require_plain(part, cls)
    elif type(key) not in _PLAIN and not isinstance(key, enum.Enum | np.generic):
        raise unsupported(cls, f"it holds a dict or set with a {type(key).__qualname__} as key")


def _build(plan: Any, arrays: list[Array], made: dict[int, Any]) -> Any:
    if isinstance(plan, Slot):
        return arrays[plan.number]
    if not isinstance(plan, Node):
        return plan
    if id(plan) not in made:
        if plan.kind in (tuple, set, frozenset):
            made[id(plan)] = plan.kind(_build(item, arrays, made) for item in plan.items)
        else:
            copy: Any = plan.kind()
            made[id(plan)] = copy
            parts = [_build(item, arrays, made) for item in plan.items]
            if plan.kind is dict:
                copy.update(zip(parts[::2], parts[1::2], strict=True))
            else:
                copy.extend(parts)
    return made[id(plan)]


def _same(mine: Any, theirs: Any, pairs: dict[int, Node]) -> bool:
    if not isinstance(mine, Node):
        return mine is theirs or (type(mine) is type(theirs) and bool(mine == theirs))
    if id(mine) in pairs:
        return pairs[id(mine)] is theirs
    if not isinstance(theirs, Node) or mine.kind is not theirs.kind or len(mine.items) != len(theirs.items):
        return False
    pairs[id(mine)] = theirs
    return all(_same(one, other, pairs) for one, other in zip(mine.items, theirs.items, strict=True))
