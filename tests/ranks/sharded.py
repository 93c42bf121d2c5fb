"""Tiny models over the ranks as mlx-lm shards them: without the cache, then with it."""

from __future__ import annotations

from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from kvcache import KVPrefixCache
from tests.support import inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STEP: Final = 8
NEW: Final = 5
_TINY: Final[dict[str, Any]] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_DELTA: Final[dict[str, Any]] = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 16,
    "mlp_only_layers": [],
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 2,
    "num_hidden_layers": 2,
}
# Which way, which model, and what is not as in the others. mlx-lm's llama has no pipeline; qwen2
# is a llama with one. Of the hybrid one rank has the attention layer, the other the recurrent one.
CASES: Final = {
    "tensor llama": ("tensor", "llama", {}),
    "pipeline qwen2": ("pipeline", "qwen2", {}),
    "pipeline qwen3_next": ("pipeline", "qwen3_next", _DELTA),
}


def run(group: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _compared(group, *case) for name, case in CASES.items()}


def build(group: Any, way: str, architecture: str, changed: Mapping[str, Any]) -> Any:
    """This rank's part of a model with the same random weights everywhere, as mlx-lm's sharded_load does."""
    module = import_module(f"mlx_lm.models.{architecture}")
    mx.random.seed(7)
    arguments = {"model_type": architecture} | _TINY | dict(changed)
    model = module.Model(module.ModelArgs.from_dict(arguments))
    model.update(tree_map(lambda weight: weight + 0.1 * mx.random.normal(weight.shape), model.parameters()))
    mx.eval(model.parameters())
    if way == "tensor":
        model.shard(group)
    else:
        model.model.pipeline(group)
    model.eval()
    mx.eval(model.parameters())
    return model


def generated(
    model: Any, tokens: Any, prompt_cache: list[Any], progress: Any = None
) -> Iterator[tuple[int, str]]:
    """Each token with its log probabilities, to the bit."""
    steps = generate_step(
        mx.array(tokens),
        model,
        max_tokens=NEW + 3,
        prompt_cache=prompt_cache,
        prefill_step_size=STEP,
        prompt_progress_callback=progress,
    )
    for token, logprobs in steps:
        yield int(token), np.array(logprobs).tobytes().hex()


def _compared(group: Any, way: str, architecture: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    model = build(group, way, architecture, changed)
    cache = KVPrefixCache(group=group, segment_tokens=STEP)
    draw = np.random.default_rng(3)
    first = draw.integers(0, 96, 33).tolist()
    second = [*first[:16], *draw.integers(0, 96, 21).tolist()]
    results = []
    for prompt in (first, second, first, second):
        # The generator is left in mid-answer, as at a stop token: its next step is under way.
        cold = list(islice(generated(model, prompt, make_prompt_cache(model)), NEW))
        with cache.session(prompt, model=model, prefill_step_size=STEP) as session:
            warm = []
            for token, bits in islice(
                generated(model, session.remaining, session.prompt_cache, session.on_progress), NEW
            ):
                session.append(token)
                warm.append((token, bits))
        cache.validate()
        results.append(
            {
                "hit": [session.hit.reason, session.hit.length],
                "stored": [session.stored.reason, session.stored.length] if session.stored else [],
                "tokens": [token for token, _ in cold],
                "bits": [bits for _, bits in cold],
                "equal": cold == warm,
            }
        )
    layers = [type(layer).__name__ for layer in make_prompt_cache(model)]
    return {
        "requests": results,
        "layers": layers,
        "outline": inside.index(cache).outline(),
        "collectives": inside.ranks(cache).collectives,
    }
