"""The patched server's own paths, batched and sequential, on tiny random models."""

from __future__ import annotations

import gc
import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import mlx.core as mx
import psutil
import pytest
from mlx_lm import server
from mlx_lm.models.cache import LRUPromptCache

from kvcache import ConfigError
from kvcache.integrations.mlx_lm import PromptCache, patch

from .inprocess import engine
from .tiny import TOKEN_BYTES, write_model

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = 500 if os.environ.get("KVCACHE_FULL") else 150
SEEDS = pytest.mark.parametrize("seed", [None, 1], ids=["batched", "sequential"])


def test_patch_gives_back_what_it_took(tiny: Path) -> None:
    names = ("LRUPromptCache", "BatchGenerator", "ResponseGenerator", "stream_generate", "run")
    before = [getattr(server, name) for name in names]
    with patch() as outer:
        assert isinstance(server.LRUPromptCache(3), PromptCache)
        with patch(max_size=7, max_bytes="1MB") as installation:
            assert repr(installation) == "Installation(no cache yet, max_size=7, max_bytes='1MB')"
            inner = server.LRUPromptCache(3)
            assert repr(installation) == "Installation(0 entries, max_size=7, max_bytes='1MB')"
            assert (inner.max_size, inner.max_bytes) == (7, 1_000_000)
        assert server.LRUPromptCache(3).max_size == 3
        assert outer.prompt_cache.max_bytes is None
    assert [getattr(server, name) for name in names] == before
    assert server.LRUPromptCache is LRUPromptCache
    with pytest.raises(ConfigError, match="max_bytes must be a size"):
        patch(max_bytes="much").__enter__()
    assert server.LRUPromptCache is LRUPromptCache


@SEEDS
def test_the_servers_own_byte_limit_holds_on_both_paths(tiny: Path, seed: int | None) -> None:
    limit = 300 * TOKEN_BYTES
    with engine(tiny, "--prompt-cache-bytes", str(limit)) as asked:
        for number in range(6):
            asked.ask(f"{number} " * 60, seed=seed)
            assert asked.prompt_cache.nbytes <= limit
        assert asked.prompt_cache.max_bytes == limit


@SEEDS
def test_an_exact_repeat(tiny: Path, seed: int | None) -> None:
    with engine(tiny) as asked:
        first, tokens = asked.ask("the same again", seed=seed)
        again, same = asked.ask("the same again", seed=seed)
    assert (first.prompt_cache_count, again.prompt_cache_count) == (0, len("the same again") - 1)
    assert tokens == same


@SEEDS
def test_both_paths_serve_each_other(tiny: Path, seed: int | None) -> None:
    with engine(tiny) as asked:
        asked.ask("a shared beginning, and more", seed=seed)
        context, _ = asked.ask("a shared beginning, and less", seed=None if seed else 1)
    assert context.prompt_cache_count == len("a shared beginning, and ")


@SEEDS
def test_a_cancelled_answer_is_kept(tiny: Path, seed: int | None) -> None:
    prompt = "to be cancelled " * 10
    with engine(tiny, "--prefill-step-size", "32") as asked:
        asked.ask(prompt, max_tokens=7000, seed=seed, leave=3)
        context, _ = asked.ask(prompt, seed=seed)
        held = asked.prompt_cache.cache.ntokens
    assert context.prompt_cache_count == len(prompt) - 1
    assert len(prompt) < held < len(prompt) + 7000


def test_a_draft_model(tiny: Path, tmp_path: Path) -> None:
    """Speculative decoding leaves main and draft caches at different offsets."""
    draft, prompt = write_model(tmp_path / "draft", seed=8), "speculate on this " * 3
    with engine(tiny) as asked:
        _, plain = asked.ask(prompt, max_tokens=12, seed=1)
    with engine(tiny, "--draft-model", str(draft)) as asked:
        counts = []
        for _ in range(3):
            context, tokens = asked.ask(prompt, max_tokens=12)
            assert tokens == plain
            counts.append(context.prompt_cache_count)
        context, _ = asked.ask(prompt + "and on", max_tokens=4)
        asked.prompt_cache.cache.validate()
        assert asked.prompt_cache.cache.stats().refused_by_reason == {}
    assert counts == [0, len(prompt) - 1, len(prompt) - 1]
    assert context.prompt_cache_count == len(prompt)


