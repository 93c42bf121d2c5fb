"""Ten growing turns of one chat: reuse grows with every turn, and nothing else does."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from mlx_lm.generate import stream_generate

from kvcache import KVPrefixCache

from .generation import answered
from .runs import BY_NAME, Kinds, chunks, leaves, play, random_tokens
from .speculative import Numbers

if TYPE_CHECKING:
    from .runs import Case

TURNS = 10
SAID = 13
ANSWERED = 4
CHECKPOINTS = 4
HYBRIDS = [
    "qwen3_next",
    "jamba",
    "falcon_h1",
    "nemotron_h",
    "recurrent_gemma",
    "gemma3_text",
    "llama4",
    "mamba2",
    "deepseek_v41",
]

hybrids = pytest.mark.parametrize("case", [BY_NAME[name] for name in HYBRIDS], ids=HYBRIDS)


def plain(model: Any, tokens: list[int]) -> list[int]:
    """The answer without a cache."""
    responses = stream_generate(model, Numbers(), mx.array(tokens), max_tokens=ANSWERED)
    return [response.token for response in responses]


def figures(case: Case, model: Any) -> tuple[int, int]:
    """Bytes of a token's KV and of the last checkpoint, read off a cache of that length."""
    length = TURNS * (SAID + ANSWERED)
    tokens, caches = random_tokens(99, length), case.fresh(model)
    play(case, model, caches, chunks(tokens, 0, length))
    spans = [cache for cache in leaves(caches) if Kinds.of([cache]).spans]
    row = sum(side[..., :1, :].nbytes for cache in spans for side in (cache.keys, cache.values))
    with KVPrefixCache() as single:
        return row, single.store(tokens, caches, length=len(tokens)).nbytes - length * row


@hybrids
@pytest.mark.parametrize("forgotten", [0, 2], ids=["kept", "template drops the end"])
def test_reuse_grows_and_nothing_else(case: Case, model: Any, forgotten: int) -> None:
    per_token, per_checkpoint = figures(case, model)
    key: list[int] = []
    reused = []
    with KVPrefixCache(segment_tokens=16, max_checkpoints=CHECKPOINTS) as prefixes:
        for number in range(TURNS):
            before = len(key)
            key = key + random_tokens(number, SAID)
            expected = plain(model, key)
            request = answered(prefixes, case, model, key, ANSWERED)
            prefixes.validate()
            assert key[-ANSWERED:] == expected
            assert request.stored.length == len(key)
            reused.append(request.hit.length)
            stats = prefixes.stats()
            if forgotten:
                # A branch of at most ``forgotten`` tokens stays behind each turn's end.
                assert stats.ntokens <= len(key) + number * (SAID + ANSWERED)
                key = key[:-forgotten]
                continue
            assert request.hit.length == before
            assert stats.ntokens == len(key), "a token was stored twice"
            assert stats.checkpoints <= CHECKPOINTS
            assert len(prefixes) <= CHECKPOINTS
            assert stats.nbytes <= len(key) * per_token + CHECKPOINTS * per_checkpoint
    assert reused[0] == 0
    assert all(later > earlier for earlier, later in pairwise(reused))
