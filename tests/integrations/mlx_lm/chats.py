"""Conversations with a server, and what a cache that forgets nothing would reuse of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai import OpenAI

SYSTEM = (
    "You are the guide of a small railway museum. You answer in one short sentence, you are friendly, "
    "and you say so when you do not know something. The museum is open from Tuesday to Sunday."
)
QUESTIONS = (
    "When is the museum open?", "What is a steam engine?", "Who invented it?", "How fast did it go?",
    "What is the capital of France?", "Can I come by train?", "How long does it take?", "What did it cost?",
    "Why are rails made of steel?", "Who lays them?", "Do they rust?", "How long is a rail?",
    "Is there a café?", "What is in the soup?", "Is it hot?", "Thank you! What else?",
    "What was the first railway?", "Where did it run?", "Is it still there?", "Who rode on it?",
    "Tell me about tunnels.", "Which one is the longest?", "Who dug it?", "Is it dark in there?",
)  # fmt: skip
TURNS = 4
NEW_TOKENS = 12


@dataclass
class Turn:
    prompt: list[int]
    text: str
    finish_reason: str
    cached: int


@dataclass
class Chat:
    """One conversation."""

    number: int
    messages: list[dict[str, str]] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    turns: list[Turn] = field(default_factory=list)

    def ask(self, client: OpenAI, tokenizer: Any, *, stream: bool, seed: int | None) -> None:
        """The next turn."""
        question = QUESTIONS[(self.number * TURNS + len(self.turns)) % len(QUESTIONS)]
        self.messages.append({"role": "user", "content": question})
        request: dict[str, Any] = {
            "model": "default_model",
            "messages": self.messages,
            "max_tokens": NEW_TOKENS,
            "temperature": 0.0,
        }
        if seed is not None:
            request["seed"] = seed
        answer = _streamed(client, request) if stream else _whole(client, request)
        prompt = tokenizer.apply_chat_template(self.messages, add_generation_prompt=True)
        text, finish_reason, usage = answer
        assert usage.prompt_tokens == len(prompt)
        assert 0 < usage.completion_tokens <= NEW_TOKENS
        self.messages.append({"role": "assistant", "content": text})
        self.turns.append(Turn(list(prompt), text, finish_reason, usage.prompt_tokens_details.cached_tokens))


def _whole(client: OpenAI, request: dict[str, Any]) -> tuple[str, str, Any]:
    answer = client.chat.completions.create(**request)
    (choice,) = answer.choices
    return choice.message.content or "", choice.finish_reason, answer.usage


def _streamed(client: OpenAI, request: dict[str, Any]) -> tuple[str, str, Any]:
    text, reason, usage = "", "", None
    with client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    ) as events:
        for event in events:
            usage = event.usage or usage
            for choice in event.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
    return text, reason, usage


def run_key(turn: Turn, tokenizer: Any) -> list[int]:
    """The tokens that a turn ran: prompt, answer, and the end token where it came to that."""
    answer = tokenizer.encode(turn.text, add_special_tokens=False)
    end = [tokenizer.eos_token_id] if turn.finish_reason == "stop" else []
    return [*turn.prompt, *answer, *end]


def common(one: list[int], other: list[int]) -> int:
    """Tokens that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))
