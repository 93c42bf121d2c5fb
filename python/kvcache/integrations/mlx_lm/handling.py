"""What HTTP clients of the server get: figures, and an answer to every request, however malformed."""

# mlx-lm carries no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import contextlib
import io
import json
import math
import socket
import sys
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from loguru import logger
from mlx_lm import server
from prometheus_client import CONTENT_TYPE_LATEST

from kvcache.errors import ClosedError
from kvcache.integrations.mlx_lm.checking import RequestError
from kvcache.integrations.mlx_lm.fields import check_fields, check_messages
from kvcache.integrations.mlx_lm.figures import as_json, as_metrics
from kvcache.integrations.mlx_lm.patching import STOPPING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache.integrations.mlx_lm.door import Door
    from kvcache.integrations.mlx_lm.prompt_cache import PromptCache

# Images come inside the body as text.
MOST_BODY: Final = 256 << 20
_POSTS: Final = ("/v1/completions", "/v1/chat/completions", "/chat/completions")
# Seconds without a byte of a request that has begun; an answer may take any time.
_PATIENCE: Final = 60.0
# Errors of a request whose generator has ended: mlx-lm's and ours.
_ENDING: Final = ("generation thread died", STOPPING)


class _Careful(BaseHTTPRequestHandler):
    """Every request gets an answer of its own, and all refusals are JSON."""

    door: Door
    prompt_cache: PromptCache | None
    timeout = _PATIENCE
    _begun = _read = False

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """A log that cannot be written (a full disk, a closed pipe) is no reason to fail a request."""
        with contextlib.suppress(OSError, ValueError):
            super().log_message(format, *args)

    def end_headers(self) -> None:
        self._begun = True
        super().end_headers()

    def refuse(self, status: int, sentence: str) -> None:
        """Answers with an error, in place of whatever was not sent yet."""
        self._headers_buffer: list[bytes] = []
        self.close_connection = True
        # http.server's guess for a line that it cannot read, in which an answer has no head.
        self.request_version = "HTTP/1.0"
        body = json.dumps({"error": sentence}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if not self._read and self.command not in ("GET", "HEAD"):
            self._discard()

    def _discard(self) -> None:
        """Reads on for a moment: closing a socket that has unread bytes can cost the client our answer."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1.0)
            for _ in range(1024):
                if not self.connection.recv(1 << 16):
                    break

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """http.server's own refusals, as JSON like all others."""
        self.refuse(code, message or explain or self.responses[code][0])

    def answer(self, how: Callable[[], None]) -> None:
        """Runs ``how`` as a request under way; what it raises is the answer."""
        if not self.door.enter():
            self.refuse(503, STOPPING)
            return
        try:
            how()
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a request does, the next one is served
            self._failed(error)
        finally:
            self.door.leave()

    def _failed(self, error: Exception) -> None:
        status, sentence = _status(error), str(error) or type(error).__name__
        if status == 500:
            logger.opt(exception=error).error("a request failed")
        if not self._begun:
            self.refuse(status, sentence)
        else:
            self.wfile.write(f"data: {json.dumps({'error': sentence})}\n\n".encode())

    def figures(self) -> bool:
        """Answers a request for figures; False for any other path."""
        if self.prompt_cache is None:
            return False
        path = urlsplit(self.path).path
        try:
            if path == "/metrics":
                body, kind = as_metrics(self.prompt_cache), CONTENT_TYPE_LATEST
            elif path == "/cache":
                body, kind = json.dumps(as_json(self.prompt_cache), indent=2).encode(), "application/json"
            else:
                return False
        except ClosedError:
            self.refuse(503, STOPPING)
            return True
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return True


def _status(error: BaseException) -> int:
    if isinstance(error, RequestError | RecursionError):
        return 400
    return 503 if str(error) in _ENDING else 500


class FiguresHandler(_Careful):
    """The figures alone, on a port of their own."""

    def do_GET(self) -> None:
        self.answer(self._get)

    def _get(self) -> None:
        if not self.figures():
            self.refuse(404, "there are /metrics and /cache")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        logger.debug(format % args)


class APIHandler(_Careful, server.APIHandler):
    """mlx-lm's handler, given only what it can read. ``prompt_cache``: the figures are here too."""

    def do_GET(self) -> None:
        self.answer(self._get)

    def _get(self) -> None:
        path = urlsplit(self.path).path
        if self.figures():
            return
        if path not in {"/health", "/v1/models"} and not path.startswith("/v1/models/"):
            self.refuse(404, f"there is nothing at {path}")
            return
        server.APIHandler.do_GET(self)

    def do_POST(self) -> None:
        self.answer(self._post)

    def _post(self) -> None:
        if self.path not in _POSTS:
            self.refuse(404, f"there is nothing to post to at {self.path}; there are {', '.join(_POSTS)}")
            return
        body = self._body()
        if body is None:
            return
        try:
            json.loads(body.decode(), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            self.refuse(400, f"Invalid JSON in request body: {error}")
            return
        # mlx-lm reads the body itself.
        self.rfile = io.BytesIO(body)
        self.connection.settimeout(None)
        server.APIHandler.do_POST(self)

    def _body(self) -> bytes | None:
        """The request's body; None where it was refused."""
        found = set(self.headers.get_all("Content-Length", ()))
        if not found or "Transfer-Encoding" in self.headers:
            self.refuse(411, "Content-Length header is required")
            return None
        text = found.pop().strip()
        if found or not (text.isascii() and text.isdecimal()):
            self.refuse(400, "Invalid Content-Length header")
            return None
        size = int(text) if len(text) < 20 else MOST_BODY + 1
        if size > MOST_BODY:
            self.refuse(413, f"a body has at most {MOST_BODY} bytes")
            return None
        try:
            body = self.rfile.read(size)
        except TimeoutError:
            self.refuse(408, f"no byte of the body came for {_PATIENCE:g} seconds")
            return None
        self._read = True
        if len(body) < size:
            self.refuse(400, f"the body ended after {len(body)} of {size} bytes")
            return None
        return body

    def _set_completion_headers(self, status_code: int = 200) -> None:
        # mlx-lm answers 404 to any exception of its generator.
        error = sys.exception()
        if status_code == 404 and error is not None and _status(error) != 500:
            status_code = _status(error)
        super()._set_completion_headers(status_code)

    def validate_model_parameters(self) -> None:
        """Raises ``ValueError`` for what mlx-lm lets through to its generation thread, or trips over."""
        check_fields(self, self.body)
        self._validate("requested_draft_model", str)
        try:
            super().validate_model_parameters()
        except (TypeError, OverflowError) as error:
            raise RequestError("logit_bias must be a dict of int to float") from error
        if any(not math.isfinite(value) for value in (self.logit_bias or {}).values()):
            raise RequestError("logit_bias must be finite")
        if self.stream_options is not None:
            self.stream_options = {"include_usage": False} | self.stream_options

    def handle_chat_completions(self) -> Any:
        """Raises ``ValueError`` for malformed messages."""
        check_messages(self.body.get("messages"))
        return super().handle_chat_completions()


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number in JSON")
