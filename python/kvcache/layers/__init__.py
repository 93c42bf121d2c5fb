"""Kinds of layer caches: what can be cut where.

*Span*, *window* and *state* layers are full-attention, sliding-window and recurrent layers.

| class | kind | file |
|---|---|---|
| KVCache, ConcatenateKVCache | span | ``kv.py`` |
| QuantizedKVCache | span | ``quantized.py`` |
| RotatingKVCache, ChunkedKVCache | window | ``window.py`` |
| ArraysCache, deepseek_v41's LayerCache | state | ``recurrent.py`` |
| CacheList | each member by its own kind | ``prompt_cache.py`` |
| an unknown class | state, if its attributes can be copied | ``recurrent.py`` |
| Batch caches | refused: ``batched`` | ``registry.py`` |

A third-party class is made known by :func:`register`.
"""

from kvcache.layers.base import Image, ImageAdapter, Refusal, SpanAdapter
from kvcache.layers.registry import register

__all__ = ["Image", "ImageAdapter", "Refusal", "SpanAdapter", "register"]