def test_quantised_in_mid_request(tiny: Path) -> None:
    options = ("--kv-bits", "8", "--kv-group-size", "32", "--quantized-kv-start", "40")
    with engine(tiny, *options) as asked:
        for length, reused in ((20, 0), (60, 20), (90, 60)):
            try:
                context, _ = asked.ask("abcdefghij" * 9 if length == 90 else ("abcdefghij" * 9)[:length])
            except RuntimeError as error:
                if "No implementation for problem shape" not in str(error):
                    raise
                pytest.skip(f"not on this device: {error}")
            assert context.prompt_cache_count == reused
        asked.prompt_cache.cache.validate()


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can be used at checkpoints only: a window of 16 tokens in one of its layers."""
    layers = ["sliding_attention", "full_attention"]
    return write_model(tmp_path_factory.mktemp("sliding"), layer_types=layers, sliding_window=16)


def test_a_batch_stops_where_a_checkpoint_helps(sliding: Path) -> None:
    document = "a document that all of them ask about " * 4
    with engine(sliding) as asked:
        counts = [
            asked.ask(document + question)[0].prompt_cache_count for question in ("who", "how", "is it")
        ]
        again = asked.ask(document + "is it")[0].prompt_cache_count
    assert counts == [0, 0, len(document)]
    assert again == len(document + "is it") - 1


def test_the_sequential_path_makes_checkpoints_on_the_way(sliding: Path) -> None:
    document = "a document that all of them ask about " * 4
    with engine(sliding, "--prefill-step-size", "32") as asked:
        counts = [asked.ask(document + question, seed=1)[0].prompt_cache_count for question in ("who", "how")]
    assert counts == [0, len(document) // 32 * 32]


@SEEDS
def test_texts_do_not_change(sliding: Path, tiny: Path, seed: int | None) -> None:
    """Greedy answers with the cache and with one that keeps nothing."""
    prompts = ["one question", "one question and another", "one quest", "one question and another"]
    for model in (sliding, tiny):
        answers = []
        for size in (0, 100):
            with engine(model, max_size=size) as asked:
                answers.append([asked.ask(prompt, max_tokens=12, seed=seed)[1] for prompt in prompts])
                assert bool(asked.prompt_cache.cache.stats().hits) == bool(size)
        assert answers[0] == answers[1]


def test_many_mixed_requests_at_a_tight_limit(tiny: Path) -> None:
    rng = random.Random(3)
    limit = 1500 * TOKEN_BYTES
    systems = ["".join(rng.choices("abcdef ", k=rng.randint(50, 400))) for _ in range(4)]
    chats = [rng.choice(systems) for _ in range(12)]

    def one(number: int) -> None:
        chat = rng.randrange(len(chats))
        chats[chat] += "".join(rng.choices("xyz ", k=rng.randint(0, 60)))
        if len(chats[chat]) > 700 or rng.random() < 0.1:
            chats[chat] = rng.choice([*systems, "", "short"]) or "x" * rng.choice((1, 2, 2000))
        leave = rng.randint(1, 3) if rng.random() < 0.2 else None
        prompt = chats[chat]
        context, tokens = asked.ask(
            prompt, max_tokens=rng.randint(1, 8), seed=1 if number % 3 == 0 else None, leave=leave
        )
        assert 0 <= context.prompt_cache_count < len(prompt)
        assert tokens
        assert asked.prompt_cache.nbytes <= limit

    held = []
    with engine(tiny, "--prefill-step-size", "64", max_size=40, max_bytes=limit) as asked:
        for part in range(4):
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(one, range(part * REQUESTS // 4, (part + 1) * REQUESTS // 4)))
            asked.ask("a sequential request, before which the batch is emptied", seed=1)
            gc.collect()
            held.append(
                (mx.get_active_memory() - asked.prompt_cache.nbytes, psutil.Process().memory_info().rss)
            )
        stats = asked.prompt_cache.cache.stats()
        assert len(asked.prompt_cache) <= 40
        assert stats.hits > REQUESTS // 2
        assert stats.evicted_bytes > limit
        assert set(stats.refused_by_reason) <= {"truncated", "too_large"}
        asked.prompt_cache.cache.validate()
    active, resident = zip(*held, strict=True)
    # What varies is the last request's own cache, which the generation thread still holds.
    assert max(active) - min(active) < 2000 * TOKEN_BYTES
    assert resident[-1] - resident[0] < 20_000_000
