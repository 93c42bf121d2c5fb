"""PromptCache: the methods of ``mlx_lm.models.cache.LRUPromptCache`` on one KVPrefixCache."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from operator import index as integer
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from loguru import logger

from kvcache.arguments import shown
from kvcache.cache import KVPrefixCache
from kvcache.errors import AllocationError, ConfigError
from kvcache.eviction import Eviction
from kvcache.integrations.mlx_lm.entries import Spans, layers
from kvcache.integrations.mlx_lm.keys import Namespaces, plain, split_images
from kvcache.results import Stored
from kvcache.sizes import format_size, parse_size
from kvcache.stats import LabelFigures

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kvcache.media import MediaSpan
    from kvcache.memory.pressure import PressureSource
    from kvcache.memory.reclaim import GcPolicy

CACHE_TYPES: Final = ("assistant", "user", "system")
# mlx-lm's way to say "no limit" is 1 << 63.
_NO_LIMIT: Final = 1 << 62
_SEGMENT_TOKENS: Final = 1024


@dataclass(frozen=True)
class Fetched:
    """The last fetch, for the server's other hooks. Holds no KV.

    Attributes:
        model: As the engine gave it.
        tokens: The engine's own list, which it may append to.
        prompt_tokens: How many of them were the prompt.
        checkpoint_at: Where a checkpoint would help later requests.
    """

    model: Hashable
    tokens: Sequence[int]
    prompt_tokens: int
    checkpoint_at: int | None


class PromptCache:
    """A prompt cache for engines that call mlx-lm's ``LRUPromptCache``.

    The methods and their arguments are the same. What differs: a fetch counts as use,
    ``rest`` is never empty, a prefix that several sequences share is held once, an entry larger
    than the limit evicts nothing, and evicted memory is freed before the call returns. The
    cache types are labels for :meth:`stats_by_type`; they do not order evictions.

    A *sequence* is what was inserted and is not the beginning of a longer one (models with
    sliding-window or recurrent layers: every insertion whose checkpoint is held). One whose tail was
    evicted still serves its head, and no longer counts.

    Args:
        max_size: Sequences at most; None: no such limit.
        max_bytes: Bytes held at every moment; None: no such limit.
        memory_limit: As of ``KVPrefixCache``.
        pressure: As of ``KVPrefixCache``.
        policy: As of ``KVPrefixCache``.
        gc: As of ``KVPrefixCache``.

    Attributes:
        cache: The ``KVPrefixCache`` that holds it all.
        max_size: As given.
        max_bytes: In bytes, or None.

    Raises:
        ConfigError: A limit that cannot be used.
    """

    def __init__(
        self,
        max_size: int | None = 10,
        max_bytes: int | str | None = None,
        *,
        memory_limit: float | str | None = None,
        pressure: PressureSource | None = None,
        policy: Literal["lru"] = "lru",
        gc: GcPolicy = "always",
    ) -> None:
        if max_size is not None and (isinstance(max_size, bool) or not isinstance(max_size, int)):
            raise TypeError(f"max_size must be an int, found {type(max_size).__name__}")
        if max_size is not None and max_size < 0:
            raise ConfigError(f"max_size must not be negative, found {shown(max_size)}")
        if isinstance(max_bytes, int) and max_bytes >= _NO_LIMIT:
            max_bytes = None
        self.max_size = max_size
        self.max_bytes = None if max_bytes is None else parse_size(max_bytes, "max_bytes")
        self.cache = KVPrefixCache(
            max_bytes=self.max_bytes,
            memory_limit=memory_limit,
            pressure=pressure,
            segment_tokens=_SEGMENT_TOKENS,
            policy=policy,
            gc=gc,
        )
        self.namespaces = Namespaces()
        self.last_fetch: Fetched | None = None
        self._warned = False

    def __len__(self) -> int:
        """Sequences held."""
        return self.cache.stats().entries

    @property
    def nbytes(self) -> int:
        """Bytes held; what sequences share counts once."""
        return self.cache.nbytes

    def fetch_nearest_cache(
        self, model: Hashable, tokens: Sequence[int]
    ) -> tuple[list[Any] | None, Sequence[int]]:
        """The longest stored prefix of ``tokens``, at most all but one, and the tokens after it.

        Args:
            model: What must never mix with others: any hashable.
            tokens: The prompt. Negative ids are images.

        Returns:
            A prompt cache of the caller's own, or None, and ``rest``: the tokens it does not hold,
            at least one of them unless there are none at all.

        Raises:
            TokenError: A token id that is out of range.
            TypeError: A model that cannot be hashed, or tokens of another type.
        """
        namespace = self.namespaces.of(model)
        ids, media = split_images(plain(tokens))
        self.last_fetch = Fetched(model, tokens, len(ids), None)
        try:
            hit = self.cache.fetch(ids, namespace=namespace, media=media)
        except AllocationError as error:
            logger.warning("no memory to copy the cached prefix; recomputing the whole prompt: {}", error)
            return None, tokens
        self.last_fetch = replace(self.last_fetch, checkpoint_at=hit.checkpoint_at)
        return hit.prompt_cache, tokens[hit.length :]

    def insert_cache(
        self,
        model: Hashable,
        tokens: Sequence[int],
        prompt_cache: list[Any],
        *,
        cache_type: str = "assistant",
        length: int | None = None,
    ) -> Stored:
        """Keeps a copy of ``prompt_cache`` under ``tokens``; what is held already is not copied.

        Args:
            model: As in :meth:`fetch_nearest_cache`.
            tokens: What was run. More than the cache holds is fine, fewer are refused.
            prompt_cache: One sequence's layer caches. Where main and draft model are at different
                offsets, what all of them hold is kept.
            cache_type: "assistant", "user" or "system".
            length: How many of ``tokens`` were run. A model all of whose layers are recurrent (Mamba)
                needs it, since nothing in its cache says so; others are cut there.

        Returns:
            What was stored, or why not (mlx-lm's own returns nothing).

        Raises:
            ConfigError: Another cache type, a negative length or one beyond ``tokens``.
            TokenError: A token id that is out of range.
            TypeError: An argument of another type.
        """
        if cache_type not in CACHE_TYPES:
            known = ", ".join(repr(each) for each in CACHE_TYPES)
            raise ConfigError(f"cache_type must be one of {known}, found {cache_type!r}")
        namespace = self.namespaces.of(model)
        key = plain(tokens)
        prompt_cache = layers(prompt_cache)
        if length is not None and not 0 <= integer(length) <= len(key):
            raise ConfigError(f"length must be from 0 to the {len(key)} tokens, found {shown(length)}")
        ids, media = split_images(key)
        try:
            stored = self._insert(namespace, ids, media, prompt_cache, cache_type, length)
        except AllocationError as error:
            logger.warning("no memory to store {} tokens: {}", len(ids), error)
            return Stored(0, 0, 0, "too_large", error.evicted, str(error))
        if stored.reason == "unknown_length" and not self._warned:
            self._warned = True
            warnings.warn(
                f"nothing of {len(ids)} tokens is stored: all layers are recurrent and do not count them; "
                "pass length= to insert_cache",
                UserWarning,
                stacklevel=2,
            )
        elif stored.detail:
            logger.warning("{} tokens are not stored as a whole: {}", len(ids), stored.detail)
        if self.max_size is None:
            return stored
        return replace(stored, evicted=stored.evicted + self.cache.trim_to(entries=self.max_size))

    def _insert(
        self,
        namespace: str,
        ids: Sequence[int],
        media: list[MediaSpan],
        prompt_cache: list[Any],
        cache_type: str,
        length: int | None,
    ) -> Stored:
        spans = Spans.of(prompt_cache)
        if spans and length is None and spans.out_of_step:
            length = spans.held
        held = spans.held if spans and length is None else length or 0
        whole = held * spans.token_bytes if spans and held <= len(ids) else 0
        over = ""
        if spans and self.max_bytes is not None and whole > self.max_bytes:
            over = (
                f"{format_size(whole)} are more than the limit of {format_size(self.max_bytes)}, "
                "so only free room is taken"
            )
            length = min(held, self._free_tokens(namespace, ids, media, spans.token_bytes))
            if not length:
                return Stored(0, 0, 0, "too_large", detail=over)
        stored = self.cache.store(
            ids, prompt_cache, namespace=namespace, media=media, length=length, label=cache_type
        )
        if over and stored.length:
            stored = replace(stored, reason="truncated", detail=over)
        return stored

    def _free_tokens(self, namespace: str, ids: Sequence[int], media: list[MediaSpan], per_token: int) -> int:
        """Leading tokens of a sequence beyond the limit that can be held without an eviction."""
        matched = self.cache.peek(ids, namespace=namespace, media=media).matched
        free = cast("int", self.max_bytes) - self.nbytes
        # For a moment a store that diverges inside a segment holds that one twice.
        splitting = _SEGMENT_TOKENS * per_token if self.nbytes else 0
        return matched + max(0, free - splitting) // per_token

    def trim_to(self, *, n_sequences: int | None = None, n_bytes: int | None = None) -> Eviction:
        """Evicts until at most ``n_sequences`` and ``n_bytes`` are held; negative is zero."""
        evicted = Eviction()
        if n_sequences is not None:
            evicted += self.cache.trim_to(entries=min(max(0, n_sequences), _NO_LIMIT))
        if n_bytes is not None:
            evicted += self.cache.trim_to(nbytes=min(max(0, n_bytes), _NO_LIMIT))
        return evicted

    def stats_by_type(self) -> dict[str, dict[str, int]]:
        """``n_sequences`` and ``n_bytes`` of each cache type; bytes count for whoever stored them first."""
        figures, empty = self.cache.stats().by_label, LabelFigures(0, 0, 0, 0)
        held = {each: figures.get(each, empty) for each in CACHE_TYPES}
        return {each: {"n_sequences": one.entries, "n_bytes": one.nbytes} for each, one in held.items()}
