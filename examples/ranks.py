"""One model on several ranks, with a prefix cache on which all of them agree.

Run it with `mlx.launch -n 2 --backend ring ranks.py MODEL PROMPT...`: each rank holds a part of the
model, and all answer each prompt together.
"""

from __future__ import annotations

import sys

import mlx.core as mx
from mlx_lm.generate import stream_generate
from mlx_lm.utils import sharded_load

from kvcache import KVPrefixCache


def main() -> None:
    """Answers the prompts; the first rank prints."""
    if len(sys.argv) < 3:
        sys.exit("usage: mlx.launch -n 2 ranks.py MODEL PROMPT...")
    group = mx.distributed.init(strict=True)
    model, tokenizer = sharded_load(sys.argv[1], tensor_group=group)
    with KVPrefixCache(max_bytes="4GB", group=group) as cache:
        for text in sys.argv[2:]:
            prompt = tokenizer.encode(text)
            # Every rank makes the same calls in the same order.
            with cache.session(prompt, model=model) as s:
                responses = stream_generate(
                    model,
                    tokenizer,
                    s.remaining,
                    prompt_cache=s.prompt_cache,
                    prompt_progress_callback=s.on_progress,
                    max_tokens=20,
                )
                for r in responses:
                    s.append(r.token)
            if group.rank() == 0:
                print(f"{len(prompt)} tokens, {s.hit.length} from the cache ({s.hit.reason})")


if __name__ == "__main__":
    main()
