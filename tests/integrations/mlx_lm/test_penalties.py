"""Answers with penalties are the same on a warm cache and on a cold one, on both paths of the server."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from kvcache.integrations.mlx_lm.penalties import seeing

from .inprocess import engine
from .tiny import write_model

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = "the same words again and again, and again the same words, again " * 2
PENALTIES = {
    "repetition": {"repetition_penalty": 1.8, "repetition_context_size": 300},
    "presence": {"presence_penalty": 3.0, "presence_context_size": 300},
    "frequency": {"frequency_penalty": 1.5, "frequency_context_size": 300},
    "all": {"repetition_penalty": 1.3, "presence_penalty": 2.0, "frequency_penalty": 0.5},
    "no context": {"repetition_penalty": 1.8, "repetition_context_size": 0},
    "a bias": {"logit_bias": {5: 3.0}, "repetition_penalty": 1.5},
}
SEEDS = pytest.mark.parametrize("seed", [None, 1], ids=["batched", "sequential"])


def _answers(model: Path, seed: int | None, *options: str, times: int = 3, **penalty: Any) -> list[Any]:
    """Tokens reused and tokens of the answer, asked again and again."""
    with engine(model, *options) as asked:
        found = [asked.ask(PROMPT, max_tokens=16, seed=seed, **penalty) for _ in range(times)]
        longer = asked.ask(PROMPT + "and on", max_tokens=16, seed=seed, **penalty)
    return [(context.prompt_cache_count, tokens) for context, tokens in (*found, longer)]


@SEEDS
@pytest.mark.parametrize("name", PENALTIES)
def test_cold_and_warm(tiny: Path, seed: int | None, name: str) -> None:
    (cold, first), *warm, (continued, longer) = _answers(tiny, seed, **PENALTIES[name])
    assert cold == 0
    assert all(reused == len(PROMPT) - 1 for reused, _ in warm)
    assert all(tokens == first for _, tokens in warm)
    assert continued >= len(PROMPT)
    with engine(tiny) as fresh:
        assert fresh.ask(PROMPT + "and on", max_tokens=16, seed=seed, **PENALTIES[name])[1] == longer


def test_the_penalties_matter(tiny: Path) -> None:
    """Were all answers equal, the test above would show nothing."""
    answers = [_answers(tiny, 1, times=1, **penalty)[0][1] for penalty in ({}, *PENALTIES.values())]
    assert all(one != other for one, other in itertools.combinations(answers[:4], 2))


def test_both_paths_agree(tiny: Path) -> None:
    penalty = PENALTIES["repetition"]
    assert _answers(tiny, None, **penalty)[-1] == _answers(tiny, 1, **penalty)[-1]


def test_a_draft_model(tiny: Path, tmp_path: Path) -> None:
    """There mlx-lm shows processors nothing of the prompt but its last token, cold as well as warm."""
    draft = write_model(tmp_path / "draft", seed=8)
    (_, first), *warm, _ = _answers(tiny, 1, "--draft-model", str(draft), **PENALTIES["repetition"])
    assert all(tokens == first for _, tokens in warm)


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint32, mx.int64])
def test_processors_see_the_reused_tokens(dtype: mx.Dtype) -> None:
    seen = []

    def processor(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append((tokens.tolist(), tokens.dtype))
        return logits

    (wrapped,) = seeing(iter([processor]), (4, 5, 6))
    wrapped(mx.array([7], dtype=dtype), mx.zeros((1, 9)))
    assert seen == [([4, 5, 6, 7], dtype)]
    assert seeing([processor], ()) == [processor]
