"""mlx-lm's HTTP server with the cache in place, from the first port to the last thread.

Ports are bound before the model is loaded: one that is taken is known at once, before any thread runs.
"""

# mlx-lm carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import gc
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, cast

import mlx.core as mx
import psutil
from loguru import logger
from mlx_lm import server

from kvcache.errors import KVCacheError
from kvcache.integrations.mlx_lm.checking import CarefulResponseGenerator
from kvcache.integrations.mlx_lm.door import Door
from kvcache.integrations.mlx_lm.handling import APIHandler, FiguresHandler
from kvcache.integrations.mlx_lm.patching import require_one_process
from kvcache.memory.limits import device_memory
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcache.integrations.mlx_lm.patching import Installation
    from kvcache.integrations.mlx_lm.prompt_cache import PromptCache
    from kvcache.integrations.stopping import StopSignals

# No --prompt-cache-size, as an option of the command line.
NO_SIZE: Final = 1 << 62
# Seconds for a step of the model that is under way when the generator is stopped.
_GRACE: Final = 5.0


class ServerError(KVCacheError):
    """A server that cannot start or cannot go on; the text is one sentence."""


@dataclass(frozen=True)
class Serving:
    """What is put in place of ``mlx_lm.server.run``.

    Attributes:
        installation: The patch that makes the cache.
        signals: What asks the server to stop.
        max_bytes: Bytes that the cache holds at most. None: the server's --prompt-cache-bytes, else a
            quarter of the memory that the device recommends to use.
        metrics_port: Where the figures are served; None: on the server's own port.
        shutdown_timeout: Seconds that requests under way have to end once the server is to stop.
    """

    installation: Installation
    signals: StopSignals
    max_bytes: int | None
    metrics_port: int | None
    shutdown_timeout: float

    def run(self, host: str, port: int, model_provider: Any, *_: Any, **__: Any) -> None:
        """Serves until SIGINT or SIGTERM, then ends what is under way, all threads and the cache.

        Raises:
            ServerError: A port that cannot be bound, a model that cannot be loaded.
            ConfigError: Several ranks.
        """
        require_one_process()
        with ExitStack() as stack:
            prompt_cache = self._make(model_provider.cli_args)
            stack.callback(prompt_cache.cache.close)
            httpd = stack.enter_context(_bound(host, port))
            servers, door = [httpd], Door()
            if self.metrics_port is not None:
                servers.append(stack.enter_context(_bound(host, self.metrics_port)))
                servers[1].serve(_handler(FiguresHandler, door, prompt_cache))
            generator = _Generator(model_provider, prompt_cache, self.signals.wake)
            handler = _handler(APIHandler, door, None if self.metrics_port is not None else prompt_cache)
            fingerprint = server.get_system_fingerprint()
            httpd.serve(partial(handler, generator, system_fingerprint=fingerprint))
            logger.info("serving on http://{}:{}", host, httpd.server_address[1])
            if not _is_loopback(httpd.server_address[0]):
                logger.warning("mlx-lm's server has no access control: whoever reaches {} can use it", host)
            self.signals.wait()
            asked = self.signals.number is not None
            self._end(servers, door, generator)
        if not asked:
            raise ServerError("The model could not be loaded or stopped working; the log above says why.")

    def _end(self, servers: list[_Server], door: Door, generator: _Generator) -> None:
        """Listeners, requests, generator, clients: in this order nobody uses what has ended before."""
        # A dead generator finishes no request.
        patience = self.shutdown_timeout if generator.is_healthy else 0.0
        logger.info("stopping; requests under way are finished first, for at most {:g} seconds", patience)
        for httpd in servers:
            httpd.stop_listening()
        if left := door.close(patience):
            logger.warning("{} requests are cut: they took longer than {:g} seconds", left, patience)
        self.installation.stopping.set()
        generator.stop()
        if left:
            # Their threads learn that the generator has ended: mlx-lm checks once a second.
            door.close(_GRACE)
        for httpd in servers:
            httpd.hang_up()

    def _make(self, options: Any) -> PromptCache:
        size, nbytes = options.prompt_cache_size, self.max_bytes
        if nbytes is None:
            nbytes = options.prompt_cache_bytes
        if nbytes is None:
            recommended = device_memory(mx.device_info()) or psutil.virtual_memory().total
            nbytes = recommended // 4
        logger.info("the cache holds at most {}", format_size(nbytes))
        return self.installation.make(None if size == NO_SIZE else size, nbytes)


def _handler(base: type[APIHandler | FiguresHandler], door: Door, prompt_cache: PromptCache | None) -> type:
    return type(base.__name__, (base,), {"door": door, "prompt_cache": prompt_cache})


class FreezingModelProvider(server.ModelProvider):
    """Excludes a loaded model's objects from later collections: each eviction runs one."""

    loading = False

    def _load(self, *args: Any, **options: Any) -> None:
        self.loading = True
        try:
            gc.unfreeze()
            super()._load(*args, **options)
            gc.collect()
            gc.freeze()
        finally:
            self.loading = False


class _Generator(CarefulResponseGenerator):
    """Says so when its thread dies: a server that cannot generate is better ended, and started again."""

    def __init__(self, model_provider: Any, prompt_cache: PromptCache, died: Callable[[], None]) -> None:
        self._died = died
        super().__init__(model_provider, cast("Any", prompt_cache))

    def _run_generate(self) -> None:
        super()._run_generate()
        if self._generation_failed:
            self._died()

    def stop(self) -> None:
        """Ends the thread, and waits for it as long as a step of a model may take."""
        self._stop = True
        # Nothing can stop a model that loads, and nothing is lost with it.
        loading = getattr(self.model_provider, "loading", False)
        self._generation_thread.join(0.0 if loading else _GRACE)


class _Server(ThreadingHTTPServer):
    """Threads of its own for listening and for each client, all of which can be ended."""

    # One listener: the second of two servers on one port is to fail, not to share it.
    allow_reuse_port = False
    # Clients that connect at once are queued, not refused.
    request_queue_size = 128

    def __init__(self, *args: Any, **options: Any) -> None:
        self._clients: set[socket.socket] = set()
        self._listener: threading.Thread | None = None
        super().__init__(*args, **options)

    def serve(self, handler: Callable[..., Any]) -> None:
        """Answers from now on, in a thread."""
        self.RequestHandlerClass = handler
        self._listener = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._listener.start()

    def stop_listening(self) -> None:
        """Lets no client in: connections are refused from now on."""
        if self._listener is not None:
            self.shutdown()
            self._listener.join()
            self._listener = None
        self.server_close()

    def hang_up(self) -> None:
        """Ends all connections, and with them their threads: a client may say nothing for ever."""
        for client in list(self._clients):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._clients.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server's."""
        if isinstance(sys.exception(), ConnectionError | TimeoutError):
            logger.info("the client {}:{} went away", *client_address[:2])
        else:
            super().handle_error(request, client_address)


@contextmanager
def _bound(host: str, port: int) -> Iterator[_Server]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        cls = type("Server", (_Server,), {"address_family": family})
        httpd: _Server = cls(address, BaseHTTPRequestHandler)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(f"Port {port} on {host} cannot be used ({reason}); choose another.") from error
    try:
        yield httpd
    finally:
        httpd.stop_listening()


def _is_loopback(address: Any) -> bool:
    text = str(address)
    return text.startswith("127.") or text == "::1"
