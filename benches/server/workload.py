"""Round robin over conversations that share a system prompt, and the client that holds them."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

NEW_TOKENS = 12
_WORDS = (
    "rail", "station", "engine", "tunnel", "bridge", "signal", "ticket", "platform", "wagon", "steam",
    "driver", "valley", "harbour", "mountain", "morning", "winter", "letter", "garden", "window", "music",
    "market", "river", "paper", "silver", "copper", "island", "forest", "stone",
)  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """How much is asked."""

    conversations: int = 8
    turns: int = 4
    system_tokens: int = 512
    turn_tokens: int = 64


@dataclass
class Result:
    """What the client saw; times in seconds."""

    first_token: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0


def text_of(tokenizer: Any, number: int, tokens: int) -> str:
    """Words that no other number begins with, as many tokens long as asked."""
    words = [f"Note {number}:"]
    at = number * 7
    while len(tokenizer.encode(" ".join(words), add_special_tokens=False)) < tokens:
        words.append(_WORDS[at * at % len(_WORDS)])
        at += 1
    while len(tokenizer.encode(" ".join(words), add_special_tokens=False)) > tokens:
        words[-1] = words[-1][:-1] or words.pop(-2)
    return " ".join(words)


def run(port: int, tokenizer: Any, workload: Workload, seed: int | None) -> Result:
    """Holds all conversations, one request at a time."""
    result = Result()
    around = _template_tokens(tokenizer)
    system = text_of(tokenizer, 0, workload.system_tokens - around)
    chats = [[{"role": "system", "content": system}] for _ in range(workload.conversations)]
    began = time.perf_counter()
    for turn in range(workload.turns):
        for number, messages in enumerate(chats):
            question = text_of(
                tokenizer,
                1 + turn * workload.conversations + number,
                workload.turn_tokens - NEW_TOKENS - 2 * around,
            )
            messages.append({"role": "user", "content": question})
            body = {
                "messages": messages,
                "max_tokens": NEW_TOKENS,
                "temperature": 0.0,
                "stream": True,
                "stream_options": {"include_usage": True},
                "seed": seed,
            }
            text = _ask(port, body, result)
            messages.append({"role": "assistant", "content": text})
            result.texts.append(text)
    result.seconds = time.perf_counter() - began
    return result


def _template_tokens(tokenizer: Any) -> int:
    """Tokens that the chat template puts around one message."""
    one, two = (tokenizer.apply_chat_template([{"role": "user", "content": "a"}] * count) for count in (1, 2))
    return len(two) - len(one) - 1


def _ask(port: int, body: dict[str, Any], result: Result) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    started = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    text, first = "", None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        for choice in event["choices"]:
            if choice["delta"].get("content"):
                first = first or time.perf_counter() - started
                text += choice["delta"]["content"]
        if "usage" in event:
            usage = event["usage"]
            result.completion_tokens += usage["completion_tokens"]
            result.prompt_tokens += usage["prompt_tokens"]
            result.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
    connection.close()
    if first is None:
        raise RuntimeError(f"no answer to {body['messages'][-1]}")
    result.first_token.append(first)
    return text
