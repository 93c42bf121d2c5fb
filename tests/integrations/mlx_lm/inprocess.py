"""mlx-lm's server without HTTP: its generation thread in this process, with the cache patched in."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mlx_lm import server

from kvcache.integrations.mlx_lm import patch
from kvcache.integrations.mlx_lm.patching import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvcache.integrations.mlx_lm import PromptCache


class Engine:
    """What the server's HTTP handlers talk to."""

    def __init__(self, generator: Any, prompt_cache: PromptCache) -> None:
        self.generator = generator
        self.prompt_cache = prompt_cache

    def ask(
        self,
        prompt: str,
        max_tokens: int = 4,
        seed: int | None = None,
        leave: int | None = None,
        **logits: Any,
    ) -> Any:
        """The context, and the tokens of the answer.

        Args:
            prompt: A text.
            max_tokens: Tokens of the answer.
            seed: One makes it a request of the sequential path.
            leave: Stops listening after that many tokens.
            logits: Penalties, and sizes of their contexts.
        """
        request = server.CompletionRequest("text", prompt, [], None, None)
        context, responses = self.generator.generate(request, arguments(max_tokens, seed, **logits))
        tokens = []
        for response in responses:
            tokens.append(response.token)
            if len(tokens) == leave:
                context.stop()
                break
        return context, tokens


def arguments(max_tokens: int, seed: int | None, **logits: Any) -> Any:
    plain = server.LogitsProcessorArguments(None, 0.0, 20, 0.0, 20, 0.0, 20)
    return server.GenerationArguments(
        model=server.ModelDescription("default_model", "default_model", None),
        sampling=server.SamplingArguments(0.0, 1.0, 0, 0.0, 0.0, 0.0),
        logits=replace(plain, **logits),
        stop_words=[],
        max_tokens=max_tokens,
        num_draft_tokens=3,
        logprobs=False,
        top_logprobs=-1,
        seed=seed,
        chat_template_kwargs=None,
    )


@contextmanager
def engine(model: Path, *options: str, **limits: Any) -> Iterator[Engine]:
    """An engine with the server's own options; ``limits`` go to ``patch``."""
    made: list[Engine] = []

    def run(_host: str, _port: int, provider: Any) -> None:
        prompt_cache = server.LRUPromptCache(provider.cli_args.prompt_cache_size)
        made.append(Engine(server.ResponseGenerator(provider, prompt_cache), prompt_cache))

    with replaced(server, run=run), patch(**limits) as installation:
        with replaced(sys, argv=["server", "--model", str(model), *options]):
            server.main()
        (found,) = made
        assert installation.prompt_cache is found.prompt_cache
        try:
            yield found
        finally:
            found.generator.stop_and_join()
            found.prompt_cache.cache.close()
