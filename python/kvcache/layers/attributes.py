"""Reads everything that an object of an unknown class holds as data, and builds a new object from it.

Values live in ``__dict__``, in the ``__slots__`` of the class and its bases, and in the contents of a class
derived from ``dict`` or ``list``. Python cannot see anything else, so a class that could hold more is
refused rather than copied in part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvcache.layers.base import Refusal
from kvcache.layers.data import decode, encode
from kvcache.layers.scalars import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcache.arrays import Array

# Built-in bases whose instances hold nothing but what is read here.
_READABLE: Final = (object, dict, list)
_HEAP_TYPE: Final = 1 << 9


def snapshot(cache: Any) -> tuple[Any, list[Array]]:
    """A layer cache's values as JSON-able data, and its arrays. Copies no array.

    The data is ``[attributes, contents]`` in the format of :mod:`kvcache.layers.data`: attributes by name,
    and the contents of a class derived from dict or list, else None.

    Raises:
        Refusal: ``unsupported_layer``: it holds something that cannot be read or copied.
    """
    cls = type(cache)
    for base in cls.__mro__:
        # Types written in C have hidden state.
        if not base.__flags__ & _HEAP_TYPE and base not in _READABLE:
            raise unsupported(cls, f"{base.__qualname__} has contents that cannot be read")
    attributes = dict(_attributes(cache))
    contents: dict[Any, Any] | list[Any] | None = None
    if isinstance(cache, dict):
        contents = dict(dict.items(cache))
    elif isinstance(cache, list):
        contents = list(list.__iter__(cache))
    arrays: list[Array] = []
    try:
        return encode([attributes, contents], arrays), arrays
    except DataError as error:
        raise unsupported(cls, str(error)) from error


def rebuild(cls: type, data: Any, arrays: Sequence[Array]) -> Any:
    """Builds a new object of the class from the data of a :func:`snapshot` and these arrays.

    Raises:
        Refusal: ``unsupported_layer``: the data cannot be read.
    """
    try:
        attributes, contents = decode(data, arrays)
    except DataError as error:
        raise unsupported(cls, str(error)) from error
    base = next(base for base in (dict, list, object) if issubclass(cls, base))
    copy: Any = base.__new__(cls)
    # Not through the class's own __setattr__, which may compute something else from the value.
    for name, value in attributes.items():
        object.__setattr__(copy, name, value)
    if base is dict:
        dict.update(copy, contents)
    elif base is list:
        list.extend(copy, contents)
    return copy


def unsupported(cls: type, why: str) -> Refusal:
    """The refusal of a layer of this class."""
    return Refusal(
        "unsupported_layer",
        f"{cls.__module__}.{cls.__qualname__} cannot be copied: {why}; pass kvcache.layers.register an "
        "adapter for it",
    )


def _attributes(cache: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(cache, "__dict__", {}).items()
    for base in type(cache).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            # The compiler mangles private names.
            private = name.startswith("__") and not name.endswith("__")
            full = f"_{base.__name__.lstrip('_')}{name}" if private else name
            try:
                yield full, object.__getattribute__(cache, full)
            except AttributeError:
                continue  # not set
