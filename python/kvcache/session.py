"""Session: one request from fetch to store."""

from __future__ import annotations

import weakref
from copy import copy
from operator import index as integer
from typing import TYPE_CHECKING, Any, Final, Self

import mlx.core as mx
from loguru import logger

from kvcache._core import Tokens
from kvcache.errors import AllocationError, BusyError, ConfigError
from kvcache.fetching import Question, rest
from kvcache.layers.base import ImageAdapter, Refusal
from kvcache.layers.prompt import Prompt, token_bytes
from kvcache.results import Hit, MediaSpan, Stored, media_keys

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from kvcache.cache import KVPrefixCache

# mlx-lm's own defaults for turning a KVCache into a quantised one.
_QUANTIZED_FROM: Final = 5000
_GROUP_SIZE: Final = 64


class Session:
    """One request: fetches on entering, stores what was computed on leaving.

    ::

        with cache.session(prompt_tokens, model=model) as s:
            for r in stream_generate(model, tokenizer, s.remaining, prompt_cache=s.prompt_cache,
                                     prompt_progress_callback=s.on_progress):
                s.append(r.token)

    Leaving stores also after an exception or a cancelled prefill, as far as the layers are known
    to be in step: a model of span layers up to the last completed chunk or appended token. State
    layers do not show where they stand, so models with such are stored where ``on_progress`` or
    ``append`` was last called, if they have not moved since, and after a KeyboardInterrupt not at
    all; checkpoints made before stay. A session is one request: it is entered once.

    Attributes:
        hit: What the fetch found.
        prompt_cache: The fetched cache, or a fresh one made for the model (and draft model).
        remaining: The tokens that are still to be run, of the type that was given.
        stored: What leaving stored; None before, and where nothing could be.
    """

    hit: Hit
    prompt_cache: list[Any]
    remaining: Any

    def __init__(
        self,
        cache: KVPrefixCache,
        tokens: Any,
        *,
        model: Any,
        draft_model: Any,
        namespace: str,
        media: Iterable[MediaSpan],
        take: bool,
        prefill_step_size: int,
        kv_bits: int | None,
    ) -> None:
        self.stored: Stored | None = None
        self._entered = False
        self._cache = cache
        self._ranks = cache._state.ranks
        self._local_spans = self._spans_only = True
        self._models = [each for each in (model, draft_model) if each is not None]
        self._namespace = namespace
        self._media = tuple(media) if hasattr(media, "__iter__") else media
        self._spans = media_keys(self._media)
        self._take = take
        self._step = prefill_step_size
        self._kv_bits = kv_bits
        key = Tokens(tokens)
        # Copies: the engine may use its buffer again, or append to it, while the request runs.
        self._tokens = _copied(tokens)
        self._key = key.head(len(key))
        self._appended: list[int] = []
        # Tokens that all layers are known to have run, and the state arrays at that moment.
        self._known = 0
        self._noted: list[weakref.ref[Any]] = []

    def __enter__(self) -> Self:
        if self._entered:
            raise ConfigError("a session is one request and was entered before; make a new one for the next")
        self._entered = True
        cache = self._cache
        self.hit = cache.fetch(self._tokens, namespace=self._namespace, media=self._media, take=self._take)
        self.remaining = self.hit.remaining
        lows, highs = self._ranks.propose(self._begin, 2)
        # Checkpoints are kept on all ranks where one needs them.
        self._spans_only = bool(lows[0])
        self._known = self.hit.length
        self._note(self._known)
        if highs[1]:
            self._reserve()
        at = self.hit.checkpoint_at
        if at is not None and self._models and self.hit.length < at < len(self._key):
            self._prefill(at)
        return self

    def _begin(self) -> tuple[bool, bool]:
        """Whether this rank has span layers only, and whether its namespace knows the bytes of a token."""
        self.prompt_cache = self._caches()
        self._local_spans = _spans_only(self.prompt_cache)
        with self._cache._state.lock:
            index = self._cache._state.opened()
            return self._local_spans, bool(index.layouts(self._namespace))

    def _caches(self) -> list[Any]:
        """The fetched cache, or a fresh one."""
        fresh = [layer for model in self._models for layer in _make(model)]
        fetched = self.hit.prompt_cache
        if fetched is None:
            if not fresh:
                raise ConfigError("nothing is stored for this prompt and no model was given: pass model=")
            return fresh
        if fresh and len(fresh) != len(fetched):
            raise ConfigError(
                f"the namespace {self._namespace!r} holds caches of {len(fetched)} layers, this model makes "
                f"{len(fresh)}: pass namespace=kvcache.model_namespace(model)"
            )
        return fetched

    def _reserve(self) -> None:
        """Makes room once for the whole prompt, as far as the bytes of a token are known."""
        state, left, nbytes = self._cache._state, len(self._key) - self.hit.length, 0
        with state.lock:
            index = state.opened()
            layouts = index.layouts(self._namespace)
            if layouts:
                nbytes = left * token_bytes(state.layouts[layouts[-1]])
                checkpoints = min(state.max_checkpoints, left // self._step + 1)
                nbytes += checkpoints * state.checkpoint_bytes.get(layouts[-1], 0)
        self._cache.reserve(nbytes, protect=self.hit)

    def _prefill(self, at: int) -> None:
        """Runs the model up to ``at`` and stores a checkpoint there: later requests need it."""
        tokens = mx.array(rest(self._tokens, self.hit.length)).reshape(1, -1)
        last = at - self.hit.length
        for start in range(0, last, self._step):
            chunk = tokens[:, start : min(start + self._step, last)]
            first = 0
            for model in self._models:
                count = len(self.prompt_cache) if len(self._models) == 1 else len(_make(model))
                model(chunk, cache=self.prompt_cache[first : first + count])
                first += count
            self._quantize()
            mx.eval([getattr(layer, "state", ()) for layer in self.prompt_cache])
            self._note(self.hit.length + start + chunk.shape[1])
        self.remaining = rest(self._tokens, at)
        self._checkpoint(at)

    def _quantize(self) -> None:
        if self._kv_bits is None:
            return
        for number, layer in enumerate(self.prompt_cache):
            if hasattr(layer, "to_quantized") and layer.offset >= _QUANTIZED_FROM:
                self.prompt_cache[number] = layer.to_quantized(group_size=_GROUP_SIZE, bits=self._kv_bits)

    def on_progress(self, done: int, total: int) -> None:
        """Give it to ``stream_generate`` as ``prompt_progress_callback``.

        Stores a checkpoint after each prefill chunk of a model that is usable at checkpoints only.
        The last call (done == total) is ignored: the cache is one token further by then.
        """
        if not 0 < done < total:
            return
        at = len(self._key) - total + done
        self._note(at)
        self._checkpoint(at)

    def append(self, token: int) -> None:
        """Notes a generated token, after it was run. The key grows by it.

        Raises:
            TypeError: The token is no integer.
        """
        if not self._entered:
            raise ConfigError(
                "append was called before the session was entered; use it inside the with block"
            )
        self._appended.append(integer(token))
        self._note(len(self._key) + len(self._appended))

    def _note(self, known: int) -> None:
        self._known = known
        self._noted = [weakref.ref(array) for array in self._state_arrays()]

    def _state_arrays(self) -> list[Any]:
        try:
            prompt = Prompt(self.prompt_cache)
            pairs = zip(prompt.adapters, prompt.caches, strict=True)
            return [
                array
                for adapter, cache in pairs
                if isinstance(adapter, ImageAdapter) and adapter.offset(cache) is None
                for array in adapter.image(cache).arrays
            ]
        except Refusal:
            return []

    def _checkpoint(self, at: int) -> None:
        """Stores a checkpoint if this model needs them. The request goes on without it."""
        if self._spans_only:
            return
        try:
            self._store(self._key.head(at), None)
        except AllocationError as error:
            logger.warning("no checkpoint at token {}: {}", at, error)

    def _leave(self, error: BaseException | None) -> None:
        key = self._key

        def propose() -> tuple[int]:
            nonlocal key
            key = self._key.extended(self._appended)
            return (self._storable(len(key), error),)

        self._cache._state.enter("the end of a session")
        lows, highs = self._ranks.propose(propose, 1)
        length = lows[0]
        # Of span layers all hold the smallest length; others stand where they stand, or nowhere.
        if length > 0 and (self._spans_only or length == highs[0]):
            self.stored = self._store(key.head(length), length if self._local_spans else None)

    def _storable(self, tokens: int, error: BaseException | None) -> int:
        """Tokens that all layers are known to have run, at most ``tokens``; 0 where none is."""
        try:
            prompt = Prompt(self.prompt_cache)
        except Refusal:
            return 0
        known = {offset for offset in prompt.offsets if offset is not None}
        if self._spans_only:
            # Layers of an interrupted pass are at different offsets: all have run the smallest.
            length = min(tokens, *known) if known else 0
            return min(length, self._known) if error is not None else length
        if isinstance(error, KeyboardInterrupt):
            # It can come between a window's rows and its offset.
            return 0
        if None in prompt.offsets:
            # Nothing shows where these layers stand, but that they have not moved since.
            known.add(0 if self._moved() else self._known)
        length = known.pop() if len(known) == 1 else 0
        if error is not None:
            # A pass that broke off may have gone through all layers; what counts is what was told.
            return length if length == self._known else 0
        return length if length <= tokens else 0

    def _moved(self) -> bool:
        """Whether state layers ran a token that the key does not have."""
        now = self._state_arrays()
        return len(now) != len(self._noted) or any(
            noted() is not array for noted, array in zip(self._noted, now, strict=True)
        )

    def _store(self, key: Tokens, length: int | None) -> Stored:
        def ask() -> Question:
            stamp = self._cache._state.stamp()
            return Question(None, self._namespace, self._media, key, self._spans, stamp)

        return self._cache._store(ask, self.prompt_cache, length, "", donate=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._leave(error)
        except BusyError:
            # A collected generator in the middle of another call of this thread: once that has ended.
            self._cache._state.defer(lambda: self._leave(error))
        except Exception:
            if error is None:
                raise
            logger.exception("a session that ended with an exception could not store what was computed")


def _copied(tokens: Any) -> Any:
    """The same tokens in a buffer of their own, of the same type."""
    return mx.array(tokens) if isinstance(tokens, mx.array) else copy(tokens)


def _make(model: Any) -> list[Any]:
    from mlx_lm.models.cache import make_prompt_cache

    return list(make_prompt_cache(model))


def _spans_only(prompt_cache: list[Any]) -> bool:
    """Whether the layers can be cut at any token. Layers that cannot be stored need no checkpoint."""
    try:
        return Prompt(prompt_cache).spans_only
    except Refusal:
        return True
