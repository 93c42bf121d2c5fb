"""Models whose rows must not be padded.

A batch is as wide as its longest row. Attention masks the padding of the shorter rows, but a
recurrent state runs on over it unless the model takes care of ``lengths``. Some models of mlx-lm do not
look at them (Mamba, Jamba, RWKV-7), and others do and still end in another state (Nemotron-H). A state
does not record what it ran, so only the states of rows that were never padded are kept.
"""

from __future__ import annotations

from typing import Any

from kvcache.layers.base import Refusal, SpanAdapter
from kvcache.layers.prompt_cache import Prompt
from kvcache.layers.window import Chunked, Rotating


def has_recurrent_layers(model: Any) -> bool:
    """Whether padding could reach a state: some layer's cache holds neither KV nor a window of it.

    Prefill such a model one row at a time: ``BatchGenerator(model, prefill_batch_size=1)``. A cache class
    that kvcache does not know counts as a state.
    """
    from mlx_lm.models.cache import make_prompt_cache

    try:
        adapters = Prompt(list(make_prompt_cache(model))).adapters
    except Refusal:
        return True
    return not all(isinstance(adapter, SpanAdapter | Rotating | Chunked) for adapter in adapters)
