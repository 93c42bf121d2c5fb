"""`kvcache serve` on SmolLM2 over HTTP, asked by the `openai` client.

Short in CI; KVCACHE_FULL=1 asks for 6 conversations of 4 turns in every combination.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.full import FULL, only_full

from .chats import TURNS, Chat, common, run_key
from .servers import OURS, STOCK, Server, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(7200)]

STREAMS = pytest.mark.parametrize(
    "stream", [True, pytest.param(False, marks=only_full)], ids=["stream", "whole"]
)
CHATS, ROUNDS = (6, TURNS) if FULL else (2, 2)
# "sequential" is the path of requests with a seed.
SEEDS = {"batched": None, "sequential": 1}


@pytest.fixture(scope="module")
def model() -> Path:
    from kvcache.cli.smollm2 import ensure_demo_model

    return ensure_demo_model()


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    from mlx_lm.utils import load_tokenizer

    return load_tokenizer(model)


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[Server]:
    with running(OURS, model, tmp_path / "log", "--prefill-step-size", "64") as server:
        yield server


@pytest.fixture(scope="module")
def stock_texts(model: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What mlx-lm's own server answers on the sequential path, each request computed from its start."""
    log = tmp_path_factory.mktemp("stock") / "log"
    options = ("--prefill-step-size", "64", "--prompt-cache-size", "0")
    with running(STOCK, model, log, *options) as server:
        chats = _interleaved(server, tokenizer, stream=False, seed=1)
    assert not any(turn.cached for chat in chats for turn in chat.turns)
    return [[turn.text for turn in chat.turns] for chat in chats]


def _interleaved(server: Server, tokenizer: Any, *, stream: bool, seed: int | None) -> list[Chat]:
    chats = [Chat(number) for number in range(CHATS)]
    with server.client() as client:
        for _ in range(ROUNDS):
            for chat in chats:
                chat.ask(client, tokenizer, stream=stream, seed=seed)
    return chats


def _reusable(chats: list[Chat], tokenizer: Any) -> list[int]:
    """What of each prompt was run before, in the order of the requests."""
    keys: list[list[int]] = []
    found = []
    for at in range(ROUNDS):
        for chat in chats:
            turn = chat.turns[at]
            longest = max((common(turn.prompt, key) for key in keys), default=0)
            found.append(min(longest, len(turn.prompt) - 1))
            keys.append(run_key(turn, tokenizer))
    return found


@STREAMS
def test_sequential_texts_and_counts(
    server: Server, tokenizer: Any, stock_texts: list[list[str]], stream: bool
) -> None:
    chats = _interleaved(server, tokenizer, stream=stream, seed=1)
    assert [[turn.text for turn in chat.turns] for chat in chats] == stock_texts
    cached = [chat.turns[at].cached for at in range(ROUNDS) for chat in chats]
    assert cached == _reusable(chats, tokenizer)
    assert sum(cached) == server.cache()["stats"]["hit_tokens"]


@only_full
@STREAMS
def test_batched_one_after_the_other(server: Server, tokenizer: Any, stream: bool) -> None:
    chats = _interleaved(server, tokenizer, stream=stream, seed=None)
    assert [chat.turns[at].cached for at in range(ROUNDS) for chat in chats] == _reusable(chats, tokenizer)


@STREAMS
def test_batched_all_at_once(server: Server, tokenizer: Any, stream: bool) -> None:
    chats = [Chat(number) for number in range(CHATS)]
    with server.client() as client, ThreadPoolExecutor(CHATS) as pool:
        for _ in range(ROUNDS):
            list(pool.map(lambda chat: chat.ask(client, tokenizer, stream=stream, seed=None), chats))
    for chat in chats:
        for before, turn in zip(chat.turns, chat.turns[1:], strict=False):
            assert turn.cached == common(turn.prompt, run_key(before, tokenizer))


@pytest.mark.parametrize("path", ["batched", pytest.param("sequential", marks=only_full)])
def test_clients_that_go_away(server: Server, path: str) -> None:
    long = {"messages": [{"role": "user", "content": "Tell me about this: " + "rails and trains, " * 40}]}
    body = long | {"max_tokens": 200, "temperature": 0.0, "seed": SEEDS[path]}
    # In mid-prefill: the chunks that were computed are kept.
    server.leave_after(body, 2, ": keepalive")
    server.until_held(64)
    status, answer = server.post(body | {"max_tokens": 2})
    usage = answer["usage"]
    assert (status, usage["completion_tokens"]) == (200, 2)
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 64
    # In mid-stream: so is what was generated, and an exact repeat works.
    server.leave_after(body, 3, "data: ")
    held = server.until_held(usage["prompt_tokens"] + 3)
    assert held < usage["prompt_tokens"] + 200
    for _ in range(2):
        status, answer = server.post(body | {"max_tokens": 2})
        assert status == 200
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
