"""Three turns of speculative decoding, as both sides run them. Nothing here imports kvcache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.generate import stream_generate
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .runs import BESIDE, CHUNK, TRUNK
from .tiny_models import build

SAID: Final = [TRUNK[:30], TRUNK[40:52], BESIDE]
MOST: Final = 11


class Numbers(TokenizerWrapper):
    """A tokenizer without text: ids are all there is."""

    def __init__(self) -> None:
        self._eos_token_ids: set[int] = set()
        self._detokenizer = _Silent()


class _Silent:
    last_segment = ""

    def reset(self) -> None: ...

    def add_token(self, token: int) -> None: ...

    def finalize(self) -> None: ...


def pair() -> tuple[Any, Any]:
    """A model of two layers and a draft of one, alike enough that some drafts are accepted."""
    model, draft = build("llama"), build("llama", num_hidden_layers=1)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        model.model.layers[1].self_attn[name].weight *= 0.7
    model.model.layers[1].mlp.down_proj.weight *= 0.3
    draft.model.embed_tokens, draft.model.norm = model.model.embed_tokens, model.model.norm
    draft.model.layers, draft.lm_head = model.model.layers[:1], model.lm_head
    return model, draft


@dataclass
class Turn:
    """What a turn gave."""

    tokens: list[int]
    logprobs: np.ndarray
    drafted: list[bool]


def turn(model: Any, draft: Any, prompt_cache: list[Any], remaining: list[int]) -> Turn:
    """Generates on the caches of both models, main first."""
    responses = list(
        stream_generate(
            model,
            Numbers(),
            remaining,
            max_tokens=MOST,
            draft_model=draft,
            num_draft_tokens=3,
            prompt_cache=prompt_cache,
            prefill_step_size=CHUNK,
        )
    )
    return Turn(
        [response.token for response in responses],
        np.array(mx.stack([response.logprobs for response in responses])),
        [response.from_draft for response in responses],
    )


def fresh(model: Any, draft: Any) -> list[Any]:
    return [*make_prompt_cache(model), *make_prompt_cache(draft)]


def cold_turns() -> dict[str, np.ndarray]:
    """All turns on one pair of caches, which only mlx-lm itself trims."""
    model, draft = pair()
    caches, key, held, found = fresh(model, draft), [], 0, {}
    for number, said in enumerate(SAID):
        key += said
        result = turn(model, draft, caches, key[held:])
        found[f"speculative/{number}/tokens"] = np.array(result.tokens)
        found[f"speculative/{number}/0"] = result.logprobs
        key += result.tokens
        held = min(cache.offset for cache in caches)
        for cache in caches:
            cache.trim(cache.offset - held)
    return found
