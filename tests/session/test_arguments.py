"""What a session is given: models, drafts, quantisation, media, a cache to move out."""

from __future__ import annotations

from typing import Any

import pytest

from kvcache import ConfigError, KVPrefixCache, MediaSpan, TokenError
from tests.support.failures import assert_settled
from tests.support.layers import KV, WIDTH, Arrays, List, Quantized, Rotating
from tests.support.memory import active, charged
from tests.support.models import prompt
from tests.support.poskv import PosKV
from tests.support.request_loop import request


def test_a_miss_without_a_model() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    with pytest.raises(ConfigError, match="model"), cache.session(prompt(5)):
        pytest.fail("the block must not run")
    assert_settled(cache)
    cache.store(prompt(5), model.filled(prompt(5)))
    with cache.session(prompt(6)) as session:
        model.grow(session.prompt_cache, session.remaining)
    assert session.stored.length == 6


@pytest.mark.parametrize("step", [0, -1])
def test_a_step_that_is_none(step: int) -> None:
    with pytest.raises(ConfigError, match="prefill_step_size"):
        KVPrefixCache().session([1], prefill_step_size=step)


@pytest.mark.parametrize("bits", [0, 1, 1.5, "4", True, 16])
def test_bits_that_nothing_quantises_to(bits: Any) -> None:
    with pytest.raises(ConfigError, match="kv_bits must be None or one of"):
        KVPrefixCache().session([1], kv_bits=bits)


def test_media_that_are_none() -> None:
    cache = KVPrefixCache()
    with pytest.raises(TypeError, match="media must be an iterable of MediaSpan, found NoneType"):
        cache.session([1], media=None)
    with pytest.raises(TypeError, match="found NoneType"):
        cache.fetch([1], media=None)


def test_a_draft_model_s_cache_lags_behind() -> None:
    main, draft = PosKV(KV(), KV()), PosKV(KV(heads=1))
    cache = KVPrefixCache()
    tokens = prompt(20)
    with cache.session(tokens, model=main, draft_model=draft) as session:
        assert len(session.prompt_cache) == 3
        main.grow(session.prompt_cache[:2], tokens)
        draft.grow(session.prompt_cache[2:], tokens[:19])
    assert (session.stored.reason, session.stored.length) == ("stored", 19)
    with cache.session([*tokens, 5], model=main, draft_model=draft) as session:
        assert session.hit.length == 19
        main.check(session.prompt_cache[:2], tokens[:19])
        draft.check(session.prompt_cache[2:], tokens[:19])


def test_a_cache_quantised_in_mid_request() -> None:
    """mlx-lm replaces members of the list; the two kinds stay apart in one namespace."""
    plain, quantized = PosKV(KV(), KV()), PosKV(Quantized(), Quantized())
    cache = KVPrefixCache()
    tokens = prompt(30)
    with cache.session(tokens, model=plain) as session:
        plain.grow(session.prompt_cache, tokens[:20])
        for at, layer in enumerate(session.prompt_cache):
            session.prompt_cache[at] = layer.to_quantized(group_size=WIDTH, bits=4)
        quantized.grow(session.prompt_cache, tokens[20:])
    assert session.stored.length == 30
    quantized.check(cache.fetch([*tokens, 1]).prompt_cache, tokens)
    cache.store(tokens[:10], plain.filled(tokens[:10]))
    cache.store([*tokens, 1], plain.filled([*tokens, 1]))
    plain.check(cache.fetch([*tokens, 1, 2]).prompt_cache, [*tokens, 1])
    cache.validate()


