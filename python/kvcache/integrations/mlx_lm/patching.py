"""What `patch` puts into ``mlx_lm.server``, by its module-level names.

Besides the cache itself: what keeps the KV of cancelled requests, makes checkpoints for models that need
them, keeps padding out of recurrent states, shows the reused tokens to logits processors, and refuses
requests that would end the generation thread.
"""

# mlx-lm carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import mlx.core as mx
from loguru import logger
from mlx_lm import server
from mlx_lm.generate import BatchGenerator, stream_generate

from kvcache.errors import ConfigError
from kvcache.integrations.mlx_lm.checking import CarefulResponseGenerator, hub_cache
from kvcache.integrations.mlx_lm.padding import has_recurrent_layers
from kvcache.integrations.mlx_lm.penalties import seeing
from kvcache.integrations.mlx_lm.prompt_cache import PromptCache
from kvcache.integrations.mlx_lm.server_cache import ServerPromptCache
from kvcache.layers.base import Refusal
from kvcache.layers.prompt_cache import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcache.integrations.mlx_lm.prompt_cache import Fetched

STOPPING: Final = "the server is stopping"


@contextmanager
def installed(
    *, max_size: int | None, max_bytes: int | str | None, policy: Literal["lru"]
) -> Iterator[Installation]:
    """See :func:`kvcache.integrations.mlx_lm.patch`."""
    installation = Installation(max_size, max_bytes, policy)
    with replaced(server, **installation.names()):
        yield installation


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Replaces attributes of ``owner`` inside the context."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class Installation:
    """One patch of the server.

    Attributes:
        prompt_cache: The server's cache; None until the server has made it.
    """

    def __init__(self, max_size: int | None, max_bytes: int | str | None, policy: Literal["lru"]) -> None:
        # Refuses what cannot be used now, and not in a server's thread.
        PromptCache(max_size, max_bytes, policy=policy).cache.close()
        self.prompt_cache: ServerPromptCache | None = None
        self._max_size = max_size
        self._max_bytes = max_bytes
        self._policy = policy
        self._server_bytes: int | None = None
        # Set by a server that ends: the sequential path breaks off between two chunks or tokens.
        self.stopping = threading.Event()

    def names(self) -> dict[str, Any]:
        """The server's names and their replacements."""
        return {
            "LRUPromptCache": self.make,
            "BatchGenerator": type("BatchGenerator", (KeepingBatchGenerator,), {"installation": self}),
            "ResponseGenerator": CarefulResponseGenerator,
            "scan_cache_dir": hub_cache,
            "stream_generate": _sequential(self),
            "run": self._run(server.run),
        }

    def make(self, max_size: int | None = 10, max_bytes: int | str | None = None) -> ServerPromptCache:
        """Replaces the class: makes the cache with this patch's limits, else with the arguments."""
        if max_bytes is None:
            max_bytes = self._server_bytes
        self.prompt_cache = ServerPromptCache(
            max_size if self._max_size is None else self._max_size,
            max_bytes if self._max_bytes is None else self._max_bytes,
            policy=self._policy,
        )
        return self.prompt_cache

    def fetched(self) -> Fetched | None:
        """The fetch that the request at hand began with."""
        return None if self.prompt_cache is None else self.prompt_cache.last_fetch

    def prompt(self) -> Sequence[int]:
        """Token ids of the request at hand."""
        return () if self.prompt_cache is None else self.prompt_cache.prompt

    def keep(self, fetched: Fetched, tokens: list[int], prompt_cache: list[Any]) -> None:
        """Stores what a request has computed so far. A failure here does not end the request."""
        try:
            if self.prompt_cache is not None and tokens:
                self.prompt_cache.insert_cache(fetched.model, tokens, prompt_cache, cache_type="user")
        except Exception:  # noqa: BLE001 - in the generation thread anything raised ends the server
            logger.exception("what a request had computed could not be stored")

    def _run(self, run: Callable[..., None]) -> Callable[..., None]:
        def run_with_limit(host: str, port: int, model_provider: Any, *args: Any, **options: Any) -> None:
            require_one_process()
            self._server_bytes = model_provider.cli_args.prompt_cache_bytes
            run(host, port, model_provider, *args, **options)

        return run_with_limit

    def __repr__(self) -> str:
        held = "no cache yet" if self.prompt_cache is None else f"{len(self.prompt_cache)} entries"
        return f"Installation({held}, max_size={self._max_size}, max_bytes={self._max_bytes!r})"


