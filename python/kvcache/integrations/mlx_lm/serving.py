"""mlx-lm's HTTP server with the cache in place, and where its figures are told.

Ports are bound before the model is loaded: one that is taken is known at once, and no thread is left
behind.
"""

# mlx-lm carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import gc
import json
import signal
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import mlx.core as mx
import psutil
from loguru import logger
from mlx_lm import server
from prometheus_client import CONTENT_TYPE_LATEST

from kvcache.errors import ClosedError, KVCacheError
from kvcache.integrations.mlx_lm.figures import as_json, as_metrics
from kvcache.integrations.mlx_lm.patching import CarefulResponseGenerator, require_one_process
from kvcache.memory.limits import device_memory
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from kvcache.integrations.mlx_lm.patching import Installation
    from kvcache.integrations.mlx_lm.prompt_cache import PromptCache


# Stands for no --prompt-cache-size on a command line.
NO_SIZE: Final = 1 << 62


class ServerError(KVCacheError):
    """A server that cannot start or cannot go on; the text is one sentence."""


@dataclass(frozen=True)
class Serving:
    """What stands for ``mlx_lm.server.run``.

    Attributes:
        installation: The patch that makes the cache.
        max_bytes: Bytes that the cache holds at most. None: the server's --prompt-cache-bytes, else a
            quarter of the memory that the device recommends to use.
        metrics_port: Where the figures are told; None: on the server's own port.
    """

    installation: Installation
    max_bytes: int | None
    metrics_port: int | None

    def run(self, host: str, port: int, model_provider: Any, *_: Any, **__: Any) -> None:
        """Serves until SIGINT or SIGTERM.

        Raises:
            ServerError: A port that cannot be bound, a model that cannot be loaded.
            ConfigError: Several ranks.
        """
        require_one_process()
        with ExitStack() as stack:
            prompt_cache = self._make(model_provider.cli_args)
            stack.callback(prompt_cache.cache.close)
            httpd = stack.enter_context(_bound(host, port))
            handler: Callable[..., Any] = _APIHandler
            if self.metrics_port is not None:
                handler = server.APIHandler
                beside = stack.enter_context(_bound(host, self.metrics_port))
                beside.RequestHandlerClass = partial(_FiguresHandler, prompt_cache)
                threading.Thread(target=beside.serve_forever, daemon=True).start()
                stack.callback(beside.shutdown)
            generator = _Generator(model_provider, prompt_cache, httpd.shutdown)
            stack.callback(generator.stop_and_join)
            fingerprint = server.get_system_fingerprint()
            httpd.RequestHandlerClass = partial(handler, generator, system_fingerprint=fingerprint)
            logger.info("serving on http://{}:{}", host, httpd.server_address[1])
            if not _is_loopback(httpd.server_address[0]):
                logger.warning("mlx-lm's server has no access control: whoever reaches {} can use it", host)
            with _terminable():
                httpd.serve_forever()
            if not generator.is_healthy:
                raise ServerError("The model could not be loaded or stopped working; the log above says why.")

    def _make(self, options: Any) -> PromptCache:
        size, nbytes = options.prompt_cache_size, self.max_bytes
        if nbytes is None:
            nbytes = options.prompt_cache_bytes
        if nbytes is None:
            recommended = device_memory(mx.device_info()) or psutil.virtual_memory().total
            nbytes = recommended // 4
        logger.info("the cache holds at most {}", format_size(nbytes))
        return self.installation.make(None if size == NO_SIZE else size, nbytes)


class FreezingModelProvider(server.ModelProvider):
    """Keeps what a loaded model brings out of later collections: each eviction makes one."""

    def _load(self, *args: Any, **options: Any) -> None:
        gc.unfreeze()
        super()._load(*args, **options)
        gc.collect()
        gc.freeze()


class _Generator(CarefulResponseGenerator):
    """Says so when its thread dies: a server that cannot generate is better ended, and started anew."""

    def __init__(self, model_provider: Any, prompt_cache: PromptCache, died: Callable[[], None]) -> None:
        self._died = died
        super().__init__(model_provider, cast("Any", prompt_cache))

    def _run_generate(self) -> None:
        super()._run_generate()
        if self._generation_failed:
            self._died()


class _Server(ThreadingHTTPServer):
    # One listener: the second of two servers on one port is to fail, not to share it.
    allow_reuse_port = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server's."""
        if isinstance(sys.exception(), ConnectionError):
            logger.info("the client {}:{} went away", *client_address[:2])
        else:
            super().handle_error(request, client_address)


@contextmanager
def _bound(host: str, port: int) -> Iterator[ThreadingHTTPServer]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        cls = type("Server", (_Server,), {"address_family": family})
        httpd: ThreadingHTTPServer = cls(address, BaseHTTPRequestHandler)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(f"Port {port} on {host} cannot be used ({reason}); choose another.") from error
    with httpd:
        yield httpd


def _is_loopback(address: Any) -> bool:
    text = str(address)
    return text.startswith("127.") or text == "::1"


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the context as Ctrl-C does, and both end it in peace."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except KeyboardInterrupt:
        logger.info("stopping; requests under way are finished first")
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def _answer(handler: BaseHTTPRequestHandler, prompt_cache: PromptCache) -> bool:
    """Answers a request for figures; False for any other path."""
    path = urlsplit(handler.path).path
    try:
        if path == "/metrics":
            body, kind = as_metrics(prompt_cache), CONTENT_TYPE_LATEST
        elif path == "/cache":
            body, kind = json.dumps(as_json(prompt_cache), indent=2).encode(), "application/json"
        else:
            return False
    except ClosedError:
        handler.send_error(503, "the server is stopping")
        return True
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
    return True


class _APIHandler(server.APIHandler):
    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        if not _answer(self, cast("Any", self.response_generator.prompt_cache)):
            super().do_GET()


class _FiguresHandler(BaseHTTPRequestHandler):
    def __init__(self, prompt_cache: PromptCache, *args: Any) -> None:
        self._prompt_cache = prompt_cache
        super().__init__(*args)

    def do_GET(self) -> None:
        if not _answer(self, self._prompt_cache):
            self.send_error(404, "there are /metrics and /cache")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        logger.debug(format % args)
