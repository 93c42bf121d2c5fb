"""Session: one request from fetch to store."""

from __future__ import annotations

from operator import index as integer
from typing import TYPE_CHECKING, Any, NoReturn, Self

import mlx.core as mx
from loguru import logger

from kvcache._core import Tokens
from kvcache.errors import AllocationError, BusyError, ClosedError, ConfigError, InternalError, TokenError
from kvcache.layers.base import Refusal
from kvcache.layers.prompt_cache import Prompt
from kvcache.media import media_keys, read_media
from kvcache.operations.fetch import fetch
from kvcache.operations.reserve import reserve
from kvcache.operations.store import Store
from kvcache.processors import WholeContext
from kvcache.progress import Progress
from kvcache.ranks.bids import LengthBid, SessionBid
from kvcache.request import Request, StoreOptions, copied, rest
from kvcache.results import Hit, Stored
from kvcache.running import Options, Runner

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from kvcache.media import MediaSpan
    from kvcache.operations.context import Context
    from kvcache.processors import Processor


class Session:
    """One request: fetches on entering, stores what was computed on leaving.

    ::

        with cache.session(prompt_tokens, model=model) as s:
            for r in stream_generate(model, tokenizer, s.remaining, prompt_cache=s.prompt_cache,
                                     prompt_progress_callback=s.on_progress):
                s.append(r.token)

    Leaving also stores after an exception or a cancelled prefill, up to the last token that all layers are
    known to have run. For a model of full-attention layers that is the last complete chunk or appended token.
    Sliding windows and recurrent states do not show where they are, so a model with such layers is stored
    where ``on_progress`` or ``append`` was last called, if no update has begun since. Earlier checkpoints
    stay. A failed store never fails a request: ``stored`` and the log report it. A session can be entered
    once.

    Attributes:
        hit: The result of the fetch.
        prompt_cache: The fetched cache, or a fresh one made for the model (and draft model).
        remaining: The tokens left to run, in the type of the argument; a list if that was a memoryview.
        stored: The result of the store on leaving; None before, and if nothing could be stored.
    """

    hit: Hit
    prompt_cache: list[Any]
    remaining: Any

    def __init__(
        self,
        context: Context,
        tokens: Any,
        models: Sequence[Any],
        namespace: str,
        media: Iterable[MediaSpan],
        *,
        take: bool,
        options: Options,
    ) -> None:
        self.stored: Stored | None = None
        self._entered = False
        self._context = context
        self._ranks = context.ranks
        self._runner = Runner(models, options)
        self._progress = Progress()
        self._namespace = namespace
        self._take = take
        self._step = options.prefill_step_size
        key = Tokens(tokens)
        if not len(key):
            raise TokenError("a session needs a prompt of at least one token, found none")
        self._media = read_media(media, len(key))
        self._spans = media_keys(self._media)
        # Copies: the engine may reuse its buffer or append to it while the request runs.
        self._tokens = copied(tokens)
        self._key = key.head(len(key))
        self._appended: list[int] = []

    def __enter__(self) -> Self:
        if self._entered:
            raise ConfigError("a session is one request and was entered before; make a new one for the next")
        self._entered = True
        context = self._context
        if self._take:
            # A wrong model must fail before the entry is moved out.
            self._ranks.together(self._require_model)
        with context.call("fetch"):
            request = context.request(self._tokens, self._namespace, self._media)
            self.hit = fetch(context, request, take=self._take)
        self.remaining = self.hit.remaining
        try:
            self._prepare()
        except BaseException as error:
            if self._take and self.hit:
                self._put_back(error)
            raise
        finally:
            # Runs what was deferred during the sections above.
            context.leave()
        return self

    def _prepare(self) -> None:
        """Does everything between the fetch and the ``with`` block."""
        lows, highs = self._ranks.propose(SessionBid, self._begin)
        # If one rank needs checkpoints, all ranks keep them.
        self._progress.spans_only = bool(lows.spans_only)
        self._progress.report(self.hit.length, self.prompt_cache)
        if highs.known:
            self._reserve()
        at = self.hit.checkpoint_at
        if at is None or not self._runner or not self.hit.length < at < len(self._key):
            return
        # Only the engine can run the embeddings of a media span.
        if not any(self.hit.length <= span.start < at for span in self._media):
            self._prefill(at)

    def _require_model(self) -> None:
        """Fails before the fetch if the stored caches do not fit this model."""
        self._runner.make_fresh()
        held = self._context.contents.newest_layout(self._namespace)
        request = self._request(self._key, 0)
        if held is not None and self._context.contents.lookup(request, request.limit):
            self._runner.require_layers(len(held.shape), self._namespace)

    def _begin(self) -> SessionBid:
        self.prompt_cache = self._runner.prompt_cache(self.hit.prompt_cache, self._namespace)
        self._progress.start(self.prompt_cache)
        known = self._context.contents.newest_layout(self._namespace) is not None
        return SessionBid(self._progress.local_spans_only, known)

    def _put_back(self, error: BaseException) -> None:
        """Stores again what was moved out for a request that did not begin."""
        if not hasattr(self, "prompt_cache"):
            self.prompt_cache = self.hit.prompt_cache or []
            self._progress.start(self.prompt_cache)
            self._progress.report(self.hit.length, self.prompt_cache)
        self._end(error)

    def _reserve(self) -> None:
        """Makes room for the whole prompt at once; the bytes of a token are known."""
        context, left = self._context, len(self._key) - self.hit.length
        checkpoints = min(context.max_checkpoints, left // self._step + 1)
        nbytes = context.contents.expected_bytes(self._namespace, left, checkpoints)
        with context.call("reserve"):
            reserve(context, nbytes, self.hit)

    def _prefill(self, at: int) -> None:
        """Runs the model up to ``at`` and stores a checkpoint there for later requests."""
        tokens = mx.array(rest(self._tokens, self.hit.length)).reshape(1, -1)
        count = at - self.hit.length
        for start in range(0, count, self._step):
            chunk = tokens[:, start : min(start + self._step, count)]
            self._runner.run(chunk, self.prompt_cache)
            self._progress.report(self.hit.length + start + chunk.shape[1], self.prompt_cache)
        self.remaining = rest(self._tokens, at)
        self._checkpoint(at)

    def on_progress(self, done: int, total: int) -> None:
        """Stores a checkpoint after a prefill chunk, for a model that needs checkpoints.

        Pass it to ``stream_generate`` as ``prompt_progress_callback``. The last call (done == total) is
        ignored, because the cache is one token further by then.
        """
        if not 0 < done < total:
            return
        self._require_entered("on_progress")
        at = len(self._key) - total + done
        self._progress.report(at, self.prompt_cache)
        self._checkpoint(at)

    def append(self, token: int) -> None:
        """Adds a generated token to the key, after it was run.

        Raises:
            TypeError: The token is not an integer.
        """
        self._require_entered("append")
        try:
            token_id = integer(token)
        except TypeError:
            raise TypeError(f"append takes a token id, an int; found {type(token).__name__}") from None
        self._appended.append(token_id)
        self._progress.report(len(self._key) + len(self._appended), self.prompt_cache)

    def logits_processors(self, processors: Iterable[Processor] | None) -> list[Processor]:
        """Wraps logits processors so that they also see the cached part of the prompt.

        mlx-lm passes a processor only the tokens that it ran, so without this a repetition penalty would give
        another answer after a hit. Wrap them again for each generation. None is an empty list.
        """
        self._require_entered("logits_processors")
        return [WholeContext(processor, self._all_tokens) for processor in processors or ()]

    def _all_tokens(self) -> list[int]:
        return [*mx.array(self._tokens).reshape(-1).tolist(), *self._appended]  # type: ignore[misc]

    def _request(self, key: Tokens, length: int | None, *, use: bool = False) -> Request:
        """A request for some tokens of this session."""
        options = StoreOptions(length=length, prompt_length=len(self._key))
        try:
            stamp = self._context.stamp() if use else 0
        except Exception as error:
            if not self._ranks.grouped:
                raise
            return Request.failed(error)
        return Request(None, self._namespace, self._media, key, self._spans, stamp, options)

    def _require_entered(self, call: str) -> None:
        if not self._entered:
            raise ConfigError(f"{call} was called before the session was entered; use the with block")

    def _checkpoint(self, at: int) -> None:
        """Stores a checkpoint if the model needs checkpoints."""
        if not self._progress.spans_only:
            self._store(self._key.head(at), None)

    def _end(self, error: BaseException | None) -> None:
        progress, key = self._progress, self._key

        def propose() -> LengthBid:
            nonlocal key
            key = self._key.extended(self._appended)
            length = progress.storable(len(key), self.prompt_cache, interrupted=error is not None)
            return LengthBid(length)

        self._context.enter("the end of a session")
        agreed = self._ranks.propose(LengthBid, propose)
        length = agreed.lows.length
        # Span layers can be cut to the smallest length; other layers are all at the same one, or not stored.
        if length > 0 and (progress.spans_only or agreed.equal):
            self.stored = self._store(key.head(length), length if progress.local_spans_only else None)

    def _store(self, key: Tokens, length: int | None) -> Stored | None:
        """Stores what the layers hold. Only a bug or a busy cache raises; a request keeps its answer."""
        try:
            if length is None and not Prompt(self.prompt_cache).knows_length:
                # Recurrent states count nothing; the session has counted for them.
                length = len(key)
        except Refusal:
            pass
        try:
            with self._context.call("store"):
                request = self._request(key, length, use=True)
                return Store(self._context, request).run(self.prompt_cache)
        except AllocationError as error:
            logger.warning("a session could not store {} tokens: {}", len(key), error)
            return Stored(0, 0, 0, "too_large", error.evicted, str(error))
        except (InternalError, BusyError):
            # A bug or ranks that differ must not be hidden; a busy cache means that the end is deferred.
            raise
        except ClosedError:
            logger.warning("a session could not store {} tokens: its cache was closed", len(key))
        except Exception:  # noqa: BLE001 - logged, and the request keeps its answer
            logger.exception("a session could not store {} tokens", len(key))
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end(error)
        except BusyError:
            # A generator that is garbage-collected in the middle of another call of this thread.
            self._context.defer(lambda: self._end(error))
        except Exception:
            # An invalid appended token is reported to the caller, but never hides the caller's own exception.
            if error is None:
                raise
            logger.exception("a session that ended with an exception could not store what was computed")

    def __getattr__(self, name: str) -> NoReturn:
        # Called only for attributes that are not set.
        if name in ("hit", "prompt_cache", "remaining"):
            raise AttributeError(f"a session has {name} once it is entered; use it inside the with block")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        reused = f"{self.hit.length} reused" if "hit" in vars(self) else "not fetched"
        return f"Session({len(self._key)} tokens, {reused}, {len(self._appended)} appended)"

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError("a session is one request and cannot be copied or pickled; make another one")
