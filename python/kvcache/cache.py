"""KVPrefixCache: the facade that engines use."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import mlx.core as mx

from kvcache._core import CacheIndex
from kvcache.arguments import text, whole
from kvcache.memory.limits import MemoryLimits
from kvcache.memory.reclaim import GcPolicy, Reclaim
from kvcache.operations.context import Context
from kvcache.operations.drop import clear, close, drop
from kvcache.operations.evict import Need, evict, evict_idle, trim
from kvcache.operations.fetch import fetch, peek
from kvcache.operations.pin import Pin, pin
from kvcache.operations.reserve import reserve
from kvcache.operations.store import Store
from kvcache.ranks.group import Ranks
from kvcache.request import StoreOptions
from kvcache.running import Options
from kvcache.session import Session
from kvcache.sizes import parse_size
from kvcache.stats import Counters
from kvcache.storage.contents import Contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from kvcache.eviction import Eviction
    from kvcache.media import MediaSpan
    from kvcache.memory.pressure import PressureSource
    from kvcache.results import Hit, Stored
    from kvcache.stats import Stats


class KVPrefixCache:
    """Stores the KV state of past requests and returns the longest prefix that a new one can reuse.

    A prefix is stored once: the nodes of a radix tree own the KV of their own tokens only. Eviction removes
    the ends of sequences first, in the order of the eviction policy, and the memory is free when the call
    returns. All methods are thread-safe; array work runs on the calling thread, outside the lock.

    Args:
        max_bytes: Limit on the bytes of KV and checkpoints, never exceeded: an int, or a str such as "4GB" or
            "512MiB". None: no limit.
        max_buffers: Limit on the number of MLX arrays, never exceeded. None: 80 % of the device's resource
            limit, if it has one.
        memory_limit: Limit on MLX's active memory, kept when the cache copies: an int in bytes, a str such as
            "24GB", or a float as a fraction of the device's recommended memory, or of the machine's memory if
            the device recommends none (1.0 is all of it, the int 1 is one byte).
        pressure: Another source of memory pressure, such as ``SystemMemoryPressure()``.
        segment_tokens: Maximum tokens of a segment.
        max_checkpoints: Maximum checkpoints along one unbranched path.
        policy: The eviction policy, one of ``kvcache.POLICIES``: ``"lru"``.
        gc: When an eviction cycle collects garbage. ``"always"``: the youngest generation, and older ones
            while a dropped array is still alive or its bytes are still in use. ``"auto"``: only if dropping
            the references did not free everything. ``"full"``: all generations, every time.
        clock: Returns the time in seconds. Read at each use; only ``evict_idle`` depends on it.
        group: The ranks of one model (``mx.distributed.init()``), which then reuse the same lengths and evict
            the same entries. All ranks must make the same calls in the same order, each from one thread, and
            release pins explicitly. Work on a stream of the model's own must end before a call; the cache
            waits for mlx-lm's generation stream itself. None: a single process, at no cost.

    Raises:
        ConfigError: A parameter is out of range or unreadable.
        TypeError: A parameter has the wrong type.
    """

    def __init__(
        self,
        *,
        max_bytes: int | str | None = None,
        max_buffers: int | None = None,
        memory_limit: float | str | None = None,
        pressure: PressureSource | None = None,
        segment_tokens: int = 1024,
        max_checkpoints: int = 8,
        policy: Literal["lru"] = "lru",
        gc: GcPolicy = "always",
        clock: Callable[[], float] = time.monotonic,
        group: mx.distributed.Group | None = None,
    ) -> None:
        if not callable(clock):
            raise TypeError(f"clock must be callable, found {type(clock).__name__}")
        if group is not None and not isinstance(group, mx.distributed.Group):
            raise TypeError(f"group must be an mx.distributed.Group, found {type(group).__name__}")
        limits = MemoryLimits.of(
            max_bytes=max_bytes, max_buffers=max_buffers, memory_limit=memory_limit, pressure=pressure
        )
        index = CacheIndex(
            max_bytes=limits.max_bytes,
            max_buffers=limits.max_buffers,
            segment_tokens=whole("segment_tokens", segment_tokens, least=1),
            max_checkpoints=whole("max_checkpoints", max_checkpoints, least=1),
            policy=policy,
        )
        ranks = Ranks(group)
        self._context = Context(
            contents=Contents(index, grouped=ranks.grouped),
            limits=limits,
            reclaim=Reclaim(gc),
            counters=Counters(),
            clock=clock,
            max_checkpoints=max_checkpoints,
            ranks=ranks,
        )
        self._finalizer = weakref.finalize(self, self._context.contents.segments.release_all)
        self._finalizer.atexit = False

    def fetch(
        self, tokens: Any, *, namespace: str = "", media: Iterable[MediaSpan] = (), take: bool = False
    ) -> Hit:
        """Returns a copy of the longest reusable prefix of ``tokens``, at most all but one token.

        The prompt cache belongs to the caller: appending to it does not change what is stored. It has room
        for the remaining tokens. The prefix becomes the most recently used.

        Args:
            tokens: The whole prompt: a list, a tuple or an integer array of token ids.
            namespace: Separates what must never mix: models, adapters, quantisations, tenants.
            media: Spans of the prompt that represent images, audio and other content.
            take: Move the part that no other sequence shares out of the cache, layer by layer, instead of
                copying it. The next store brings it back.

        Returns:
            The hit, or a miss with its reason.

        Raises:
            TokenError: A token id is out of range.
            TypeError: ``tokens`` has the wrong type.
            ConfigError: Media spans overlap or end past the tokens.
            AllocationError: There is not enough memory for the copy, even after an eviction.

        Complexity: O(len(tokens)) for the match and one copy of the KV, however many prompts are stored.
        """
        context = self._context
        with context.call("fetch"):
            return fetch(context, context.request(tokens, namespace, media), take=take)

    def peek(self, tokens: Any, *, namespace: str = "", media: Iterable[MediaSpan] = ()) -> Hit:
        """Returns the hit that :meth:`fetch` would return; copies, touches and counts nothing.

        Raises:
            TokenError: A token id is out of range.
            TypeError: ``tokens`` has the wrong type.
            ConfigError: Media spans overlap or end past the tokens.
        """
        context = self._context
        with context.call("peek"):
            return peek(context, context.request(tokens, namespace, media, use=False))

    def store(
        self,
        tokens: Any,
        prompt_cache: Any,
        *,
        namespace: str = "",
        media: Iterable[MediaSpan] = (),
        length: int | None = None,
        prompt_length: int | None = None,
        label: str = "",
        donate: bool = False,
    ) -> Stored:
        """Stores ``prompt_cache`` under its tokens; copies only what is not stored yet.

        Args:
            tokens: All tokens that were run. May include the last sampled token, which was not run yet, if
                some layer counts its tokens; the key is then cut.
            prompt_cache: mlx-lm layer caches, one per layer, all at the same offset.
            namespace: As in :meth:`fetch`.
            media: As in :meth:`fetch`.
            length: Store only this many tokens, if all layers can be cut there. Required for a model whose
                layers do not count their tokens (Mamba, RWKV): the number of tokens run. Without it the store
                of such a model is refused with ``unknown_length``.
            prompt_length: How many of these tokens are the prompt; the answer follows. Matters only for
                models with checkpoints: the last checkpoint in the prompt is then kept as long as the newest
                one, so that the answer can be regenerated from it. A fetch leaves one token to run, so that
                checkpoint must have been stored before the prompt's last token. None: the checkpoint before
                the newest is kept instead.
            label: Counts this kind of store separately in the statistics. At most 1,024 labels per cache.
            donate: Move the layers in one by one. Afterwards the caller's cache is empty, unless the store
                was refused. A failure halfway loses this entry.

        Returns:
            What was stored, or why not; a refusal changes nothing.

        Raises:
            TokenError: A token id is out of range.
            TypeError: ``tokens`` or ``prompt_cache`` has the wrong type.
            ConfigError: Media spans overlap or end past the tokens, or there are too many labels.
            AllocationError: There is not enough memory for the copy, even after an eviction. Everything
                stored before stays, except what was evicted.
        """
        context = self._context
        options = StoreOptions(length, prompt_length, label, donate)
        with context.call("store"):
            return Store(context, context.request(tokens, namespace, media, options=options)).run(
                prompt_cache
            )

    def session(
        self,
        tokens: Any,
        *,
        model: Any = None,
        draft_model: Any = None,
        namespace: str = "",
        media: Iterable[MediaSpan] = (),
        take: bool = False,
        prefill_step_size: int = 2048,
        max_kv_size: int | None = None,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        quantized_kv_start: int = 5000,
    ) -> Session:
        """Makes a context manager for one request, from fetch to store: see :class:`kvcache.Session`.

        Args:
            tokens: The whole prompt, as in :meth:`fetch`; copied.
            model: Makes a fresh cache after a miss. If a checkpoint helps at some position, the session also
                runs the model up to there, unless media come before it. None: a miss raises an error, and the
                session runs nothing.
            draft_model: A draft model; its layers follow the model's in the prompt cache.
            namespace: As in :meth:`fetch`.
            media: As in :meth:`fetch`.
            take: As in :meth:`fetch`.
            prefill_step_size: Tokens per chunk when the session runs the model.
            max_kv_size: As in mlx-lm: tokens that a fresh cache keeps, if the model does not decide that.
                Requests with different values need different namespaces.
            kv_bits: As in mlx-lm: bits to which the engine quantises KV as it grows. The session does the
                same when it runs the model.
            kv_group_size: As in mlx-lm: the group size. KV whose width is not a multiple is not quantised.
            quantized_kv_start: As in mlx-lm: the number of tokens from which KV is quantised.

        Raises:
            ConfigError: A parameter is out of range. On entering also: a miss without a model, or a model
                whose number of layers differs from what the namespace holds.
            TokenError: A token id is out of range.
            TypeError: ``tokens`` or a parameter has the wrong type.
            AllocationError: On entering, as in :meth:`fetch`.
        """

        def begin() -> Session:
            options = Options(prefill_step_size, max_kv_size, kv_bits, kv_group_size, quantized_kv_start)
            models = [given for given in (model, draft_model) if given is not None]
            return Session(self._context, tokens, models, namespace, media, take=take, options=options)

        with self._context.call("session"):
            return self._context.ranks.together(begin)

    def reserve(self, nbytes: int, *, protect: Hit | None = None) -> Eviction:
        """Makes room for ``nbytes`` under ``max_bytes`` and ``memory_limit`` before a long prefill.

        Args:
            nbytes: Bytes about to be allocated and stored.
            protect: A hit whose entry must not be evicted.

        Returns:
            What was evicted. If there cannot be that much room under ``max_bytes``, nothing is evicted for
            it; the prefill can still run, and a later store keeps what fits.

        Raises:
            ConfigError: The size is negative.
            TypeError: ``protect`` is not a Hit, or ``nbytes`` is not a size.
        """
        with self._context.call("reserve"):
            return reserve(self._context, nbytes, protect)

    def evict(self, nbytes: int) -> Eviction:
        """Evicts entries in eviction order until at least ``nbytes`` are freed; pinned entries stay.

        When it returns, MLX's active and cached memory is lower by what the ledger dropped. ``evict(0)`` does
        nothing.

        Args:
            nbytes: Minimum bytes to drop. If less is held and not pinned, all of that is dropped.

        Returns:
            What was evicted, by the ledger and as measured.

        Raises:
            ConfigError: The size is negative.

        Complexity: O(1) amortised per segment or checkpoint evicted, and one reclaim.
        """
        with self._context.call("evict"):
            return evict(self._context, lambda _: Need(nbytes=parse_size(nbytes, "nbytes")))

    def evict_idle(self, seconds: float) -> Eviction:
        """Evicts entries not used for ``seconds``; pinned entries stay.

        There is no timer: an engine calls this when it is idle.

        Args:
            seconds: At least 0, measured by the cache's ``clock``.

        Raises:
            ConfigError: The number is negative.
            TypeError: It is not a number.
        """
        with self._context.call("evict_idle"):
            return evict_idle(self._context, seconds)

    def trim_to(
        self,
        *,
        nbytes: int | str | None = None,
        tokens: int | None = None,
        sequences: int | None = None,
        entries: int | None = None,
    ) -> Eviction:
        """Evicts entries in eviction order until at most this much is held; pinned entries stay.

        Pass at least one limit; None is no limit.

        Args:
            nbytes: Bytes by the ledger.
            tokens: Tokens of KV; a shared prefix counts once.
            sequences: Stored sequences, as ``len`` counts them.
            entries: Stored sequences that no other one continues, such as the last turn of each conversation;
                for models that need checkpoints, all sequences.

        Raises:
            ConfigError: A limit is negative, or there is none.
            TypeError: A limit has the wrong type.
        """
        with self._context.call("trim_to"):
            return trim(self._context, nbytes=nbytes, tokens=tokens, sequences=sequences, entries=entries)

    def pin(self, tokens: Any, *, namespace: str = "", media: Iterable[MediaSpan] = ()) -> Pin:
        """Protects the longest stored prefix of ``tokens`` from eviction until the pin is released.

        Only a stored prompt can be pinned: store it first, and check ``Pin.tokens``.

        Returns:
            A context manager that pins until it is released or garbage-collected. Its ``tokens`` is the
            number of tokens pinned, 0 if nothing matched. A partly matched node is pinned whole. For a hybrid
            model, the deepest usable checkpoint and its KV are pinned.

        Raises:
            TokenError: A token id is out of range.
            TypeError: ``tokens`` has the wrong type.
            ConfigError: Media spans overlap or end past the tokens.
        """
        context = self._context
        with context.call("pin"):
            return pin(context, context.request(tokens, namespace, media))

    def drop(self, namespace: str) -> Eviction:
        """Drops everything in a namespace, pinned or not, frees the memory, and resets its counters."""
        with self._context.call("drop"):
            return drop(self._context, namespace)

    def clear(self) -> Eviction:
        """Drops everything, pinned or not, and frees MLX's pool."""
        with self._context.call("clear"):
            return clear(self._context)

    def close(self) -> None:
        """Clears the cache for good. Later calls raise ClosedError; closing twice does nothing.

        In a signal handler or a finalizer that interrupts another call of the same thread, the close takes
        effect when that call ends.
        """
        close(self._context)
        # Last: if the close is interrupted, the finalizer still frees what is held.
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a KVPrefixCache owns its arrays and cannot be copied or pickled; pass the object itself"
        )

    @property
    def nbytes(self) -> int:
        """Bytes held, by the ledger."""
        return self._read(lambda index: index.nbytes)

    @property
    def ntokens(self) -> int:
        """Tokens of KV held; a shared prefix counts once."""
        return self._read(lambda index: index.ntokens)

    def __len__(self) -> int:
        """Stored sequences: distinct ends of stores that are still fully present, including nested ones."""
        return self._read(lambda index: index.sequences)

    def _read(self, query: Callable[[CacheIndex], int]) -> int:
        try:
            return self._context.contents.read(query)
        finally:
            self._context.leave()

    def __bool__(self) -> bool:
        """True, even if the cache is empty."""
        return True

    def __repr__(self) -> str:
        if self._context.contents.closed:
            return "KVPrefixCache(closed)"
        return f"KVPrefixCache({len(self)} sequences, {self.ntokens} tokens, {self.nbytes} bytes)"

    def stats(self, namespace: str | None = None) -> Stats:
        """Returns the counters and figures of the cache or of one namespace.

        Args:
            namespace: None for the whole cache. An unknown namespace has zeros.
        """
        if namespace is not None:
            text("namespace", namespace)
        context = self._context
        try:
            return context.contents.read(
                lambda index: context.counters.stats(
                    index.stats(namespace), namespace, context.contents.by_label(index, namespace)
                )
            )
        finally:
            context.leave()

    def validate(self) -> None:
        """Checks every invariant, and the ledger against the arrays. O(everything held).

        Raises:
            InternalError: An invariant is broken; the message names it.
        """
        try:
            self._context.contents.validate()
        finally:
            self._context.leave()
