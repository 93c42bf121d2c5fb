"""What the demo measures: a chat without and with the cache, then evictions under a byte limit.

Imports MLX and mlx-lm, so the command imports it late. Nothing here prints but progress.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm import load, stream_generate
from mlx_lm.models.cache import make_prompt_cache

from kvcache import KVPrefixCache
from kvcache.cli.console import CliError, Steps, quote

if TYPE_CHECKING:
    from pathlib import Path

_NEW_TOKENS = 20
_SYSTEM = (
    "You are a helpful assistant at the desk of a railway museum. You answer every question in one short "
    "sentence. The museum stands beside the old station. It is open from Tuesday to Sunday, from 10 in the "
    "morning until 5 in the afternoon, and it is closed on Monday. A ticket costs 9 euros for adults and 4 "
    "euros for children. The oldest steam engine in the hall was built in 1884, and it still runs on the "
    "first Saturday of every month. Dogs are welcome in the garden, but they are not allowed in the engine "
    "hall. The café sells soup, bread and apple cake, and it closes at half past four. Groups of more than "
    "twelve people should write one week ahead, so that a guide has time for them. Visitors often ask about "
    "other cities and countries, and you help them too. You are friendly and polite, you say so when you do "
    "not know something, and you never invent a timetable."
)
_QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Italy?",
    "When was the oldest steam engine built?",
    "How much is a ticket for adults?",
    "What does the café sell?",
)
_OTHER_QUESTIONS = (
    "We are a group of fifteen pupils and two teachers. How do we get a guide for the engine hall?",
    "My daughter is in love with steam engines. On which days can she see the oldest one running?",
    "Is there something to eat for people who have walked all the way from the harbour this morning?",
    "I have only one hour between two trains. Which part of the museum should I not miss at all?",
    "Our train from Vienna arrives at four in the afternoon. Is it still worth coming on that day?",
    "My grandfather drove one of your engines. Do you collect old photographs and driver's diaries?",
    "Which trains go to the seaside from the station beside the museum, and how long do they take?",
    "Could you tell me the price for two adults, three children and a very small dog, please?",
)
_CHATS_WITHIN_LIMIT = 3


@dataclass(frozen=True)
class Turn:
    """One question of the chat, answered without and with the cache."""

    prompt_tokens: int
    reused_tokens: int
    ttft_cold_ms: float
    ttft_warm_ms: float
    text_cold: str
    text_warm: str


def outputs_equal(turns: list[Turn]) -> bool:
    """Whether every turn's two texts are the same."""
    return all(turn.text_cold == turn.text_warm for turn in turns)


@dataclass(frozen=True)
class EvictionReport:
    """Memory around stores that had to evict; all sizes in bytes."""

    limit_bytes: int
    stores: int
    stored_bytes: int
    evicted_bytes: int
    before_bytes: int  # MLX active + cached, with an empty cache
    after_bytes: int  # the same after the last store
    ledger_bytes: int  # what the cache says it holds then
    reclaim_ms: float
    cycles: int

    @property
    def retained_bytes(self) -> int:
        """What MLX holds beyond the ledger: evicted bytes that did not come back."""
        return self.after_bytes - self.before_bytes - self.ledger_bytes

    @property
    def freed_bytes(self) -> int:
        """What came back of the evicted bytes, by MLX's counters alone."""
        return self.before_bytes + self.stored_bytes - self.after_bytes


