"""Models all of whose layers are recurrent: stored under what was run, or not at all."""

from __future__ import annotations

import warnings
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import server
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, make_prompt_cache

from kvcache import ConfigError
from kvcache.integrations.mlx_lm import PromptCache, patch
from tests.architectures.tiny_models import build

STATES = pytest.mark.parametrize("architecture", ["mamba", "mamba2", "rwkv7"])


def _run(model: Any, tokens: list[int]) -> list[Any]:
    layers = list(make_prompt_cache(model))
    mx.eval(model(mx.array([tokens]), cache=layers))
    return layers


@STATES
def test_a_plain_caller_is_refused_with_one_warning(architecture: str) -> None:
    layers, prompt_cache = _run(build(architecture), [1, 2, 3, 4]), PromptCache()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stored = [prompt_cache.insert_cache("m", [1, 2, 3, 4, 5], layers) for _ in range(3)]
    assert [(each.length, each.reason) for each in stored] == [(0, "unknown_length")] * 3
    (warning,) = caught
    assert "pass length= to insert_cache" in str(warning.message)
    assert prompt_cache.fetch_nearest_cache("m", [1, 2, 3, 4, 5, 6])[0] is None
    prompt_cache.cache.validate()


@STATES
def test_a_caller_that_says_what_was_run(architecture: str) -> None:
    model, tokens = build(architecture), [1, 2, 3, 4]
    prompt_cache = PromptCache()
    assert prompt_cache.insert_cache("m", [*tokens, 5], _run(model, tokens), length=4).length == 4
    layers, rest = prompt_cache.fetch_nearest_cache("m", [*tokens, 5, 6])
    assert rest == [5, 6]
    warm = model(mx.array([rest]), cache=layers)[0, -1]
    cold = model(mx.array([[*tokens, *rest]]), cache=make_prompt_cache(model))[0, -1]
    assert mx.abs(warm - cold).max().item() < 1e-3 * mx.abs(cold).max().item()


def test_a_list_of_states_counts_nothing_either() -> None:
    layer = CacheList(ArraysCache(1), ArraysCache(1))
    for member in layer.caches:
        member[0] = mx.ones((1, 2))
    with pytest.warns(UserWarning, match="recurrent"):
        assert PromptCache().insert_cache("m", [1, 2], [layer]).reason == "unknown_length"


@STATES
def test_the_server_counts(architecture: str) -> None:
    with patch(), warnings.catch_warnings():
        warnings.simplefilter("error")
        prompt_cache = server.LRUPromptCache()
        layers = _run(build(architecture), [1, 2, 3, 4])
        assert prompt_cache.insert_cache("m", [1, 2, 3, 4], layers).length == 4


def _kv(tokens: int) -> list[KVCache]:
    layers = [KVCache(), KVCache()]
    for layer in layers:
        layer.update_and_fetch(mx.zeros((1, 1, tokens, 2)), mx.zeros((1, 1, tokens, 2)))
    return layers


def test_a_length_cuts_what_can_be_cut() -> None:
    prompt_cache = PromptCache()
    assert prompt_cache.insert_cache("m", list(range(9)), _kv(8), length=5).length == 5
    assert prompt_cache.insert_cache("m", list(range(9)), _kv(8)).length == 8
    assert prompt_cache.insert_cache("m", list(range(9)), _kv(8), length=9).reason == "offset_mismatch"
    for wrong in (-1, 10):
        with pytest.raises(ConfigError, match="length must be from 0 to the 9 tokens"):
            prompt_cache.insert_cache("m", list(range(9)), _kv(8), length=wrong)
    with pytest.raises(TypeError):
        prompt_cache.insert_cache("m", list(range(9)), _kv(8), length=2.0)
    prompt_cache.cache.validate()


@pytest.mark.parametrize(
    "tokens", [iter([1, 2]), map(int, "12"), (n for n in (1, 2)), {1, 2}, "12", b"12", 5, None]
)
def test_what_could_be_read_once_only_is_refused(tokens: Any) -> None:
    prompt_cache = PromptCache()
    with pytest.raises(TypeError, match="tokens must be a list"):
        prompt_cache.fetch_nearest_cache("m", tokens)
    with pytest.raises(TypeError, match="tokens must be a list"):
        prompt_cache.insert_cache("m", tokens, _kv(2))


def test_layers_that_could_be_read_once_only_are_refused() -> None:
    for layers in (iter(_kv(2)), (layer for layer in _kv(2))):
        with pytest.raises(TypeError, match="prompt_cache must be a list"):
            PromptCache().insert_cache("m", [1, 2], layers)


@pytest.mark.parametrize("model", ["\ud800", ("\udcff", None), "\0", ""])
def test_any_text_names_a_model(model: Any) -> None:
    prompt_cache = PromptCache()
    assert prompt_cache.insert_cache(model, [1, 2, 3], _kv(3)).length == 3
    assert len(prompt_cache.fetch_nearest_cache(model, [1, 2, 3, 4])[1]) == 1


def test_a_dead_generator_is_reported_whatever_was_asked() -> None:
    with patch():
        generator = object.__new__(server.ResponseGenerator)
        generator.generation_available = lambda: False
        with pytest.raises(RuntimeError, match="generation thread died"):
            generator.generate(None, None)
