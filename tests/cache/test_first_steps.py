"""What somebody new gets wrong first: each mistake is answered by a sentence that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from loguru import logger

from kvcache import ConfigError, KVPrefixCache, MediaSpan, TokenError
from tests.support.layers import KV
from tests.support.models import prompt
from tests.support.patience import PATIENCE
from tests.support.poskv import PosKV

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["hit", "prompt_cache", "remaining"])
def test_a_session_that_was_not_entered(name: str) -> None:
    session = KVPrefixCache().session(prompt(4), model=PosKV(KV()))
    with pytest.raises(AttributeError, match=f"has {name} once it is entered; use it inside the with block"):
        getattr(session, name)
    assert session.stored is None


@pytest.mark.parametrize("name", ["tokens", "_hit", "remaning"])
def test_a_session_has_no_other_attributes(name: str) -> None:
    session = KVPrefixCache().session(prompt(4), model=PosKV(KV()))
    assert not hasattr(session, name)


@pytest.mark.parametrize("tokens", [[], (), mx.array([], dtype=mx.int32)])
def test_a_session_without_a_prompt(tokens: Any) -> None:
    cache = KVPrefixCache()
    with pytest.raises(TokenError, match="at least one token"):
        cache.session(tokens, model=PosKV(KV()))
    cache.validate()


@pytest.mark.parametrize("model", ["path/to/model", object(), 3])
def test_a_model_that_is_none(model: Any) -> None:
    cache = KVPrefixCache()
    expected = f"must be an mlx-lm model, found {type(model).__name__}"
    with pytest.raises(TypeError, match=expected), cache.session(prompt(4), model=model):
        pytest.fail("the block must not run")
    cache.validate()


@pytest.mark.parametrize("token", ["x", None, 1.0])
def test_a_generated_token_that_is_none(token: Any) -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    with (
        pytest.raises(TypeError, match=f"append takes a token id, an int; found {type(token).__name__}"),
        cache.session(prompt(4), model=model) as session,
    ):
        session.append(token)


def test_a_single_span_for_media() -> None:
    cache = KVPrefixCache()
    with pytest.raises(TypeError, match="pass it in a list"):
        cache.peek(prompt(4), media=MediaSpan(0, 2, "cat"))  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["80%", "12.5 % "])
def test_a_percentage_for_memory_limit(limit: str) -> None:
    with pytest.raises(ConfigError, match=r"a fraction like 0\.8"):
        KVPrefixCache(memory_limit=limit)


def test_a_hit_s_text_is_short() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    tokens = prompt(4000)
    cache.store(tokens, model.filled(tokens))
    for found in (cache.peek(tokens), cache.fetch([*tokens, 1]), cache.fetch(prompt(4000, 1))):
        assert len(repr(found)) < 120
        assert f"length={found.length}" in repr(found)
        assert f"reason={found.reason!r}" in repr(found)


@pytest.mark.parametrize(
    ("tokens", "limits", "reason"),
    [(3, {}, "key_too_short"), (8, {"max_bytes": 1}, "too_large"), (8, {"memory_limit": 1}, "too_large")],
)
def test_a_refused_store_is_in_the_log(tokens: int, limits: dict[str, Any], reason: str) -> None:
    model, cache, lines = PosKV(KV()), KVPrefixCache(**limits), list[str]()
    number = logger.add(lambda line: lines.append(line.record["message"]), level="DEBUG")
    logger.enable("kvcache")
    try:
        stored = cache.store(prompt(tokens), model.filled(prompt(8)))
    finally:
        logger.disable("kvcache")
        logger.remove(number)
    assert stored.reason == reason
    assert [line for line in lines if reason in line and stored.detail in line], lines


@pytest.mark.parametrize("name", ["mlx_lm_chat.py", "own_engine.py", "ranks.py"])
def test_an_example_without_arguments(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / name)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ended.returncode == 1
    assert ended.stderr.startswith("usage: ")
    assert name in ended.stderr
