"""Whatever is sent to `kvcache serve` gets an answer, and the server goes on."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from .requests import CHAT, RAW, TEXT, bodies, parsed, send
from .servers import OURS, Server, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GOOD = {"prompt": "hello", "max_tokens": 2}


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("broken")
    before = os.environ.get("HF_HUB_CACHE")
    # There is no hub folder.
    os.environ["HF_HUB_CACHE"] = str(folder / "nowhere")
    try:
        with running(OURS, tiny, folder / "log", "--max-tokens", "4") as server:
            yield server
    finally:
        os.environ.pop("HF_HUB_CACHE")
        if before is not None:
            os.environ["HF_HUB_CACHE"] = before
    assert server.process.returncode == 0
    assert "Traceback" not in server.log.read_text()


def _require_alive(server: Server) -> None:
    # Sampled: a request that failed inside a compiled sampler could leave a broken random state.
    for seed in (None, 1):
        status, answer = server.post(GOOD | {"seed": seed, "temperature": 1, "top_p": 0.9}, TEXT)
        assert status == 200, answer
        assert answer["choices"][0]["finish_reason"] in {"length", "stop"}


def _post(server: Server, path: str, body: str) -> tuple[int, Any]:
    data = body.encode()
    return parsed(
        send(server.port, f"POST {path} HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    )


def test_bodies_that_are_wrong_in_one_field(server: Server) -> None:
    statuses = set()
    for number, (path, body) in enumerate(bodies()):
        status, answer = _post(server, path, body)
        shown = f"{path} {body[:200]}: {status} {str(answer)[:300]}"
        assert status in {200, 400, 404}, shown
        if status != 200:
            assert isinstance(answer["error"], str), shown
            assert answer["error"], shown
        statuses.add(status)
        if number % 20 == 0:
            _require_alive(server)
    assert statuses == {200, 400, 404}
    _require_alive(server)


@pytest.mark.parametrize("name", RAW)
def test_requests_that_are_none(server: Server, name: str) -> None:
    data, expected = RAW[name]
    status, answer = parsed(send(server.port, data))
    assert status == expected
    if status >= 400:
        assert answer["error"]
    _require_alive(server)


def test_a_body_that_ends_early(server: Server) -> None:
    data = f"POST {TEXT} HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{{}}".encode()
    status, answer = parsed(send(server.port, data, end=True))
    assert status == 400
    assert "ended after 2 of 1000 bytes" in answer["error"]
    _require_alive(server)


def test_models_where_there_is_no_hub_folder(server: Server, tiny: Path) -> None:
    (model,) = json.loads(server.get("/v1/models"))["data"]
    assert model["id"] == str(tiny.resolve())


@pytest.mark.parametrize("seed", [None, 1], ids=["batched", "sequential"])
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"logit_bias": {"259": 1}}, "logit_bias: token ids are from 0 to 258, found 259"),
        ({"logit_bias": {"-1": 1}}, "logit_bias: token ids are from 0 to 258, found -1"),
        ({"prompt": ""}, "the prompt has no tokens"),
        (
            {"top_k": 300, "temperature": 1},
            "`top_k` has to be an integer in the (0, 259) interval, but is 300",
        ),
        ({"temperature": True}, "temperature must be a number, found true"),
        ({"stop": [""]}, "stop must be a text or a list of texts, none of them empty"),
    ],
)
def test_what_is_said(server: Server, fields: dict[str, Any], sentence: str, seed: int | None) -> None:
    status, answer = server.post(GOOD | {"seed": seed} | fields, TEXT)
    assert (status, sentence in answer["error"]) == (400, True), answer


def test_a_bias_within_the_models_tokens_works(server: Server) -> None:
    for seed in (None, 1):
        status, answer = server.post(
            GOOD | {"seed": seed, "logit_bias": {"258": 1000}, "logprobs": True}, TEXT
        )
        assert status == 200
        assert [each["id"] for each in answer["choices"][0]["logprobs"]["content"]] == [258, 258]


def test_a_stream_that_asks_for_no_usage(server: Server) -> None:
    body = json.dumps(GOOD | {"stream": True, "stream_options": {}})
    head = f"POST {TEXT} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    assert send(server.port, (head + body).encode()).endswith(b"data: [DONE]\n\n")


def test_clients_that_say_nothing_hold_up_nobody(server: Server) -> None:
    import socket

    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    try:
        _require_alive(server)
    finally:
        for connection in silent:
            connection.close()


def test_the_paths_are_still_the_servers(server: Server) -> None:
    status, answer = server.post({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}, CHAT)
    assert (status, answer["object"]) == (200, "chat.completion")
