"""An engine of one's own, with its own loop around fetch, reserve and store.

Run it with `python own_engine.py MODEL PROMPT...`: it answers each prompt greedily.
"""

from __future__ import annotations

import sys
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

from kvcache import KVPrefixCache

STEP = 512


def generate(
    model: Any, cache: KVPrefixCache, tokens: list[int], stop: set[int], most: int = 40
) -> list[int]:
    """Prefills what is not known in chunks, generates, and keeps both for later prompts."""
    hit = cache.fetch(tokens)
    prompt_cache = hit.prompt_cache or make_prompt_cache(model)
    if cache.ntokens:
        # Room for the whole prompt at once, so that the stores below need not evict each time.
        cache.reserve((len(tokens) - hit.length) * cache.nbytes // cache.ntokens, protect=hit)
    # All but the last token are prefilled; it is the first to be sampled from.
    done = hit.length
    while done < len(tokens) - 1:
        # Where the cache says so, stopping and storing helps prompts that share this much.
        stops = [at for at in (done + STEP, len(tokens) - 1, hit.checkpoint_at) if at and at > done]
        end = min(stops)
        model(mx.array([tokens[done:end]]), cache=prompt_cache)
        mx.eval([layer.state for layer in prompt_cache])
        done = end
        if done == hit.checkpoint_at:
            cache.store(tokens[:done], prompt_cache, length=done)
    generated: list[int] = []
    token = tokens[-1]
    while len(generated) < most and token not in stop:
        logits = model(mx.array([[token]]), cache=prompt_cache)
        done += 1
        token = int(mx.argmax(logits[0, -1]).item())
        generated.append(token)
    # The last token was not run. `length` counts what was, for layers that do not count themselves.
    cache.store((tokens + generated)[:done], prompt_cache, length=done)
    print(f"{len(tokens)} tokens, {hit.length} from the cache ({hit.reason})")
    return generated


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python own_engine.py MODEL PROMPT...")
    model, tokenizer = load(sys.argv[1])
    with KVPrefixCache(max_bytes="4GB") as cache:
        for prompt in sys.argv[2:]:
            print(tokenizer.decode(generate(model, cache, tokenizer.encode(prompt), tokenizer.eos_token_ids)))
