"""KVPrefixCache: the methods of exo's class of that name on one ``kvcache.KVPrefixCache``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import mlx.core as mx
import psutil
from loguru import logger

from kvcache.cache import KVPrefixCache as PrefixCache
from kvcache.errors import AllocationError
from kvcache.integrations.exo.checkpoints import agreed
from kvcache.integrations.exo.handles import Entry, Handles, Rates
from kvcache.integrations.exo.pressure import MemoryPressure
from kvcache.integrations.exo.request import Request
from kvcache.ranks.group import Ranks
from kvcache.request import rest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcache.eviction import Eviction
    from kvcache.memory.pressure import PressureSource


class KVPrefixCache:
    """A prefix cache for exo's engine: the same methods, arguments in the same order.

    What differs: a prefix that conversations share is held once and neither
    overwrites the other, an eviction takes as little as the pressure asks for and gives it back at
    once, media match only where both sides identify them, and ranks always make the same number of
    collectives.

    An *index* is a handle. It stays with its prompt through evictions and other requests; the 1,024
    used last are remembered. One that was forgotten still works: an update adds, its rate is 0.0.

    Not offered: ``caches``, since no prompt has a cache of its own here, and exo's private lists.
    A model all of whose layers are states (Mamba) is not kept, since nothing in exo's calls says how
    many tokens its states have run; exo never reuses one either. Nor is a rotated window after a
    prefill chunk of one token: exo's snapshots leave it out of order. A cache class of exo's own mlx-lm
    needs ``kvcache.layers.register`` where its attributes are more than arrays, numbers and lists.

    Args:
        group: The ranks of one model, or None. All make the same calls in the same order.
        max_bytes: As of ``kvcache.KVPrefixCache``.
        memory_limit: As of ``kvcache.KVPrefixCache``.
        pressure: None: the machine's memory as exo watches it, with ``EXO_MEMORY_THRESHOLD`` and
            ``EXO_PREFILL_MEMORY_THRESHOLD``, else ``KVCACHE_MEMORY_THRESHOLD``, else by its size.
        policy: As of ``kvcache.KVPrefixCache``.
        make_cache: Makes a fresh cache for a model; pass exo's ``make_kv_cache`` where its
            ``KV_CACHE_BITS`` is set. None: the model's ``make_cache()``, or a KVCache a layer.

    Attributes:
        cache: The ``kvcache.KVPrefixCache`` that holds it all.
        prefill_tps: Tokens a second, by index.

    Raises:
        ConfigError: A limit or a threshold that cannot be used.
    """

    def __init__(
        self,
        group: mx.distributed.Group | None,
        *,
        max_bytes: int | str | None = None,
        memory_limit: float | str | None = None,
        pressure: PressureSource | None = None,
        policy: Literal["lru"] = "lru",
        make_cache: Callable[[Any], list[Any]] | None = None,
    ) -> None:
        self._pressure = MemoryPressure() if pressure is None else pressure
        self.cache = PrefixCache(
            max_bytes=max_bytes,
            memory_limit=memory_limit,
            pressure=self._pressure,
            policy=policy,
            group=group,
        )
        self._group = group
        self._ranks = Ranks(group)
        self._make_cache = _fresh if make_cache is None else make_cache
        self._handles = Handles()
        self.prefill_tps = Rates(self._handles)

    @property
    def prompts(self) -> list[mx.array]:
        """A copy of the prompts whose KV is held to its end, in order of their making. O(tokens)."""
        found = []
        for _, entry in self._handles.entries():
            part = entry.request.head(entry.held)
            # One token more than is asked for: a hit always leaves one to run.
            held = self.cache.peek([*part.tokens, 0], media=part.spans)
            if held.length == entry.held:
                found.append(mx.array(entry.request.tokens))
        return found

    def clear(self) -> None:
        """Drops everything and frees the memory. Every rank must call it."""
        self.cache.clear()
        self._handles.clear()

    def add_kv_cache(
        self,
        prompt_tokens: Any,
        cache: list[Any],
        ssm_snapshots: Sequence[Any] | None = None,
        media_regions: Sequence[Any] | None = None,
        prefill_tps: float = 0.0,
    ) -> int | None:
        """Keeps a copy of ``cache``, as far as it is not held yet, and a checkpoint for each snapshot.

        Args:
            prompt_tokens: The prompt; it may be longer than the cache.
            cache: Its layers.
            ssm_snapshots: Objects with ``token_count`` and ``states``: the layers at that moment,
                None where a layer can be cut.
            media_regions: Objects with ``content_hash``, ``start_pos`` and ``end_pos``. One without
                a hash matches nothing, so the tokens after it are not kept.
            prefill_tps: Tokens a second; kept for the attribute of that name.

        Returns:
            The prompt's index, or None where nothing of it could be kept (exo's own returns nothing).

        Raises:
            TokenError: A token id that is out of range.
            TypeError: Tokens or cache of another type.
        """
        entry = self._keep(Request(prompt_tokens, media_regions), cache, ssm_snapshots, prefill_tps)
        return None if entry is None else self._handles.add(entry)

    def update_kv_cache(
        self,
        index: int,
        prompt_tokens: Any,
        cache: list[Any],
        snapshots: Sequence[Any] | None,
        restore_pos: int,  # noqa: ARG002 - exo's argument; what it says is known here
        media_regions: Sequence[Any] | None = None,
        prefill_tps: float = 0.0,
    ) -> int | None:
        """As :meth:`add_kv_cache`, and the index refers to the longer prompt from now on.

        This applies if the prompt continues the one that the index refers to. A prompt that only shares
        its beginning is another conversation: it gets an index of its own, and both are kept.

        Args:
            index: As :meth:`get_kv_cache` gave it.
            prompt_tokens: As of :meth:`add_kv_cache`.
            cache: As of :meth:`add_kv_cache`.
            snapshots: As of :meth:`add_kv_cache`.
            restore_pos: The length of the hit. Earlier checkpoints stay, so nothing depends on it.
            media_regions: As of :meth:`add_kv_cache`.
            prefill_tps: As of :meth:`add_kv_cache`.

        Raises:
            IndexError: The index was never handed out.
        """
        self._handles.entry(index)
        entry = self._keep(Request(prompt_tokens, media_regions), cache, snapshots, prefill_tps)
        return None if entry is None else self._handles.update(index, entry)

    def get_kv_cache(
        self, model: Any, prompt_tokens: Any, media_regions: Sequence[Any] | None = None
    ) -> tuple[list[Any], Any, int | None, bool]:
        """The longest stored prefix of the prompt, at most all but one token.

        Args:
            model: What a fresh cache is made for.
            prompt_tokens: The whole prompt.
            media_regions: As of :meth:`add_kv_cache`.

        Returns:
            - A cache of the caller's own, fresh where nothing matches.
            - The tokens it does not hold.
            - The index of the stored prompt that shares most with this one; None where nothing is
              reused.
            - Whether that prompt has all tokens of this one but the last, or all, and what was
              kept of them is still held. Where checkpoints are needed more than one token may be
              left all the same.

        Raises:
            TokenError: A token id that is out of range.
            TypeError: Tokens of another type.
        """
        request = Request(prompt_tokens, media_regions)
        try:
            hit = self.cache.fetch(request.tokens, media=request.asked)
        except AllocationError as error:
            logger.warning("no memory to copy the cached prefix; recomputing the whole prompt: {}", error)
            return self._make_cache(model), prompt_tokens, None, False
        if hit.prompt_cache is None:
            return self._make_cache(model), prompt_tokens, None, False
        index, entry, shared = self._handles.match(request, hit.length)
        most = len(request) - 1
        exact = shared >= most and hit.matched >= min(entry.held, most)
        return hit.prompt_cache, rest(prompt_tokens, hit.length), index, exact

    def evict_for_prefill(self) -> Eviction:
        """Makes room for a prefill's activations: evicts down to ``EXO_PREFILL_MEMORY_THRESHOLD``.

        That is 0.1 below the other threshold unless set. A pressure source of the caller's own is
        asked as it is.
        """
        if not isinstance(self._pressure, MemoryPressure):
            return self.cache.reserve(0)
        with self._pressure.before_prefill():
            return self.cache.reserve(0)

    def get_memory_used_percentage(self) -> float:
        """The fraction of the machine's memory in use, 0 to 1; of a group, the largest of all ranks."""
        memory = psutil.virtual_memory()
        used = (memory.total - memory.available) / memory.total
        if self._group is None:
            return used
        everywhere = mx.distributed.all_gather(mx.array([used], dtype=mx.float32), group=self._group)
        return cast("float", mx.max(everywhere).item())

    def _keep(
        self, request: Request, cache: list[Any], snapshots: Sequence[Any] | None, prefill_tps: float
    ) -> Entry | None:
        checkpoints, end = agreed(self._ranks, request, cache, list(snapshots or ()))
        held = 0
        for at, layers in checkpoints.items():
            held = max(held, self._store(request, layers, at))
        if end:
            held = max(held, self._store(request, cache, end))
        return Entry(request.head(request.known), held, prefill_tps) if held else None

    def _store(self, request: Request, layers: list[Any], length: int) -> int:
        part = request.head(length)
        try:
            stored = self.cache.store(part.tokens, layers, media=part.spans, length=length)
        except AllocationError as error:
            logger.warning("no memory to store {} tokens: {}", length, error)
            return 0
        if stored.detail:
            logger.warning("{} of {} tokens are stored: {}", stored.length, length, stored.detail)
        return stored.length


def _fresh(model: Any) -> list[Any]:
    from mlx_lm.models.cache import make_prompt_cache

    return list(make_prompt_cache(model))