class Chat:
    """A loaded model with a cache, and what the demo does with the two."""

    def __init__(self, folder: Path) -> None:
        """Loads the model.

        Args:
            folder: An mlx-lm model folder.

        Raises:
            CliError: It cannot be loaded.
        """
        with Steps(None) as steps:
            steps.begin("Loading the model")
            try:
                loaded: Any = load(str(folder))  # mlx-lm's wrappers carry no types
            except Exception as error:  # a model's own code and a foreign parser: anything can come
                raise CliError(
                    f"{folder} cannot be loaded as an mlx-lm model ({type(error).__name__}: {quote(error)}); "
                    "name a folder that mlx-lm converted, or convert the model again."
                ) from error
        self._model, self._tokenizer = loaded
        self._cache = KVPrefixCache()

    def run(self) -> list[Turn]:
        """Asks every question twice on the same history: without the cache, then with it."""
        turns = []
        messages = [{"role": "system", "content": _SYSTEM}]
        with Steps(2 * len(_QUESTIONS)) as steps:
            # The first run ever pays for reading the weights and compiling; no turn should.
            list(stream_generate(self._model, self._tokenizer, self._encode(messages)[:8], max_tokens=2))
            for number, question in enumerate(_QUESTIONS, start=1):
                messages.append({"role": "user", "content": question})
                tokens = self._encode(messages)
                steps.begin(f"Turn {number} of {len(_QUESTIONS)}, without the cache")
                text_cold, cold_ms = self._answer_cold(tokens)
                steps.advance()
                steps.begin(f"Turn {number} of {len(_QUESTIONS)}, with the cache")
                text_warm, warm_ms, reused = self._answer_warm(tokens)
                steps.advance()
                turns.append(Turn(len(tokens), reused, cold_ms, warm_ms, text_cold, text_warm))
                # The next turn's two runs need one history, also where the texts differ.
                messages.append({"role": "assistant", "content": text_cold})
        return turns

    def evict(self) -> EvictionReport:
        """Stores more chats than a byte limit allows, and reads MLX's counters around it.

        MLX's buffer pool is off meanwhile: with it, a buffer larger than asked for would be counted.
        """
        chats = self._other_chats()
        self._cache.close()
        gc.collect()
        pool_limit = mx.set_cache_limit(0)
        try:
            mx.clear_cache()
            limit = _bytes_of(chats[:_CHATS_WITHIN_LIMIT])
            with Steps(len(chats)) as steps, KVPrefixCache(max_bytes=limit) as cache:
                steps.begin("Storing under a byte limit")
                stored_bytes = evicted_bytes = cycles = 0
                seconds = 0.0
                before = _memory()
                for tokens, prompt_cache in chats:
                    stored = cache.store(tokens, prompt_cache)
                    stored_bytes += stored.nbytes
                    evicted_bytes += stored.evicted.nbytes
                    seconds += stored.evicted.seconds
                    cycles += stored.evicted.cycles
                    steps.advance()
                return EvictionReport(
                    limit_bytes=limit,
                    stores=len(chats),
                    stored_bytes=stored_bytes,
                    evicted_bytes=evicted_bytes,
                    before_bytes=before,
                    after_bytes=_memory(),
                    ledger_bytes=cache.nbytes,
                    reclaim_ms=seconds * 1000,
                    cycles=cycles,
                )
        finally:
            mx.set_cache_limit(pool_limit)

    def _answer_cold(self, tokens: list[int]) -> tuple[str, float]:
        start = time.perf_counter()
        ttft = 0.0
        pieces = []
        prompt_cache = make_prompt_cache(self._model)
        for response in stream_generate(
            self._model, self._tokenizer, tokens, max_tokens=_NEW_TOKENS, prompt_cache=prompt_cache
        ):
            ttft = ttft or time.perf_counter() - start
            pieces.append(response.text)
        return "".join(pieces), ttft * 1000

    def _answer_warm(self, tokens: list[int]) -> tuple[str, float, int]:
        start = time.perf_counter()
        ttft = 0.0
        pieces = []
        with self._cache.session(tokens, model=self._model) as session:
            for response in stream_generate(
                self._model,
                self._tokenizer,
                session.remaining,
                max_tokens=_NEW_TOKENS,
                prompt_cache=session.prompt_cache,
                prompt_progress_callback=session.on_progress,
            ):
                ttft = ttft or time.perf_counter() - start
                session.append(response.token)
                pieces.append(response.text)
        return "".join(pieces), ttft * 1000, session.hit.length

    def _other_chats(self) -> list[tuple[list[int], list[Any]]]:
        """Prefilled prompts on the same system prompt, each with a KV cache of its own."""
        chats = []
        with Steps(len(_OTHER_QUESTIONS)) as steps:
            steps.begin(f"Prefilling {len(_OTHER_QUESTIONS)} other chats")
            for question in _OTHER_QUESTIONS:
                messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
                tokens = self._encode(messages)
                hit = self._cache.fetch(tokens)
                prompt_cache = hit.prompt_cache or make_prompt_cache(self._model)
                self._model(mx.array(tokens[hit.length :])[None], cache=prompt_cache)
                mx.eval([layer.state for layer in prompt_cache])
                chats.append((tokens, prompt_cache))
                steps.advance()
        return chats

    def _encode(self, messages: list[dict[str, str]]) -> list[int]:
        if not self._tokenizer.has_chat_template:
            lines = [f"{message['role']}: {message['content']}\n" for message in messages]
            return list(self._tokenizer.encode("".join(lines) + "assistant:"))
        try:
            tokens = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        except Exception:  # noqa: BLE001 -- templates raise what they like
            # Some templates (Gemma's) know no system role: there the first question carries the text.
            system, first, *rest = messages
            merged = {"role": "user", "content": f"{system['content']}\n\n{first['content']}"}
            tokens = self._tokenizer.apply_chat_template([merged, *rest], add_generation_prompt=True)
        return list(tokens)


def _bytes_of(chats: list[tuple[list[int], list[Any]]]) -> int:
    with KVPrefixCache() as unlimited:
        for tokens, prompt_cache in chats:
            unlimited.store(tokens, prompt_cache)
        return unlimited.nbytes


def _memory() -> int:
    active: int = mx.get_active_memory()
    cached: int = mx.get_cache_memory()
    return active + cached
