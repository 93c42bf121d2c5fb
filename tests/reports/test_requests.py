"""What users ask for."""

from __future__ import annotations

import pytest

from kvcache import KVPrefixCache
from tests.support.memory import active, charged
from tests.support.models import MODELS, SPANS, prompt

from .steps import get, put


@pytest.mark.parametrize("kind", SPANS)
@pytest.mark.parametrize("segment_tokens", [1024, 64])
def test_four_chats_hold_their_system_prompt_once(kind: str, segment_tokens: int) -> None:
    """112. A thousand tokens and fifty of each: 1,200 tokens of KV, not 4,200; memory says so too."""
    model, base = MODELS[kind](), active()
    cache = KVPrefixCache(segment_tokens=segment_tokens)
    system = prompt(1000)
    chats = [system + prompt(50, first=first) for first in range(1, 5)]
    added = [put(cache, model, chat).new_tokens for chat in chats]
    assert added == [1050, 50, 50, 50]
    assert cache.ntokens == 1200
    assert active() - base == charged(cache)
    assert cache.nbytes == model.nbytes(1200)
    assert [get(cache, model, [*chat, 1]).length for chat in chats] == 4 * [1050]
    # Each goes alone, and the last one with the prompt that it shared.
    for left in (1150, 1100, 1050):
        cache.evict(model.nbytes(50))
        assert cache.ntokens == left
    assert get(cache, model, [*chats[3], 1]).length == 1050


@pytest.mark.parametrize("kind", ["kv", "arrays", "rotating", "state-only"])
def test_a_pinned_prompt_survives_a_flood(kind: str) -> None:
    """114. Until it is released; then it goes in its turn. What does not fit beside pins is refused."""
    model = MODELS[kind]()
    cache = KVPrefixCache(max_bytes=3 * model.nbytes(40))
    put(cache, model, prompt(40))
    pin = cache.pin(prompt(40))
    assert pin.tokens == 40
    for first in range(1, 20):
        assert put(cache, model, prompt(40, first=first)).reason == "stored"
        assert cache.peek(prompt(41)).length == 40
    others = [cache.pin(prompt(40, first=first)) for first in (18, 19)]
    refused = put(cache, model, prompt(40, first=20))
    assert (refused.reason, refused.length, bool(refused.evicted)) == ("too_large", 0, False)
    for each in (pin, *others):
        each.release()
    for first in range(20, 23):
        assert put(cache, model, prompt(40, first=first)).reason == "stored"
    assert [get(cache, model, prompt(41, first=first)).length for first in (0, 20)] == [0, 40]
