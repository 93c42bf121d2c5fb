"""Which adapter serves which class of layer cache.

mlx-lm's own classes are known by their full name, so that looking one up imports nothing.
"""

from __future__ import annotations

from typing import Final, Literal

from kvcache.errors import ConfigError
from kvcache.layers.base import ImageAdapter, SpanAdapter
from kvcache.layers.kv import KV, ConcatenateKV
from kvcache.layers.quantized import QuantizedKV
from kvcache.layers.recurrent import Arrays, Latents, Opaque
from kvcache.layers.window import Chunked, Rotating

Adapter = SpanAdapter | ImageAdapter

_MLX_LM: Final = "mlx_lm.models.cache."
_KNOWN: Final[dict[str, Adapter]] = {
    _MLX_LM + "KVCache": KV(),
    _MLX_LM + "ConcatenateKVCache": ConcatenateKV(),
    _MLX_LM + "QuantizedKVCache": QuantizedKV(),
    _MLX_LM + "RotatingKVCache": Rotating(),
    _MLX_LM + "ChunkedKVCache": Chunked(),
    _MLX_LM + "ArraysCache": Arrays(),
    "mlx_lm.models.deepseek_v41.LayerCache": Latents(),
}
_BATCHED: Final = frozenset({_MLX_LM + "BatchKVCache", _MLX_LM + "BatchRotatingKVCache"})
_LIST: Final = _MLX_LM + "CacheList"
_OPAQUE: Final = Opaque()
_registered: dict[type, Adapter] = {}


def register(cls: type, kind: Literal["span", "state"] | Adapter) -> None:
    """Tells how caches of a third-party class are kept.

    Args:
        cls: The class itself; subclasses are registered by themselves.
        kind: ``"span"``: it has ``keys``, ``values`` of shape ``(1, heads, tokens, width)`` and
            ``offset``, is made by ``cls()``, and can be cut at any token, like mlx-lm's KVCache.
            ``"state"``: it is copied whole into checkpoints, attribute by attribute, which is
            what happens to an unknown class as well. Or an object of your own that fulfils
            ``SpanAdapter`` or ``ImageAdapter`` (``kvcache.layers``).

    Raises:
        TypeError: ``cls`` is no class.
        ConfigError: ``kind`` is none of these.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register needs a class, found {type(cls).__name__}")
    if kind == "span":
        _registered[cls] = KV()
    elif kind == "state":
        _registered[cls] = _OPAQUE
    elif isinstance(kind, SpanAdapter | ImageAdapter):
        _registered[cls] = kind
    else:
        raise ConfigError(f"kind must be 'span', 'state' or an adapter, found {kind!r}")


def adapter_of(cls: type) -> Adapter:
    """The adapter for caches of exactly this class; a class not known is kept whole."""
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


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
