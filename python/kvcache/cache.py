"""KVPrefixCache: the façade that engines use."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import mlx.core as mx

from kvcache._core import CacheIndex
from kvcache.arguments import number, shown, text, whole
from kvcache.errors import BusyError, ConfigError
from kvcache.memory.limits import MemoryLimits
from kvcache.memory.reclaim import GcPolicy, Reclaim
from kvcache.operations.context import Context
from kvcache.operations.evict import Need, cycle, evict, evict_idle, finish
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
    """Keeps the KV state of what was computed, and hands the longest reusable prefix back.

    Every prefix is stored once: the nodes of a radix tree own the KV of just their own tokens.
    Eviction takes tails first, by last use, and what it drops is given back to the system before the
    call returns. All methods are safe to call from several threads; array work
    runs on the calling thread, outside the lock.

    Args:
        max_bytes: Bytes of KV and checkpoints at every moment: an int, or a text such as "4GB" or
            "512MiB". None: no such limit.
        max_buffers: MLX arrays at every moment. None: 80 % of the device's resource limit, where
            it has one.
        memory_limit: MLX active memory to stay under when copying: an int of bytes, a text such as
            "24GB", or a float as a fraction of the memory that the device recommends to use, or else
            of the machine's (1.0 is all of it, the int 1 is one byte).
        pressure: Another source of memory pressure, e.g. ``SystemMemoryPressure()``.
        segment_tokens: Tokens of a segment at most.
        max_checkpoints: Checkpoints kept along one unbranched path.
        policy: The eviction policy, one of ``kvcache.POLICIES``: ``"lru"``.
        gc: When an eviction cycle collects garbage. ``"always"``: the youngest generation, and older
            ones while something that was dropped is alive or its bytes are missing. ``"auto"``: none
            where dropping the references was enough. ``"full"``: everything, every time.
        clock: Seconds; read at each use, only ``evict_idle`` looks at it.
        group: The ranks of one model (``mx.distributed.init()``): they reuse the same lengths and
            evict the same entries. All make the same calls in the same order, each from one
            thread, and release pins by hand. What a model has under way on a stream of its own has
            to end before a call; mlx-lm's generation stream is waited for. None: a single process,
            without any cost.

    Raises:
        ConfigError: A parameter that cannot be used.
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
        """Hands out the longest prefix of ``tokens`` that can be reused, at most all but one token.

        The prompt cache belongs to the caller: appending to it changes nothing that is stored. It
        has room for the remaining tokens. What served it becomes the most recently used.

        Args:
            tokens: The whole prompt: a list, a tuple or an integer array of token ids.
            namespace: What must never mix: model, adapter, quantisation, tenant.
            media: Spans of the prompt that stand for images, audio and the like.
            take: Move the part that nothing else continues out of the cache, layer by layer,
                instead of copying it; it comes back with the next store.

        Returns:
            The hit, or a miss with its reason.

        Raises:
            TokenError: A token id that is out of range.
            TypeError: Tokens of another type.
            AllocationError: There is no memory for the copy, not even after an eviction.

        Complexity: O(len(tokens)) for the match, one copy of the KV; the number of stored prompts
        plays no part.
        """
        context = self._context
        with context.call("fetch"):
            return fetch(context, context.request(tokens, namespace, media), take=take)

    def peek(self, tokens: Any, *, namespace: str = "", media: Iterable[MediaSpan] = ()) -> Hit:
        """What :meth:`fetch` would find; copies, touches and counts nothing.

        Raises:
            TokenError: A token id that is out of range.
            TypeError: Tokens of another type.
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
        """Stores what ``prompt_cache`` holds under its tokens; copies only what is not held yet.

        Args:
            tokens: The tokens that were run, from the first. One more is fine where some layer counts
                what it holds: the last sampled token was not run yet, and the key is cut.
            prompt_cache: mlx-lm layer caches, one per layer, all at one offset.
            namespace: As in :meth:`fetch`.
            media: As in :meth:`fetch`.
            length: Store this many tokens only; for caches whose layers can all be cut there. Of
                a model whose layers count nothing (Mamba, RWKV) it says how many were run, and is
                required: without it such a store is refused with ``unknown_length``.
            prompt_length: How many of these tokens are the prompt; the answer follows. Matters only for
                models that are usable at checkpoints: the last checkpoint at or before the prompt's end
                then stays as long as the newest one. Regenerating an answer finds it if it was stored
                before the prompt's last token, since a fetch leaves one token to run. None: the
                checkpoint before the newest stays instead.
            label: A kind of store, counted by itself in the statistics; a cache takes 1,024 of them.
            donate: Move the layers in one by one: the caller's cache is empty afterwards, unless
                the store was refused. What fails half-way has lost that one entry.

        Returns:
            What was stored, or why not; a refusal changes nothing.

        Raises:
            TokenError: A token id that is out of range.
            TypeError: Tokens or prompt_cache of another type.
            ConfigError: Media spans that overlap, or that end past the tokens; a label beyond those.
            AllocationError: There is no memory for the copy, not even after an eviction; what was
                stored before is still there, less what was evicted.
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
        """One request from fetch to store, as a context manager: see :class:`kvcache.Session`.

        Args:
            tokens: The whole prompt, as in :meth:`fetch`. It is copied.
            model: What a fresh cache is made for where nothing is stored, and what is run up to a
                position where a checkpoint helps, unless media are to be run before it. None: a miss
                raises, and nothing is run here.
            draft_model: A draft model; its layers come after the model's in the prompt cache.
            namespace: As in :meth:`fetch`.
            media: As in :meth:`fetch`.
            take: As in :meth:`fetch`.
            prefill_step_size: Tokens of a chunk where the session itself runs the model.
            max_kv_size: Tokens that a fresh cache keeps, where the model leaves the choice; mlx-lm's.
                Requests with another one need a namespace of their own.
            kv_bits: Bits to which the engine quantises KV as it grows; mlx-lm's. The session does the same
                where it runs the model.
            kv_group_size: Its groups; mlx-lm's. KV of a width that is no multiple of it stays as it is.
            quantized_kv_start: Tokens from which on it does so; mlx-lm's.

        Raises:
            ConfigError: A parameter that cannot be used; on entering also a miss without a model, and
                a model of another number of layers than the namespace holds.
            TokenError: A token id that is out of range.
            TypeError: Tokens of another type.
            AllocationError: On entering, as :meth:`fetch`.
        """

        def begin() -> Session:
            options = Options(prefill_step_size, max_kv_size, kv_bits, kv_group_size, quantized_kv_start)
            models = [each for each in (model, draft_model) if each is not None]
            return Session(self._context, tokens, models, namespace, media, take=take, options=options)

        with self._context.call("session"):
            return self._context.ranks.together(begin)

    def reserve(self, nbytes: int, *, protect: Hit | None = None) -> Eviction:
        """Makes room for ``nbytes`` under ``max_bytes`` and ``memory_limit`` before a long prefill.

        Args:
            nbytes: Bytes that are about to be allocated and stored.
            protect: A hit whose entry stays.

        Returns:
            What was evicted. If that much room cannot be made under ``max_bytes``, nothing is evicted;
            the prefill can still run, and a later store keeps what fits.

        Raises:
            ConfigError: A negative size.
        """
        with self._context.call("reserve"):
            return reserve(self._context, nbytes, protect)

    def evict(self, nbytes: int) -> Eviction:
        """Evicts units in eviction order until at least ``nbytes`` are gone; pinned entries stay.

        When it returns, MLX active + cached memory is lower by what the ledger dropped. ``evict(0)``
        does nothing.

        Args:
            nbytes: Bytes to drop at least, where that many are held and not pinned.

        Returns:
            What was evicted, by the ledger and as measured.

        Raises:
            ConfigError: A negative size.

        Complexity: O(1) amortised for each segment or checkpoint evicted, and one reclaim.
        """
        with self._context.call("evict"):
            return evict(self._context, lambda _: Need(nbytes=parse_size(nbytes, "nbytes")))

    def evict_idle(self, seconds: float) -> Eviction:
        """Evicts what was not used for ``seconds`` by the clock; pinned entries stay.

        Nothing happens by itself: there is no timer. An engine calls it where it is idle.

        Args:
            seconds: Of the cache's ``clock``, at least 0.

        Raises:
            ConfigError: A negative number.
            TypeError: No number.
        """
        context = self._context

        def since() -> int | None:
            idle = number("seconds must be a number", seconds)
            if not idle >= 0:
                raise ConfigError(f"seconds must not be negative, found {shown(seconds)}")
            stamp = context.stamp() - idle * 1e6
            return int(stamp) if stamp >= 0 else None

        with context.call("evict_idle"):
            return evict_idle(context, since)

    def trim_to(
        self,
        *,
        nbytes: int | str | None = None,
        tokens: int | None = None,
        sequences: int | None = None,
        entries: int | None = None,
    ) -> Eviction:
        """Evicts in eviction order until at most this much is held; pinned entries stay.

        Args:
            nbytes: Bytes by the ledger. None: any number.
            tokens: Tokens of KV; a shared prefix counts once. None: any number.
            sequences: Stored sequences, as ``len`` counts them. None: any number.
            entries: Stored sequences that no other one continues, such as the last turn of each
                conversation (of models that are usable at checkpoints only, all). None: any number.

        Raises:
            ConfigError: A negative figure.
        """

        def over(index: CacheIndex) -> Need:
            most_bytes = index.nbytes if nbytes is None else parse_size(nbytes, "nbytes")
            return Need(
                nbytes=max(0, index.nbytes - most_bytes),
                tokens=_over("tokens", index.ntokens, tokens),
                sequences=_over("sequences", index.sequences, sequences),
                entries=_over("entries", index.entries, entries),
            )

        with self._context.call("trim_to"):
            return evict(self._context, over)

    def pin(self, tokens: Any, *, namespace: str = "", media: Iterable[MediaSpan] = ()) -> Pin:
        """Keeps the longest stored prefix of ``tokens`` from eviction, until released.

        Only what is stored already can be pinned: store the prompt first, and check ``Pin.tokens``.

        Returns:
            A context manager, which pins as long as it is kept. Its ``tokens`` says how many are
            pinned: 0 where nothing matched. A node matched in part is pinned whole; of a hybrid
            model the deepest usable checkpoint with its KV is.

        Raises:
            TokenError: A token id that is out of range.
            TypeError: Tokens of another type.
        """
        context = self._context
        with context.call("pin"):
            return pin(context, context.request(tokens, namespace, media))

    def drop(self, namespace: str) -> Eviction:
        """Drops all of a namespace, pinned or not, and gives its memory back. Its counters go too."""
        context = self._context
        with context.call("drop"):
            context.ranks.together(lambda: self._require_open(namespace))
            evicted = cycle(context, lambda index: index.drop(namespace))
            with context.contents.lock:
                context.contents.opened()
                context.counters.forget(namespace)
            return evicted

    def _require_open(self, namespace: str = "") -> None:
        """Fails where a call would: before ranks act together."""
        text("namespace", namespace)
        with self._context.contents.lock:
            self._context.contents.opened()

    def clear(self) -> Eviction:
        """Drops everything, pinned or not, and gives MLX's pool back."""
        context = self._context
        with context.call("clear"):
            context.ranks.together(self._require_open)
            return finish(context, context.contents.clear())

    def close(self) -> None:
        """Clears the cache for good: later calls raise ClosedError. Closing twice is fine.

        From a signal handler or a finalizer that interrupts another call of its thread, it takes effect
        when that call ends.
        """
        _close(self._context)
        # Only now: what interrupts a close leaves the finalizer to what is held.
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
            "a KVPrefixCache owns what it holds and cannot be copied or pickled; pass the object itself on"
        )

    @property
    def nbytes(self) -> int:
        """Bytes held now, by the ledger."""
        return self._read(lambda index: index.nbytes)

    @property
    def ntokens(self) -> int:
        """Tokens of KV held now; a shared prefix counts once."""
        return self._read(lambda index: index.ntokens)

    def __len__(self) -> int:
        """Stored sequences: distinct ends of stores that are fully present, nested ones each."""
        return self._read(lambda index: index.sequences)

    def _read(self, query: Callable[[CacheIndex], int]) -> int:
        try:
            return self._context.contents.read(query)
        finally:
            self._context.leave()

    def __bool__(self) -> bool:
        """A cache is a cache, also an empty one."""
        return True

    def __repr__(self) -> str:
        if self._context.contents.closed:
            return "KVPrefixCache(closed)"
        return f"KVPrefixCache({len(self)} sequences, {self.ntokens} tokens, {self.nbytes} bytes)"

    def stats(self, namespace: str | None = None) -> Stats:
        """Counters and figures, of all or of one namespace.

        Args:
            namespace: None: all together. One that holds nothing has zeros.
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
        """Checks every invariant, the ledger against the arrays held included. O(everything).

        Raises:
            InternalError: Names the broken invariant.
        """
        try:
            self._context.contents.validate()
        finally:
            self._context.leave()


def _over(name: str, held: int, most: int | None) -> int:
    return 0 if most is None else max(0, held - whole(name, most))


def _close(context: Context) -> None:
    """Drops everything for good; what other threads have under way ends with ClosedError.

    In the middle of another call of this thread it waits for that call's end.
    """
    try:
        removed = context.contents.close()
    except BusyError:
        context.defer(lambda: _close(context))
        return
    if removed is not None:
        finish(context, removed)
