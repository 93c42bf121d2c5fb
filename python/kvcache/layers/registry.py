"""The registry of layer caches: the adapter of each class, and the class of each written name.

mlx-lm's classes are listed by full name, so a lookup imports nothing.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Final, Literal

from kvcache.arguments import shown
from kvcache.errors import ConfigError
from kvcache.layers.base import ImageAdapter, Refusal, SpanAdapter
from kvcache.layers.kv import KV, ConcatenateKV
from kvcache.layers.quantized import QuantizedKV
from kvcache.layers.recurrent import Arrays, Latents, Opaque
from kvcache.layers.window import Chunked, Rotating

Adapter = SpanAdapter | ImageAdapter

_MLX_LM: Final = "mlx_lm.models.cache."
_SPAN: Final = KV()
_OPAQUE: Final = Opaque()
_KNOWN: Final[dict[str, Adapter]] = {
    _MLX_LM + "KVCache": _SPAN,
    _MLX_LM + "ConcatenateKVCache": ConcatenateKV(),
    _MLX_LM + "QuantizedKVCache": QuantizedKV(),
    _MLX_LM + "RotatingKVCache": Rotating(),
    _MLX_LM + "ChunkedKVCache": Chunked(),
    _MLX_LM + "ArraysCache": Arrays(),
    "mlx_lm.models.deepseek_v41.LayerCache": Latents(),
}
_BATCHED: Final = frozenset({_MLX_LM + "BatchKVCache", _MLX_LM + "BatchRotatingKVCache"})
_LIST: Final = _MLX_LM + "CacheList"
_registered: dict[type, Adapter] = {}


def register(cls: type, kind: Literal["span", "state"] | Adapter) -> None:
    """Registers a third-party class of layer cache.

    Registering also makes its name, ``module.qualname``, known: data written by another process can be read
    once a class is registered under the same name. Reading data never imports anything.

    Args:
        cls: The class itself; register subclasses separately.
        kind: ``"span"`` for a full-attention layer that can be cut at any token, like mlx-lm's KVCache: it
            has ``keys`` and ``values`` of shape ``(1, heads, tokens, width)`` and an ``offset``, and
            ``cls()`` makes an empty one. ``"state"`` for a layer that is copied whole into checkpoints,
            attribute by attribute, which is also the default for an unknown class. Or an adapter that
            implements ``SpanAdapter`` or ``ImageAdapter`` of ``kvcache.layers``.

    Raises:
        TypeError: ``cls`` is not a class.
        ConfigError: ``kind`` is none of these, or an adapter whose methods have the wrong parameters.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register takes a class of layer cache, found {type(cls).__name__}; pass the class")
    if kind == "span":
        _registered[cls] = _SPAN
    elif kind == "state":
        _registered[cls] = _OPAQUE
    else:
        _registered[cls] = _checked(kind)


def _checked(adapter: Adapter) -> Adapter:
    if isinstance(adapter, type):
        raise ConfigError(f"kind must be an adapter, found the class {adapter.__name__}; pass an instance")
    name = type(adapter).__name__
    takes: tuple[str, ...]
    if isinstance(adapter, SpanAdapter):
        takes = "cls", "static", "arrays", "length"
    elif isinstance(adapter, ImageAdapter):
        takes = "cls", "static", "meta", "arrays", "length"
    elif hasattr(adapter, "image") and not hasattr(adapter, "build"):
        raise ConfigError(
            f"{name} has image() but no build(); add build(cls, static, meta, arrays, length), which makes a "
            "cache from an image's arrays and meta"
        )
    else:
        raise ConfigError(f"kind must be 'span', 'state' or an adapter, found {shown(adapter)}")
    try:
        inspect.signature(adapter.build).bind(*takes)
    except TypeError as error:
        raise ConfigError(f"{name}.build must take ({', '.join(takes)}): {error}") from None
    return adapter


def adapter_of(cls: type) -> Adapter:
    """The adapter for caches of exactly this class; an unknown class is copied whole."""
    return _registered.get(cls) or _KNOWN.get(_name(cls)) or _OPAQUE


def is_known(cls: type) -> bool:
    """Whether this package's own adapter handles this class of mlx-lm."""
    return cls not in _registered and _name(cls) in _KNOWN


def is_list(cls: type) -> bool:
    """Whether it is mlx-lm's CacheList, whose members are read one by one."""
    return _name(cls) == _LIST


def is_batched(cls: type) -> bool:
    """Whether it is one of mlx-lm's caches for a batch of sequences."""
    return _name(cls) in _BATCHED


def class_name(cls: type) -> str:
    """The name under which a class of layer cache is written.

    Raises:
        Refusal: ``unsupported_layer``: the name would not be read back as this class.
    """
    name = _name(cls)
    if class_named(name) is not cls:
        raise Refusal(
            "unsupported_layer",
            f"two classes are called {name} and the name means the other one; register this one after it",
        )
    return name


def class_named(name: str) -> type:
    """The class of layer cache that was written under this name.

    Only registered classes and a fixed list of mlx-lm's are found; no other name imports anything.

    Raises:
        Refusal: ``unsupported_layer``: there is no such class.
    """
    # The class registered last wins: its module may have been reloaded.
    registered = {_name(cls): cls for cls in _registered}
    if name in registered:
        return registered[name]
    if name not in _KNOWN and name != _LIST:
        raise Refusal(
            "unsupported_layer",
            f"no layer class is registered as {name}; import it and call kvcache.layers.register before "
            "writing or reading its layers",
        )
    module, _, short = name.rpartition(".")
    try:
        cls: type = getattr(import_module(module), short)
    except (ImportError, AttributeError) as error:
        raise Refusal("unsupported_layer", f"the installed mlx-lm has no {name} ({error})") from error
    return cls


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
