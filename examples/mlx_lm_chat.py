"""A chat with any mlx-lm model that prefills only what is new.

Run it with `python mlx_lm_chat.py MODEL`. One line of input is one question; an empty line ends the
chat. After each answer: the prompt's tokens, those from the cache, and the time to the first token.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from mlx_lm import load, stream_generate

from kvcache import KVPrefixCache, model_namespace


def answer(model: Any, tokenizer: Any, cache: KVPrefixCache, namespace: str, prompt: list[int]) -> str:
    """Generates one answer; the session fetches what is known and stores what is new."""
    text, first = "", None
    started = time.perf_counter()
    with cache.session(prompt, model=model, namespace=namespace) as s:
        responses = stream_generate(
            model,
            tokenizer,
            s.remaining,
            prompt_cache=s.prompt_cache,
            prompt_progress_callback=s.on_progress,
            max_tokens=100,
        )
        for r in responses:
            first = first or time.perf_counter() - started
            s.append(r.token)
            print(r.text, end="", flush=True)
            text += r.text
    print(f"\n[{len(prompt)} tokens, {s.hit.length} from the cache, first after {first:.2f} s]")
    return text


def main() -> None:
    """Chats on standard input."""
    if len(sys.argv) < 2:
        sys.exit("usage: python mlx_lm_chat.py MODEL")
    path = sys.argv[1]
    model, tokenizer = load(path)
    messages = [{"role": "system", "content": "You answer in one short sentence."}]
    with KVPrefixCache(max_bytes="4GB") as cache:
        for question in iter(sys.stdin.readline, ""):
            if not question.strip():
                break
            messages.append({"role": "user", "content": question.strip()})
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
            text = answer(model, tokenizer, cache, model_namespace(path), prompt)
            messages.append({"role": "assistant", "content": text})


if __name__ == "__main__":
    main()
