"""The prompt cache of a patched server, which knows what its caller ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcache.integrations.mlx_lm.entries import counts_nothing, layers
from kvcache.integrations.mlx_lm.prompt_cache import PromptCache

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvcache.results import Stored


class ServerPromptCache(PromptCache):
    """For ``mlx_lm.server`` alone: it appends a token to a key after the model has run it.

    Attributes:
        prompt: Token ids of the request at hand. Its key differs where there are images.
    """

    prompt: Sequence[int] = ()

    def insert_cache(
        self,
        model: Hashable,
        tokens: Sequence[int],
        prompt_cache: list[Any],
        *,
        cache_type: str = "assistant",
        length: int | None = None,
    ) -> Stored:
        """As of the base class. Recurrent states are stored under all of ``tokens``."""
        if length is None and counts_nothing(layers(prompt_cache)):
            length = len(tokens)
        return super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type, length=length)
