"""What a Python engine could use instead, with one common pair of calls.

Every contender starts from raw token ids in the form that it takes: a list, or an mlx array for
exo. The KV that a real entry carries is left out or tiny, so that only the index is timed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import KVCache, LRUPromptCache, PromptTrie

from kvcache import PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


class Contender(Protocol):
    def given(self, tokens: np.ndarray) -> Any:
        """The ids as this contender takes them. Untimed."""

    def insert(self, tokens: Any) -> None: ...

    def lookup(self, tokens: Any) -> int:
        """Tokens matched."""


class _Lists:
    def given(self, tokens: np.ndarray) -> list[int]:
        return tokens.tolist()


class Own(_Lists):
    def __init__(self) -> None:
        self.index = PrefixIndex()

    def insert(self, tokens: Any) -> None:
        self.index.insert(tokens)

    def lookup(self, tokens: Any) -> int:
        return self.index.match_prefix(tokens).length

    def evict(self) -> None:
        self.index.evict(1)


class OwnArrays(Own):
    def given(self, tokens: np.ndarray) -> Any:
        return tokens.copy()


class Trie(_Lists):
    """mlx-lm's `PromptTrie`."""

    def __init__(self) -> None:
        self.trie = PromptTrie()

    def insert(self, tokens: list[int]) -> None:
        self.trie.add("model", tokens, 0)

    def lookup(self, tokens: list[int]) -> int:
        found = self.trie.search("model", tokens)
        return len(tokens) if found.exact is not None else found.common_prefix


class LruPromptCache(_Lists):
    """mlx-lm's `LRUPromptCache`, with entries of no layers: its deep copies cost nothing here."""

    def __init__(self) -> None:
        self.cache = LRUPromptCache(max_size=1 << 40)

    def insert(self, tokens: list[int]) -> None:
        self.cache.insert_cache("model", tokens, [])

    def lookup(self, tokens: list[int]) -> int:
        _, rest = self.cache.fetch_nearest_cache("model", tokens)
        return len(tokens) - len(rest)

    def evict(self) -> None:
        self.cache.trim_to(n_sequences=len(self.cache) - 1)


class Scan:
    """exo's way: compare with every entry and take the longest run of equal tokens."""

    def __init__(self, others: int = 0) -> None:
        self.others = others
        self.entries: list[mx.array] = []

    def given(self, tokens: np.ndarray) -> mx.array:
        made = mx.array(tokens)
        mx.eval(made)
        return made

    def insert(self, tokens: mx.array) -> None:
        for _ in range(self.others if not self.entries else 0):
            self.entries.append(tokens + 1)
        self.entries.append(tokens)

    def lookup(self, tokens: mx.array) -> int:
        longest = 0
        for entry in self.entries:
            shorter = min(entry.size, tokens.size)
            equal = mx.equal(entry[:shorter], tokens[:shorter]).astype(mx.int32)
            longest = max(longest, int(mx.sum(mx.cumprod(equal)).item()))
        return longest


class VllmMlxMemory(_Lists):
    """vllm-mlx's memory-aware cache, with one tiny layer."""

    def __init__(self) -> None:
        from vllm_mlx.memory_cache import MemoryAwarePrefixCache, MemoryCacheConfig

        self.cache = MemoryAwarePrefixCache(object(), MemoryCacheConfig(max_memory_mb=4_096))

    def insert(self, tokens: list[int]) -> None:
        layer = KVCache()
        rows = mx.zeros((1, 1, len(tokens), 1), dtype=mx.float16)
        layer.update_and_fetch(rows, rows)
        self.cache.store(tokens, [layer])

    def lookup(self, tokens: list[int]) -> int:
        _, rest = self.cache.fetch(tokens)
        return len(tokens) - len(rest)


class VllmMlxBlocks(_Lists):
    """vllm-mlx's block hashing, 64 tokens a block."""

    BLOCK = 64

    def __init__(self) -> None:
        from vllm_mlx.paged_cache import PagedCacheManager

        self.manager = PagedCacheManager(block_size=self.BLOCK, max_blocks=65_536)

    def insert(self, tokens: list[int]) -> None:
        count = len(tokens) // self.BLOCK
        self.manager.cache_full_blocks(self.manager.get_new_blocks(count), tokens, 0, count)

    def lookup(self, tokens: list[int]) -> int:
        _, matched = self.manager.get_computed_blocks(tokens)
        return matched


LISTS = "kvcache, list"
CONTENDERS: dict[str, Callable[[], Contender]] = {
    LISTS: Own,
    "kvcache, int32 array": OwnArrays,
    "mlx-lm PromptTrie": Trie,
    "mlx-lm LRUPromptCache": LruPromptCache,
    "exo scan, 1 entry": Scan,
    "exo scan, 10 entries": lambda: Scan(others=9),
}

try:
    import vllm_mlx.memory_cache
    import vllm_mlx.paged_cache  # noqa: F401
except ImportError:
    VLLM_MLX = False
else:
    VLLM_MLX = True
    CONTENDERS |= {"vllm-mlx memory cache": VllmMlxMemory, "vllm-mlx block hashing, 64": VllmMlxBlocks}


def in_rotation(contender: Contender, queries: list[np.ndarray]) -> Callable[[], Any]:
    """Each call gives the next query, in a buffer of its own."""
    given = itertools.cycle([contender.given(query) for query in queries])
    return lambda: next(given)
