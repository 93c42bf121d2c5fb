"""Which adapter serves which class of layer cache, and which class a name written down means.

mlx-lm's own classes are known by their full name, so that looking one up imports nothing.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Final, Literal

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
    """Says how caches of a third-party class are kept.

    It also gives the class its name, ``module.qualname``: what is written down for another process is
    read back there once a class is registered under the same name. Data never makes a process import
    anything.

    Args:
        cls: The class itself; subclasses are registered separately.
        kind: ``"span"``: it has ``keys``, ``values`` of shape ``(1, heads, tokens, width)`` and
            ``offset``, is made by ``cls()``, and can be cut at any token, like mlx-lm's KVCache.
            ``"state"``: it is copied whole into checkpoints, attribute by attribute, which is
            what happens to an unknown class as well. Or an object of your own that fulfils
            ``SpanAdapter`` or ``ImageAdapter`` (``kvcache.layers``): the images of the latter are
            arrays and JSON-able data, of which its ``build`` makes a cache.

    Raises:
        TypeError: ``cls`` is no class.
        ConfigError: ``kind`` is none of these, or an adapter whose methods do not fit.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register needs a class, found {type(cls).__name__}")
    if kind == "span":
        _registered[cls] = _SPAN
    elif kind == "state":
        _registered[cls] = _OPAQUE
    else:
        _registered[cls] = _checked(kind)


def _checked(adapter: Adapter) -> Adapter:
    if isinstance(adapter, type):
        raise ConfigError(f"register needs an adapter, found the class {adapter.__name__}: pass an instance")
    name = type(adapter).__name__
    takes: tuple[str, ...]
    if isinstance(adapter, SpanAdapter):
        takes = "cls", "static", "arrays", "length"
    elif isinstance(adapter, ImageAdapter):
        takes = "cls", "static", "meta", "arrays", "length"
    elif hasattr(adapter, "image") and not hasattr(adapter, "build"):
        raise ConfigError(
            f"{name} has image() but no build(): an Image holds arrays and JSON-able meta, no function, and "
            "build(cls, static, meta, arrays, length) makes a cache of them"
        )
    else:
        raise ConfigError(f"kind must be 'span', 'state' or an adapter, found {adapter!r}")
    try:
        inspect.signature(adapter.build).bind(*takes)
    except TypeError as error:
        raise ConfigError(f"{name}.build must take ({', '.join(takes)}): {error}") from None
    return adapter


def adapter_of(cls: type) -> Adapter:
    """The adapter for caches of exactly this class; an unknown class is kept whole."""
    return _registered.get(cls) or _KNOWN.get(_name(cls)) or _OPAQUE


def is_known(cls: type) -> bool:
    """Whether it is a class of mlx-lm that is kept as this package says."""
    return cls not in _registered and _name(cls) in _KNOWN


def is_list(cls: type) -> bool:
    """Whether it is mlx-lm's CacheList, which is looked into member by member."""
    return _name(cls) == _LIST


def is_batched(cls: type) -> bool:
    """Whether it is one of mlx-lm's caches for several sequences at once."""
    return _name(cls) in _BATCHED


def class_name(cls: type) -> str:
    """The name to write down for a class of layer cache.

    Raises:
        Refusal: ``unsupported_layer``: the name would not lead back to the class.
    """
    name = _name(cls)
    found = class_named(name)
    if found is not cls:
        raise Refusal(
            "unsupported_layer", f"two classes are called {name}; the other one is meant by the name"
        )
    return name


def class_named(name: str) -> type:
    """The class of layer cache that was written down under this name.

    A registered class, or one of mlx-lm's from a fixed list: no other name imports anything.

    Raises:
        Refusal: ``unsupported_layer``: no such class.
    """
    # The last one registered under a name has it: its module may have been loaded again.
    registered = {_name(cls): cls for cls in _registered}
    if name in registered:
        return registered[name]
    if name not in _KNOWN and name != _LIST:
        raise Refusal(
            "unsupported_layer",
            f"no layer class is registered as {name}: import it and call kvcache.layers.register before its "
            "layers are written or read",
        )
    module, _, short = name.rpartition(".")
    try:
        found: type = getattr(import_module(module), short)
    except (ImportError, AttributeError) as error:
        raise Refusal("unsupported_layer", f"{name} is not in the mlx-lm installed here ({error})") from error
    return found


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
