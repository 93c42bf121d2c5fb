"""mlx-lm's server on kvcache.

One line changes the server that exists::

    with kvcache.integrations.mlx_lm.patch(max_bytes="8GB"):
        mlx_lm.server.main()

``PromptCache`` by itself is for engines that call ``mlx_lm.models.cache.LRUPromptCache``. Importing
this imports nothing of mlx-lm's server; ``patch`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvcache.integrations.mlx_lm.padding import has_recurrent_layers
from kvcache.integrations.mlx_lm.prompt_cache import PromptCache

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kvcache.integrations.mlx_lm.patching import Installation

__all__ = ["PromptCache", "has_recurrent_layers", "patch"]


def patch(
    *, max_size: int | None = None, max_bytes: int | str | None = None, policy: Literal["lru"] = "lru"
) -> AbstractContextManager[Installation]:
    """Puts a :class:`PromptCache` into ``mlx_lm.server`` while the context lasts.

    A server that is started inside keeps it: leave the context after the server has ended.

    Args:
        max_size: Sequences at most. None: the server's ``--prompt-cache-size``.
        max_bytes: Bytes of cached KV at every moment, on the batched and on the sequential path.
            None: the server's ``--prompt-cache-bytes``, or no limit.
        policy: As of ``kvcache.KVPrefixCache``.

    Returns:
        A context manager. Its value's ``prompt_cache`` is the server's cache once that has started.
    """
    from kvcache.integrations.mlx_lm.patching import installed

    return installed(max_size=max_size, max_bytes=max_bytes, policy=policy)