def require_one_process() -> None:
    """Ranks would have to agree on every hit.

    Raises:
        ConfigError: There are several.
    """
    ranks = mx.distributed.init().size()
    if ranks > 1:
        raise ConfigError(f"mlx-lm's server on kvcache runs in one process, found {ranks} ranks")


class KeepingBatchGenerator(BatchGenerator):
    """Keeps what cancelled requests computed, and stops where a checkpoint helps later requests."""

    installation: Installation

    def __init__(self, model: Any, **options: Any) -> None:
        if has_recurrent_layers(model):
            # A prefill of one row has no padding. Rows are still decoded together: a step has none either.
            options["prefill_batch_size"] = 1
        super().__init__(model, **options)
        self._requests: dict[int, Fetched] = {}
        self._checkpoints: dict[int, int] = {}

    def insert_segments(self, segments: list[Any], *args: Any, **options: Any) -> list[int]:
        """Notes which request this is, and puts a boundary where it should stop."""
        fetched, at = self.installation.fetched(), 0
        if fetched is not None and len(segments) == 1:
            total = sum(len(segment) for segment in segments[0])
            at = (fetched.checkpoint_at or 0) - (fetched.prompt_tokens - total)
            # Before the last token this generator stops by itself.
            parts = _split(segments[0], at if at < total - 1 else 0)
            at = at if len(parts) > len(segments[0]) else 0
            segments = [parts]
        uids: list[int] = super().insert_segments(segments, *args, **options)
        if fetched is not None and len(uids) == 1:
            self._requests[uids[0]] = fetched
            if at:
                self._checkpoints[uids[0]] = at
        return uids

    def next(self) -> Any:
        """One step; stores at the boundaries of :meth:`insert_segments`."""
        prompts, generated = super().next()
        for response in prompts:
            if not response.end_of_prompt and response.progress[0] == self._checkpoints.get(response.uid):
                del self._checkpoints[response.uid]
                self._keep([response.uid])
                # The server has no label for this segment.
                response.end_of_segment = False
        self._forget([response.uid for response in generated if response.finish_reason is not None])
        return prompts, generated

    def remove(self, uids: list[int], *args: Any, **options: Any) -> Any:
        """Stores what the requests have computed, then removes them."""
        self._keep(uids)
        self._forget(uids)
        return super().remove(uids, *args, **options)

    def _keep(self, uids: list[int]) -> None:
        for uid, (prompt_cache, tokens) in self.extract_cache(uids).items():
            if uid in self._requests:
                self.installation.keep(self._requests[uid], list(tokens), prompt_cache)

    def _forget(self, uids: list[int]) -> None:
        for uid in uids:
            self._requests.pop(uid, None)
            self._checkpoints.pop(uid, None)


def _split(segments: list[list[int]], at: int) -> list[list[int]]:
    """The segments with one more boundary after ``at`` tokens; 0 adds none."""
    parts, start = [], 0
    for segment in segments:
        cut = at - start
        parts += [segment[:cut], segment[cut:]] if 0 < cut < len(segment) else [segment]
        start += len(segment)
    return parts


def _sequential(installation: Installation) -> Callable[..., Any]:
    """The sequential path's generator: makes checkpoints, and shows processors the reused tokens."""

    def generate(
        *,
        prompt: Any,
        prompt_cache: Any,
        prompt_progress_callback: Any,
        logits_processors: Any = None,
        **options: Any,
    ) -> Any:
        fetched = installation.fetched()

        def progress(done: int, total: int) -> None:
            if fetched is not None and 0 < done < total and not _cuttable(prompt_cache):
                at = fetched.prompt_tokens - total + done
                installation.keep(fetched, list(fetched.tokens[:at]), prompt_cache)
            prompt_progress_callback(done, total)
            _go_on(installation)

        if fetched is not None and logits_processors and options.get("draft_model") is None:
            # With a draft model processors see the prompt's last token and the answer, cold and warm.
            reused = fetched.prompt_tokens - len(prompt)
            logits_processors = seeing(logits_processors, installation.prompt()[:reused])
        for response in stream_generate(
            prompt=prompt,
            prompt_cache=prompt_cache,
            prompt_progress_callback=progress,
            logits_processors=logits_processors,
            **options,
        ):
            yield response
            _go_on(installation)

    return generate


def _go_on(installation: Installation) -> None:
    """Raises where the server is ending: mlx-lm's own loop finishes its request first, however long."""
    if installation.stopping.is_set():
        raise RuntimeError(STOPPING)


def _cuttable(prompt_cache: list[Any]) -> bool:
    try:
        return Prompt(prompt_cache).spans_only
    except Refusal:
        return True