def test_a_session_with_media() -> None:
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
    media = [MediaSpan(10, 6, "cat"), MediaSpan(40, 5, "dog")]
    tokens, content = [0] * 50, prompt(10) + [900] * 6 + prompt(24, first=1) + [901] * 5 + prompt(5, first=2)
    with cache.session(tokens, model=model, media=media) as session:
        model.grow(session.prompt_cache, content[:20])
        session.on_progress(20, 50)
        model.grow(session.prompt_cache, content[20:43])
        session.on_progress(43, 50)
        model.grow(session.prompt_cache, content[43:])
        model.grow(session.prompt_cache, [7])
        session.append(7)
    assert session.stored.length == 51
    hit = cache.fetch([*tokens, 7, 1], media=media)
    model.check(hit.prompt_cache, [*content, 7])
    assert cache.peek(tokens, media=[MediaSpan(10, 6, "cow"), media[1]]).matched == 10
    other = cache.fetch(tokens, media=[media[0], MediaSpan(40, 5, "cow")])
    assert (other.length, other.matched) == (20, 40)
    model.check(other.prompt_cache, content[:20])


@pytest.mark.parametrize(
    ("layer", "start", "own"),
    [(Arrays, 10, False), (Arrays, 0, False), (lambda: Rotating(4), 24, False), (Arrays, 30, True)],
)
def test_a_session_runs_no_placeholders(layer: Any, start: int, own: bool) -> None:
    """The advice is at 25. Only the engine can run what stands under a span before it."""
    model, cache = PosKV(KV(), layer()), KVPrefixCache()
    media = [MediaSpan(start, 1, "cat")]

    def content(question: int) -> list[int]:
        """What is run: something else than the placeholder."""
        return [*tokens[:start], 900, *tokens[start + 1 :], 1000 + question]

    for question in range(3):
        tokens = [*prompt(25), *prompt(15, first=question + 1)]
        tokens[start] = 31
        with cache.session(tokens, model=model, media=media) as session:
            at = len(tokens) - len(session.remaining)
            assert at == (25 if own and question else session.hit.length)
            helps = session.hit.checkpoint_at
            assert helps == (25 if question == 1 else None)
            if helps is not None and helps > at:
                model.grow(session.prompt_cache, content(question)[at:helps])
                session.on_progress(helps - at, len(tokens) - at)
                at = helps
            model.grow(session.prompt_cache, content(question)[at:])
            session.append(1000 + question)
        assert session.stored.length == 41
        hit = cache.fetch([*tokens, 1000 + question, 1], media=media)
        model.check(hit.prompt_cache, content(question))
    assert session.hit.length == 25


def test_take_moves_the_entry_out_and_brings_it_back() -> None:
    model, cache, base = PosKV(KV(), List(KV(), Arrays())), KVPrefixCache(), active()
    cache.store(prompt(40), model.filled(prompt(40)))
    with cache.session([*prompt(40), 5], model=model, take=True) as session:
        assert session.hit.length > 0
        assert cache.nbytes < model.nbytes(session.hit.length)
        model.grow(session.prompt_cache, session.remaining)
        model.grow(session.prompt_cache, [6])
        session.append(6)
        model.grow(session.prompt_cache, [7])
        session.append(7)
    del session
    model.check(cache.fetch([*prompt(40), 5, 6, 7, 1]).prompt_cache, [*prompt(40), 5, 6, 7])
    assert active() - base == charged(cache)


def test_a_refusal_is_told() -> None:
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache(max_bytes=100)
    session = request(cache, model, prompt(20), [5])
    assert session.stored.reason == "too_large"
    assert cache.nbytes == 0


def test_a_token_that_is_none_is_told() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    with pytest.raises(TypeError), cache.session(prompt(20), model=model) as session:
        session.append(None)
    with pytest.raises(TokenError), cache.session(prompt(20), model=model) as session:
        model.grow(session.prompt_cache, prompt(20))
        model.grow(session.prompt_cache, [5])
        session.append(-1)
    assert_settled(cache)


def test_a_model_of_another_depth_is_told_to_use_a_namespace_of_its_own() -> None:
    cache = KVPrefixCache()
    request(cache, PosKV(KV()), prompt(20), [])
    with pytest.raises(ConfigError, match="holds caches of 1 layers, this model makes 2"):
        cache.session(prompt(30), model=PosKV(KV(), KV())).__enter__()
    assert len(cache) == 1
    assert_settled(cache)
