"""HTTP requests that are broken in one way each, and raw sockets to send them with."""

from __future__ import annotations

import json
import socket
from typing import Any, Final

from tests.support.patience import PATIENCE

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
HUGE: Final = 10**30
# JSON texts, since some are none for Python's encoder.
_NUMBERS: Final = (
    "-1",
    "0",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    str(HUGE),
    str(-HUGE),
    "1.5",
    "true",
    '"5"',
    "[]",
    "{}",
    "null",
)
_FIELDS: Final = (
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "num_draft_tokens",
    "repetition_penalty",
    "repetition_context_size",
    "presence_penalty",
    "presence_context_size",
    "frequency_penalty",
    "frequency_context_size",
    "xtc_probability",
    "xtc_threshold",
    "logprobs",
    "top_logprobs",
    "stream",
)
_MESSAGES: Final = (
    "5",
    '"hello"',
    "{}",
    "[]",
    "[5]",
    "[null]",
    "[{}]",
    '[{"role": 5, "content": "x"}]',
    '[{"role": "user", "content": 5}]',
    '[{"role": "user", "content": [5]}]',
    '[{"role": "user", "content": [{}]}]',
    '[{"role": "user", "content": [{"type": "text"}]}]',
    '[{"role": "user", "content": [{"type": "image_url"}]}]',
    '[{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}]',
    '[{"role": "user", "content": [{"type": "image_url", "image_url": "data:nothing"}]}]',
    '[{"role": "user", "content": "\\ud800"}]',
    '[{"role": "user", "content": "x", "tool_calls": 5}]',
    '[{"role": "user", "content": "x", "tool_calls": [{"function": {"arguments": "{"}}]}]',
)
_OTHERS: Final = {
    "model": ('"no/such-model"', '""', "5", '"\\u0000"', '"\\ud800"', "[]"),
    "draft_model": ('"no/such-model"', "5", "[]"),
    "adapters": ('"no/such-folder"', "5"),
    "stop": ("5", "[5]", "[[]]", '[""]', '["\\ud800"]', "{}"),
    "logit_bias": (
        '{"10000000": 1}',
        '{"-1": 1}',
        '{"-10000000000": 5}',
        f'{{"{HUGE}": 1}}',
        '{"x": 1}',
        '{"1": null}',
        '{"1": "x"}',
        '{"1": 1e999}',
        '{"259": 1}',
        "[]",
        "5",
    ),
    "stream_options": ("5", "{}", '{"include_usage": 5}', "[]"),
    "chat_template_kwargs": ("5", "[]", '{"tokenize": false}', '{"messages": 1}'),
    "role_mapping": ("5", "[]"),
    "tools": ("5", "{}", '"x"', "[5]"),
    "prompt": ('""', "5", "null", "[]", "[5]", "{}", '"\\ud800"'),
}


def bodies() -> list[tuple[str, str]]:
    """Path and body of requests that are wrong in one field. Some are odd and yet served."""
    found = [
        (path, text) for path in (CHAT, TEXT) for text in ("", "{", "[]", "5", "null", '"x"', "[" * 100_000)
    ]
    found += [(path, f'{{"a": {"9" * 5000}}}') for path in (CHAT, TEXT)]
    plain = '"prompt": "hello", "max_tokens": 2'
    for name, values in [*((name, _NUMBERS) for name in _FIELDS), *_OTHERS.items()]:
        # The last of two equal names counts.
        found += [(TEXT, f'{{{plain}, "{name}": {value}}}') for value in values]
        # A seed makes it a request of the sequential path.
        found += [(TEXT, f'{{{plain}, "seed": 1, "{name}": {value}}}') for value in values]
    # Any penalty makes MLX index with what comes beside it.
    found += [(TEXT, f'{{{plain}, "repetition_penalty": 1.5, "repetition_context_size": {HUGE}}}')]
    found += [(CHAT, f'{{"max_tokens": 2, "messages": {messages}}}') for messages in _MESSAGES]
    found += [(CHAT, '{"max_tokens": 2}'), (TEXT, '{"max_tokens": 2}')]
    return found


def _post(head: str, body: bytes = b"") -> bytes:
    return f"POST {TEXT} HTTP/1.1\r\n{head}\r\n".encode() + body


_BODY: Final = json.dumps({"prompt": "hello", "max_tokens": 2}).encode()

# What is sent, and the status of the answer.
RAW: Final[dict[str, tuple[bytes, int]]] = {
    "length negative": (_post("Content-Length: -1\r\n", _BODY), 400),
    "length missing": (_post("", _BODY), 411),
    "length empty": (_post("Content-Length:\r\n", _BODY), 400),
    "length a word": (_post("Content-Length: many\r\n", _BODY), 400),
    "length a float": (_post("Content-Length: 1e1\r\n", _BODY), 400),
    "length with sign": (_post("Content-Length: +9\r\n", _BODY), 400),
    "length in other digits": (_post("Content-Length: \u0663\r\n", _BODY), 400),
    "length twice": (_post("Content-Length: 9\r\nContent-Length: 10\r\n", _BODY), 400),
    "length huge": (_post(f"Content-Length: {HUGE}\r\n", _BODY), 413),
    "length over the limit": (_post(f"Content-Length: {1 << 40}\r\n", _BODY), 413),
    "chunked": (_post("Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 411),
    "chunked with a length": (
        _post(f"Transfer-Encoding: chunked\r\nContent-Length: {len(_BODY)}\r\n", _BODY),
        411,
    ),
    "no utf-8": (_post("Content-Length: 4\r\n", b'"\xff\xfe"'), 400),
    "utf-16": (_post("Content-Length: 10\r\n", '{"a"'.encode("utf-16")), 400),
    "no method": (b"\r\n\r\n", 0),
    "garbage": (b"\x00\xff\x16\x03\x01\r\n\r\n", 400),
    "another method": (b"DELETE /v1/completions HTTP/1.1\r\n\r\n", 501),
    "another version": (b"GET /health HTTP/9.9\r\n\r\n", 505),
    "a long line": (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
    "a long header": (b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    "many headers": (b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    "another path": (b"POST /v1/nothing HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 404),
    "post to a get": (b"POST /health HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 404),
    "get of a post": (b"GET /v1/completions HTTP/1.1\r\n\r\n", 404),
    "get of nothing": (b"GET /v1/nothing HTTP/1.1\r\n\r\n", 404),
    "models": (b"GET /v1/models HTTP/1.1\r\n\r\n", 200),
    "one model": (b"GET /v1/models/no/such HTTP/1.1\r\n\r\n", 200),
}


def send(port: int, data: bytes, *, end: bool = False) -> bytes:
    """All that the server answers; ``end``: the client has no more to say."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        if end:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while more := connection.recv(1 << 16):
            received += more
        return received


def parsed(answer: bytes) -> tuple[int, Any]:
    """Status and JSON body; (0, None) where there is no answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head:
        return 0, None
    return int(head.split()[1]), json.loads(body) if b"application/json" in head.lower() else body
