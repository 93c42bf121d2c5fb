"""Snapshots become checkpoints: a hybrid continues from one, bit for bit as if it had run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache

from kvcache.integrations.exo import KVPrefixCache
from kvcache.integrations.exo.checkpoints import rewound
from tests.architectures.tiny_models import build
from tests.support.layers import KV, List, Rotating
from tests.support.memory import active, charged
from tests.support.models import MODELS, prompt
from tests.support.poskv import PosKV

from .engine import CHUNK, Snapshot, request, run, snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

HYBRIDS = ("arrays", "list-state", "rotating")
CHAT = prompt(62)


@pytest.fixture
def prefixes() -> KVPrefixCache:
    return KVPrefixCache(None)


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("shared", [62, 61, 60, 59, 48, 47, 30, 13, 12, 11])
def test_a_prompt_that_branches_off_continues_at_a_chunks_end(
    prefixes: KVPrefixCache, name: str, shared: int
) -> None:
    model = MODELS[name]()
    request(prefixes, model, CHAT)
    branch = [*CHAT[:shared], *prompt(3, 7)]
    chunks = (60, 48, 36, 24, 12, 0)
    assert request(prefixes, model, branch).hit == next(at for at in chunks if at <= shared)


@pytest.mark.parametrize("name", HYBRIDS)
def test_what_is_held_is_not_copied_again(prefixes: KVPrefixCache, name: str) -> None:
    model = MODELS[name]()
    turn = request(prefixes, model, CHAT)
    assert [each.token_count for each in turn.snapshots] == [0, 12, 24, 36, 48, 60]
    before = prefixes.cache.stats()
    assert (before.checkpoints, before.ntokens) == (5, 60)
    for _ in range(2):
        prefixes.add_kv_cache(mx.array(CHAT), turn.cache, turn.snapshots)
        prefixes.update_kv_cache(turn.saved, mx.array(CHAT), turn.cache, turn.snapshots, 0)
    after = prefixes.cache.stats()
    assert (after.nbytes, after.checkpoints, after.stored_tokens) == (
        before.nbytes,
        before.checkpoints,
        before.stored_tokens,
    )


@pytest.mark.parametrize("name", HYBRIDS)
def test_snapshots_are_copied_out_of_the_callers_arrays(prefixes: KVPrefixCache, name: str) -> None:
    model = MODELS[name]()
    start = active()
    request(prefixes, model, CHAT)
    prefixes.cache.validate()
    assert active() - start == charged(prefixes.cache)


def test_a_long_prefill_keeps_its_last_checkpoints(prefixes: KVPrefixCache) -> None:
    model, chat = MODELS["arrays"](), prompt(20 * CHUNK + 2)
    request(prefixes, model, chat)
    assert prefixes.cache.stats().checkpoints == 8
    assert request(prefixes, model, chat).hit == 20 * CHUNK


def test_snapshots_that_cannot_serve_are_left_out(prefixes: KVPrefixCache) -> None:
    model = MODELS["arrays"]()
    cache = model.filled(CHAT[:60], CHUNK)
    good = snapshot(model.filled(CHAT[:24]))
    snapshots = [
        Snapshot(good.states, 0),
        good,
        Snapshot(good.states[:1], 30),
        Snapshot([None, None], 36),
        Snapshot(good.states, 61),
        Snapshot(good.states, 99),
    ]
    assert prefixes.add_kv_cache(mx.array(CHAT), cache, snapshots) == 0
    assert prefixes.cache.stats().checkpoints == 2
    assert request(prefixes, model, [*CHAT[:40], 1, 2, 3]).hit == 24


def test_a_snapshot_whose_layers_stand_elsewhere_is_refused(prefixes: KVPrefixCache) -> None:
    model = PosKV(KV(), Rotating(8))
    late = snapshot(model.filled(CHAT[:30]))
    late.token_count = 24
    prefixes.add_kv_cache(mx.array(CHAT), model.filled(CHAT[:60]), [late])
    assert prefixes.cache.stats().checkpoints == 1
    assert prefixes.cache.stats().refused_by_reason == {"offset_mismatch": 1}


@pytest.mark.parametrize(("length", "kept"), [(51, 48), (11, 9)], ids=["rotated", "whole"])
def test_a_window_after_a_chunk_of_one_token(prefixes: KVPrefixCache, length: int, kept: int) -> None:
    """It has begun to turn, and exo's snapshot does not say where it begins; nor does the rollback."""
    model = PosKV(KV(), Rotating(10))
    request(prefixes, model, CHAT[: length - 1])
    turn = request(prefixes, model, CHAT[:length])
    at = length - 2
    assert [each.token_count for each in turn.snapshots] == [at - 1, at]
    assert request(prefixes, model, CHAT).hit == kept


def test_layers_are_cut_where_they_can_be() -> None:
    """exo takes no snapshot of a list of windows that had not rotated yet."""
    model = PosKV(List(KV(), Rotating(50)), KV())
    cache = model.filled(CHAT[:40])
    layers = rewound(cache, [None, None], 24)
    assert layers is not None
    model.check(layers, CHAT[:24])
    model.check(cache, CHAT[:40])
    assert rewound(cache, [None, None], 41) is None
    model.grow(cache, CHAT[40:60], 5)
    assert rewound(cache, [None, None], 24) is None
    empty = [CacheList(KVCache(), RotatingKVCache(50)), KVCache()]
    assert rewound(empty, None, 1) is None


def _tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 96, count).tolist()


def _bits(cache: Sequence[Any]) -> list[bytes]:
    """What the states are, and the KV up to the offset."""
    found = []
    for layer in cache:
        for _, value in tree_flatten(list(vars(layer).values())):
            if isinstance(value, mx.array):
                span = isinstance(layer, KVCache)
                found.append(np.array(value[..., : layer.offset, :] if span else value).tobytes())
    return found


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma3_text", "qwen3_next", "lfm2", "jamba"])
def test_a_real_model_answers_as_without_the_cache(name: str) -> None:
    """Each prompt's chunks end where those of the prefill without reuse do."""
    model = build(name)
    first = _tokens(1, 3 * CHUNK + 2)
    second = [*first, *_tokens(2, 2 * CHUNK)]
    branch = [*first[: 2 * CHUNK], *_tokens(3, CHUNK + 2)]
    other_end = [*first[: 3 * CHUNK], *_tokens(4, 2)]
    prefixes = KVPrefixCache(None)
    hits = []
    for chat in (first, second, second, branch, other_end):
        warm, cold = (request(each, model, chat) for each in (prefixes, KVPrefixCache(None)))
        hits.append(warm.hit)
        assert _bits(warm.cache) == _bits(cold.cache)
        for token in chat[-2:]:
            logits = [np.array(run(model, [token], turn.cache)).tobytes() for turn in (warm, cold)]
            assert logits[0] == logits[1]
    assert hits == [0, 36, 60, 24, 36]
