"""Kinds of layer caches, and where each can be cut.

*Span* is short for full-attention layer, *window* for sliding-window layer, *state* for recurrent layer.

| class | kind | file |
|---|---|---|
| KVCache, ConcatenateKVCache | span | ``kv.py`` |
| QuantizedKVCache | span | ``quantized.py`` |
| RotatingKVCache, ChunkedKVCache | window | ``window.py`` |
| ArraysCache, deepseek_v41's LayerCache | state | ``recurrent.py`` |
| CacheList | each member by its own kind | ``prompt_cache.py`` |
| an unknown class | state, if its attributes can be copied | ``recurrent.py`` |
| Batch caches | refused: ``batched`` | ``registry.py`` |

:func:`register` adds a third-party class.
"""

from kvcache.layers.base import Image, ImageAdapter, Refusal, SpanAdapter
from kvcache.layers.registry import register

__all__ = ["Image", "ImageAdapter", "Refusal", "SpanAdapter", "register"]
