"""Refuses the requests that would end mlx-lm's generation thread, and the server with it."""

# mlx-lm carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from huggingface_hub import CacheNotFound, scan_cache_dir
from mlx_lm import server
from mlx_lm.models.cache import make_prompt_cache

from kvcache.integrations.mlx_lm.server_cache import ServerPromptCache


class RequestError(ValueError):
    """A request that cannot be served as it is; the text is one sentence for its client."""


def hub_cache(*args: Any, **options: Any) -> Any:
    """What the hub's folder holds; nothing where there is none (mlx-lm then breaks off its answer)."""
    try:
        return scan_cache_dir(*args, **options)
    except (CacheNotFound, OSError, ValueError):
        return SimpleNamespace(repos=frozenset())


class CarefulResponseGenerator(server.ResponseGenerator):
    """Runs what a request brings once before it is let into a batch: an exception there ends the thread."""

    def generate(self, request: Any, generation_args: Any, *args: Any, **options: Any) -> Any:
        """Raises ``RequestError`` for a request that cannot be served as it is."""
        # A dead generator is reported for any request.
        if self.generation_available():
            words = generation_args.stop_words
            if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
                raise RequestError("stop must be a text or a list of texts, none of them empty")
        return super().generate(request, generation_args, *args, **options)

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
        try:
            result: Any = super()._tokenize(tokenizer, request, args)
            prompt = result[0]
            if not prompt:
                raise RequestError("the prompt has no tokens")
            if not all(isinstance(token, int) for token in prompt):
                raise RequestError("the prompt must be one text")
            self._rehearse(tokenizer, args, prompt)
        except RequestError:
            raise
        except Exception as error:  # all that is run here is the request's own
            # mlx-lm's samplers are compiled with the random state as an output. One that raises while it is
            # traced leaves a placeholder there, and then every later request would fail.
            mx.random.seed(int.from_bytes(os.urandom(8)))
            text = str(error) or type(error).__name__
            raise RequestError(f"the request cannot be used: {text}") from error
        if isinstance(self.prompt_cache, ServerPromptCache):
            self.prompt_cache.prompt = prompt
        return result

    def _rehearse(self, tokenizer: Any, args: Any, prompt: list[int]) -> None:
        """Stop words, processors and sampler, on logits of the model's width. Nothing is evaluated."""
        width = self._width()
        for token in args.logits.logit_bias or ():
            # MLX checks no index: one beyond the logits is a write beyond a buffer.
            if not 0 <= token < width:
                raise RequestError(f"logit_bias: token ids are from 0 to {width - 1}, found {token}")
        if args.top_logprobs > width:
            raise RequestError(f"top_logprobs must be at most {width}, the number of the model's tokens")
        self._make_state_machine(self.model_provider.model_key, tokenizer, args.stop_words)
        logits, tokens = mx.zeros((1, width)), mx.array(prompt[-1:])
        for processor in server._make_logits_processors(args):
            logits = processor(tokens, logits)
        server._make_sampler(args, tokenizer)(logits)

    def _width(self) -> int:
        """How many logits the model gives: read off the shape of a pass that is never evaluated."""
        model: Any = self.model_provider.model
        known = getattr(self, "_known_width", (None, 0))
        if known[0] != self.model_provider.model_key:
            logits = model(mx.array([[0]]), cache=make_prompt_cache(model))
            known = self._known_width = self.model_provider.model_key, logits.shape[-1]
        width: int = known[1]
        return width
