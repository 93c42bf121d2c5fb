"""What prompts share is found, and a miss says why."""

from __future__ import annotations

import pytest

from kvcache import KVPrefixCache, MediaSpan
from tests.support.layers import KV, Arrays
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV

from .steps import get, put

kinds = pytest.mark.parametrize("kind", MODELS)
spans = pytest.mark.parametrize("kind", SPANS)

# What is asked after 20 tokens that begin with a picture of four were stored by a hybrid model.
MISSES = {
    "no_entry": ([*prompt(15), 999], (), "another model"),
    "no_checkpoint": ([*prompt(15), 999], (MediaSpan(0, 4, "cat"),), ""),
    "media": ([*prompt(15), 999], (MediaSpan(0, 4, "dog"),), ""),
    "too_short": ([0], (), ""),
}


@pytest.mark.parametrize("reason", MISSES)
def test_a_miss_says_why(reason: str) -> None:
    """60. To the fetch, to a look, and in the counters."""
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
    tokens, media, namespace = MISSES[reason]
    assert cache.fetch(prompt(20)).reason == "no_entry"
    put(cache, model, prompt(20), media=[MediaSpan(0, 4, "cat")])
    peeked = cache.peek(tokens, media=media, namespace=namespace)
    hit = cache.fetch(tokens, media=media, namespace=namespace)
    assert (hit.reason, peeked.reason) == (reason, reason)
    assert (hit.length, hit.prompt_cache, hit.remaining, bool(hit)) == (0, None, tokens, False)
    expected = {"no_entry": 1} | {reason: 2 if reason == "no_entry" else 1}
    assert dict(cache.stats().misses_by_reason) == expected
    assert (cache.stats().lookups, cache.stats().hits) == (2, 0)


@kinds
def test_a_chat_reuses_all_of_its_history(kind: str) -> None:
    """62. Five turns of 300 tokens: each reuses 300 more than the one before, and adds only its own."""
    model, cache, tokens = MODELS[kind](), KVPrefixCache(), []
    for turn in range(5):
        tokens = tokens + prompt(300, first=turn)
        hit = cache.fetch(tokens)
        assert hit.length == 300 * turn
        prompt_cache = hit.prompt_cache or model.make_cache()
        model.check(prompt_cache, tokens[: 300 * turn])
        model.grow(prompt_cache, hit.remaining, chunk=128)
        assert cache.store(tokens, prompt_cache, length=len(tokens)).new_tokens == 300
    assert get(cache, model, [*tokens, 1]).length == 1500


@spans
@pytest.mark.parametrize("changed", [0, 1, 150, 299, 300, 309], ids=lambda at: f"at {at}")
def test_a_difference_costs_what_stands_behind_it(kind: str, changed: int) -> None:
    """63, 71. One document, another question, or another word anywhere: the rest of it serves."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=64)
    tokens = prompt(310)
    put(cache, model, tokens)
    asked = [*tokens[:changed], 99_999, *tokens[changed + 1 :]]
    assert get(cache, model, asked).length == changed
    put(cache, model, asked)
    assert cache.ntokens == 310 + 310 - changed
    assert get(cache, model, [*tokens, 1]).length == get(cache, model, [*asked, 1]).length == 310


@kinds
def test_thinking_that_the_template_removes(kind: str) -> None:
    """68. The next turn has the answer without the thinking: the prompt before both is reused."""
    model, cache = MODELS[kind](), KVPrefixCache()
    asked, thinking, answer = prompt(40), prompt(25, first=1), prompt(10, first=2)
    prompt_cache = model.filled(asked)
    if kind not in SPANS:
        cache.store(asked, prompt_cache, length=len(asked))
    model.grow(prompt_cache, [*thinking, *answer], chunk=1)
    ran = [*asked, *thinking, *answer]
    cache.store(ran, prompt_cache, length=len(ran))
    following = [*asked, *answer, *prompt(9, first=3)]
    assert get(cache, model, following).length == 40


@spans
def test_thinking_that_is_not_stored_at_all(kind: str) -> None:
    """68. ``length`` cuts what is stored: only the prompt, of a cache that has run the answer too."""
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(40) + prompt(25, first=1)
    stored = cache.store(tokens, model.filled(tokens), length=40)
    assert (stored.reason, stored.length) == ("stored", 40)
    assert cache.ntokens == 40
    assert get(cache, model, [*tokens, 1]).length == 40


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "state-only"])
def test_a_key_is_used_as_it_is_given(kind: str) -> None:
    """69. Longer than the KV it is cut, the last sampled token never ran; shorter it is refused."""
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(30)
    filled = model.filled(tokens)
    refused = cache.store(tokens[:29], filled)
    assert (refused.reason, refused.length, cache.nbytes) == ("key_too_short", 0, 0)
    stored = cache.store([*tokens, 5, 6], filled)
    assert (stored.reason, stored.length) == ("stored", 30)
    hit = get(cache, model, [*tokens, 5, 6, 7])
    assert (hit.length, hit.matched) == (30, 30)
    assert get(cache, model, [*tokens, 8]).length == 30


@spans
@pytest.mark.parametrize("short_first", [False, True])
def test_a_shorter_entry_does_not_win_over_a_longer_match(kind: str, short_first: bool) -> None:
    """75. 200 tokens that end exactly there, and 401 of which 400 match: 400."""
    model, cache = MODELS[kind](), KVPrefixCache()
    for length in (200, 401) if short_first else (401, 200):
        put(cache, model, prompt(length))
    assert get(cache, model, [*prompt(400), 99_999]).length == 400
    assert get(cache, model, prompt(401)).length == 400
    assert cache.ntokens == 401
