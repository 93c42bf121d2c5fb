"""Session: one request from fetch to store."""

from __future__ import annotations

from array import array
from copy import copy
from operator import index as integer
from typing import TYPE_CHECKING, Any, NoReturn, Self

import mlx.core as mx
import numpy as np
from loguru import logger

from kvcache._core import Tokens
from kvcache.errors import AllocationError, BusyError, ClosedError, ConfigError, InternalError, TokenError
from kvcache.layers.base import Refusal, SpanAdapter
from kvcache.layers.marks import Marks, unmark
from kvcache.layers.prompt_cache import Prompt
from kvcache.media import media_keys, read_media
from kvcache.operations.fetch import fetch
from kvcache.operations.reserve import reserve
from kvcache.operations.store import Store
from kvcache.processors import WholeContext
from kvcache.ranks.bids import LengthBid, SessionBid
from kvcache.request import Request, StoreOptions, rest
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

    Leaving stores also after an exception or a cancelled prefill, as far as the layers are known
    to be in step: a model of full-attention layers up to the last completed chunk or appended token.
    Sliding windows and recurrent states do not show where they are, so models with such layers are
    stored where ``on_progress`` or ``append`` was last called, if no update has begun since;
    checkpoints made before stay. What the cache cannot store never fails a request that has its
    answer: ``stored`` and the log say so. A session is one request: it is entered once.

    Attributes:
        hit: What the fetch found.
        prompt_cache: The fetched cache, or a fresh one made for the model (and draft model).
        remaining: The tokens that are still to be run, of the type that was given; a list where that
            was a memoryview.
        stored: What leaving stored; None before, and where nothing could be.
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
        self._local_spans = self._spans_only = True
        self._runner = Runner(models, options)
        self._fresh: list[Any] | None = None
        self._namespace = namespace
        self._take = take
        self._step = options.prefill_step_size
        key = Tokens(tokens)
        if not len(key):
            raise TokenError("a session needs a prompt of at least one token, found none")
        self._media = read_media(media, len(key))
        self._spans = media_keys(self._media)
        # Copies: the engine may use its buffer again, or append to it, while the request runs.
        self._tokens = _copied(tokens)
        self._key = key.head(len(key))
        self._appended: list[int] = []
        # Tokens that all layers are known to have run, and what the layers were at that moment.
        self._noted: tuple[int, Marks | None] = (0, None)

    def __enter__(self) -> Self:
        if self._entered:
            raise ConfigError("a session is one request and was entered before; make a new one for the next")
        self._entered = True
        context = self._context
        if self._take:
            # What does not fit has to show before the entry is moved out.
            self._ranks.together(self._require_fit)
        with context.call("fetch"):
            request = context.request(self._tokens, self._namespace, self._media)
            self.hit = fetch(context, request, take=self._take)
        self.remaining = self.hit.remaining
        try:
            self._prepare()
        except BaseException as error:
            if self._take and self.hit:
                self._give_back(error)
            raise
        finally:
            # What asked to be deferred in one of the sections above.
            context.leave()
        return self

    def _prepare(self) -> None:
        """Everything between the fetch and the block."""
        lows, highs = self._ranks.propose(SessionBid, self._begin)
        # Checkpoints are kept on all ranks where one needs them.
        self._spans_only = bool(lows.spans_only)
        self._note(self.hit.length)
        if highs.known:
            self._reserve()
        at = self.hit.checkpoint_at
        if at is None or not self._runner or not self.hit.length < at < len(self._key):
            return
        # What stands under a span is no text: only the engine can run its embeddings.
        if not any(self.hit.length <= span.start < at for span in self._media):
            self._prefill(at)

    def _require_fit(self) -> None:
        """Fails where the stored caches are not those of this model, before they are fetched."""
        self._fresh = self._runner.fresh()
        held = self._context.contents.newest_layout(self._namespace)
        request = self._request(self._key, 0)
        if held is not None and self._context.contents.lookup(request, request.limit):
            self._require_depth(len(held.shape))

    def _require_depth(self, held: int) -> None:
        fresh = len(self._fresh or ())
        if fresh and fresh != held:
            raise ConfigError(
                f"the namespace {self._namespace!r} holds caches of {held} layers, this model makes "
                f"{fresh}: pass namespace=kvcache.model_namespace(model)"
            )

    def _begin(self) -> SessionBid:
        """Whether this rank has span layers only, and whether its namespace knows the bytes of a token."""
        if self._fresh is None:
            self._fresh = self._runner.fresh()
        fetched = self.hit.prompt_cache
        if fetched is not None:
            self._require_depth(len(fetched))
        elif not self._fresh:
            raise ConfigError("nothing is stored for this prompt and no model was given: pass model=")
        self.prompt_cache = self._fresh if fetched is None else fetched
        self._fresh = None
        self._local_spans = _spans_only(self.prompt_cache)
        known = self._context.contents.newest_layout(self._namespace) is not None
        return SessionBid(self._local_spans, known)

    def _give_back(self, error: BaseException) -> None:
        """What was moved out for a request that did not begin."""
        if not hasattr(self, "prompt_cache"):
            self.prompt_cache = self.hit.prompt_cache or []
            self._local_spans = self._spans_only = _spans_only(self.prompt_cache)
            self._note(self.hit.length)
        self._end(error)

    def _reserve(self) -> None:
        """Makes room once for the whole prompt, as far as the bytes of a token are known."""
        context, left = self._context, len(self._key) - self.hit.length
        checkpoints = min(context.max_checkpoints, left // self._step + 1)
        nbytes = context.contents.expected_bytes(self._namespace, left, checkpoints)
        with context.call("reserve"):
            reserve(context, nbytes, self.hit)

    def _prefill(self, at: int) -> None:
        """Runs the model up to ``at`` and stores a checkpoint there: later requests need it."""
        tokens = mx.array(rest(self._tokens, self.hit.length)).reshape(1, -1)
        last = at - self.hit.length
        for start in range(0, last, self._step):
            chunk = tokens[:, start : min(start + self._step, last)]
            self._runner.run(chunk, self.prompt_cache)
            self._note(self.hit.length + start + chunk.shape[1])
        self.remaining = rest(self._tokens, at)
        self._checkpoint(at)

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
        self._require_entered("append")
        try:
            number = integer(token)
        except TypeError:
            raise TypeError(f"append takes a token id, an int; found {type(token).__name__}") from None
        self._appended.append(number)
        self._note(len(self._key) + len(self._appended))

    def logits_processors(self, processors: Iterable[Processor] | None) -> list[Processor]:
        """Processors that see the cached part of the prompt, too: give them to mlx-lm in place of yours.

        mlx-lm hands a processor the tokens that it ran itself, so a repetition penalty would not know
        what came from the cache, and a warm answer would differ from a cold one. Ask for new ones for
        each generation.

        Args:
            processors: As mlx-lm takes them, e.g. from ``make_logits_processors``; None is an empty list.
        """
        self._require_entered("logits_processors")
        return [WholeContext(processor, self._all_tokens) for processor in processors or ()]

    def _all_tokens(self) -> list[int]:
        """The prompt and what was appended so far."""
        return [*mx.array(self._tokens).reshape(-1).tolist(), *self._appended]  # type: ignore[misc]

    def _request(self, key: Tokens, length: int | None, *, use: bool = False) -> Request:
        """A request for tokens of this session."""
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
            raise ConfigError(
                f"{call} was called before the session was entered; use it inside the with block"
            )

    def _note(self, known: int) -> None:
        """All layers have run ``known`` tokens, the caller says."""
        marks = None
        if not self._spans_only:
            try:
                marks = Marks(Prompt(self.prompt_cache))
            except Refusal:
                # Never stored, so there is nothing to watch.
                marks = None
        self._noted = known, marks

    def _checkpoint(self, at: int) -> None:
        """Stores a checkpoint if this model needs them. The request goes on without it."""
        if not self._spans_only:
            self._store(self._key.head(at), None)

    def _end(self, error: BaseException | None) -> None:
        key = self._key

        def propose() -> LengthBid:
            nonlocal key
            key = self._key.extended(self._appended)
            return LengthBid(self._storable(len(key), error))

        self._context.enter("the end of a session")
        agreed = self._ranks.propose(LengthBid, propose)
        length = agreed.lows.length
        # Of span layers all hold the smallest length; others are where they are, or nowhere.
        if length > 0 and (self._spans_only or agreed.equal):
            self.stored = self._store(key.head(length), length if self._local_spans else None)

    def _storable(self, tokens: int, error: BaseException | None) -> int:
        """Tokens that all layers are known to have run, at most ``tokens``; 0 where none is."""
        try:
            prompt = Prompt(self.prompt_cache)
        except Refusal:
            return 0
        known, marks = self._noted
        offsets = {offset for offset in prompt.offsets if offset is not None}
        if self._spans_only:
            # Layers of an interrupted pass are at different offsets: all have run the smallest.
            length = min(tokens, *offsets) if offsets else 0
            # The last layer counts rows before it writes them, and an exception in between may have been
            # caught inside the block.
            if length > known and (error is not None or not _written(prompt, length)):
                return known
            return length
        try:
            still = marks is not None and marks.hold(prompt)
        except Refusal:
            still = False
        finally:
            unmark(prompt)
        return known if still and offsets <= {known} and known <= tokens else 0

    def _store(self, key: Tokens, length: int | None) -> Stored | None:
        """Stores what the layers hold. A request does not fail because this did."""
        try:
            if length is None and not Prompt(self.prompt_cache).knows_length:
                # States count nothing: the session has counted for them.
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
            # A defect, or ranks that have come apart: not hidden. In the middle of another call: later.
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
            # A collected generator in the middle of another call of this thread: once that has ended.
            self._context.defer(lambda: self._end(error))
        except Exception:
            # A token that is none is the caller's to know, but for an exception of its own.
            if error is None:
                raise
            logger.exception("a session that ended with an exception could not store what was computed")

    def __getattr__(self, name: str) -> NoReturn:
        # Only what is not there yet comes here.
        if name in ("hit", "prompt_cache", "remaining"):
            raise AttributeError(f"a session has {name} once it is entered; use it inside the with block")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError("a session is one request and cannot be copied or pickled; make another one")


def _copied(tokens: Any) -> Any:
    """The same tokens in a buffer of their own, of the same type where that can be copied."""
    if isinstance(tokens, mx.array):
        return mx.array(tokens)
    if isinstance(tokens, list | tuple | array | np.ndarray):
        return copy(tokens)
    ids = memoryview(tokens).tolist()
    return ids[0] if ids and isinstance(ids[0], list) else ids


def _written(prompt: Prompt, length: int) -> bool:
    """Whether every layer holds something in its last row: rows that were not written are zero."""
    rows = [
        array[..., length - 1 : length, :]
        for adapter, cache in zip(prompt.adapters, prompt.caches, strict=True)
        if isinstance(adapter, SpanAdapter)
        for array in adapter.arrays(cache)
    ]
    # A width of zero holds nothing at any time.
    found = [mx.any(row != 0) for row in rows if row.size]
    mx.eval(found)
    return all(each.item() for each in found)


def _spans_only(prompt_cache: list[Any]) -> bool:
    """Whether the layers can be cut at any token. Layers that cannot be stored need no checkpoint."""
    try:
        return Prompt(prompt_cache).spans_only
    except Refusal:
        return True
