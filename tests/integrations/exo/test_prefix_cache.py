"""What exo's engine relies on in its KVPrefixCache holds here as well; its faults do not."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from kvcache import TokenError
from kvcache.integrations.exo import KVPrefixCache
from tests.support.failures import allocation_failure, failing
from tests.support.models import MODELS, prompt

from .engine import request

if TYPE_CHECKING:
    from tests.support.poskv import PosKV

# What exo's engine can roll back: no class that it does not know, no window that keeps its first
# tokens, no chunk whose front is gone. Of states alone nothing tells how many tokens they have run.
ENGINE = sorted(set(MODELS) - {"opaque", "all", "rotating-keep", "chunked", "state-only"})
# Tokens added a turn: no prefill ends with a chunk of one token, after which exo's snapshot of a
# rotated window is out of order.
ADDED = 26


@pytest.fixture
def model() -> PosKV:
    return MODELS["kv"]()


@pytest.fixture
def prefixes() -> KVPrefixCache:
    return KVPrefixCache(None)


def _put(prefixes: KVPrefixCache, model: PosKV, tokens: list[int], tps: float = 0.0) -> int | None:
    """A key two tokens longer than the KV, as exo's engine leaves it."""
    return prefixes.add_kv_cache(mx.array(tokens), model.filled(tokens[:-2]), prefill_tps=tps)


def _got(prefixes: KVPrefixCache, model: PosKV, tokens: list[int]) -> tuple[int, int | None, bool]:
    cache, rest, index, exact = prefixes.get_kv_cache(model, mx.array(tokens))
    length = len(tokens) - len(rest)
    assert rest.tolist() == tokens[length:]
    model.check(cache, tokens[:length])
    return length, index, exact


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("__init__", "group"),
        ("add_kv_cache", "prompt_tokens cache ssm_snapshots=None media_regions=None prefill_tps=0.0"),
        (
            "update_kv_cache",
            "index prompt_tokens cache snapshots restore_pos media_regions=None prefill_tps=0.0",
        ),
        ("get_kv_cache", "model prompt_tokens media_regions=None"),
        ("clear", ""),
        ("evict_for_prefill", ""),
        ("get_memory_used_percentage", ""),
    ],
)
def test_the_same_arguments_in_the_same_order(name: str, arguments: str) -> None:
    parameters = list(inspect.signature(getattr(KVPrefixCache, name)).parameters.values())[1:]
    positional = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    empty = inspect.Parameter.empty
    found = [each.name + ("" if each.default is empty else f"={each.default}") for each in positional]
    assert " ".join(found) == arguments
    assert all(each.default is not empty for each in parameters if each.kind is each.KEYWORD_ONLY)


def test_an_empty_cache(prefixes: KVPrefixCache, model: PosKV) -> None:
    assert prefixes.prompts == []
    assert len(prefixes.prefill_tps) == 0
    for tokens in ([1, 2, 3], [1]):
        assert _got(prefixes, model, tokens) == (0, None, False)
    prefixes.clear()
    assert prefixes.prompts == []


def test_a_miss_brings_a_fresh_cache(prefixes: KVPrefixCache) -> None:
    plain = SimpleNamespace(layers=[None] * 3)
    cache, rest, index, exact = prefixes.get_kv_cache(plain, mx.array([4, 5]))
    assert [type(layer) for layer in cache] == [KVCache] * 3
    assert (rest.tolist(), index, exact) == ([4, 5], None, False)
    own = MODELS["all"]()
    found = prefixes.get_kv_cache(own, mx.array([4, 5]))[0]
    assert [type(layer) for layer in found] == [type(layer) for layer in own.make_cache()]
    quantized = KVPrefixCache(None, make_cache=lambda model: [QuantizedKVCache() for _ in model.layers])
    assert [type(layer) for layer in quantized.get_kv_cache(plain, mx.array([4]))[0]] == [
        QuantizedKVCache
    ] * 3


@pytest.mark.parametrize("name", ENGINE)
def test_a_chat_reuses_its_last_turn(prefixes: KVPrefixCache, name: str) -> None:
    model, chat, hits = MODELS[name](), prompt(30), []
    for _ in range(4):
        turn = request(prefixes, model, chat)
        model.check(turn.cache, chat[:-2])
        hits.append((turn.hit, turn.exact))
        chat = [*chat, *prompt(ADDED, len(chat))]
    assert hits == [(0, False), (28, False), (54, False), (80, False)]
    assert len(prefixes.prompts) == 1


@pytest.mark.parametrize("name", ENGINE)
def test_a_repeated_prompt_is_exact(prefixes: KVPrefixCache, name: str) -> None:
    model, chat = MODELS[name](), prompt(50)
    first = request(prefixes, model, chat, tps=123.0)
    again = [request(prefixes, model, chat, tps=5.0) for _ in range(3)]
    assert [(turn.hit, turn.index, turn.exact) for turn in again] == [(48, first.saved, True)] * 3
    assert prefixes.prefill_tps[first.saved] == 123.0
    assert len(prefixes.prompts) == 1


@pytest.mark.parametrize("name", ENGINE)
def test_what_is_handed_out_is_the_callers(prefixes: KVPrefixCache, name: str) -> None:
    model, chat = MODELS[name](), prompt(30)
    given = model.filled(chat)
    prefixes.add_kv_cache(mx.array(chat), given)
    model.grow(given, [9, 9])
    for _ in range(2):
        cache, rest, _, _ = prefixes.get_kv_cache(model, mx.array([*chat, 1]))
        assert rest.tolist() == [1]
        model.check(cache, chat)
        model.grow(cache, [4, 4, 4])


STORED = prompt(50)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (STORED, (48, True)),
        (STORED[:49], (48, True)),
        (STORED[:30], (29, True)),
        ([*STORED[:29], 7], (29, True)),
        ([*STORED[:28], 7, 7], (28, False)),
        ([*STORED[:49], 7], (48, True)),
        ([*STORED[:48], 7, 7], (48, False)),
        ([*STORED, 7], (48, True)),
        ([*STORED, 7, 7], (48, False)),
        (STORED[:2], (1, True)),
    ],
    ids=lambda value: f"{len(value)} tokens" if isinstance(value, list) else None,
)
def test_exact_is_all_tokens_but_one(
    prefixes: KVPrefixCache, model: PosKV, query: list[int], found: tuple[int, bool]
) -> None:
    """Of the prompt that was stored, not of its KV, which is two tokens shorter."""
    index = _put(prefixes, model, STORED)
    _put(prefixes, model, prompt(40, 3))
    assert _got(prefixes, model, query) == (found[0], index, found[1])


def test_nothing_shared_is_never_exact(prefixes: KVPrefixCache, model: PosKV) -> None:
    _put(prefixes, model, prompt(50))
    assert _got(prefixes, model, [7, 7]) == (0, None, False)
    assert _got(prefixes, model, [7]) == (0, None, False)
    assert _got(prefixes, model, prompt(1)) == (0, None, False)


def test_a_prompt_whose_tail_is_gone_is_not_exact() -> None:
    model, prefixes, chat = MODELS["kv"](), KVPrefixCache(None), prompt(3000)
    index = _put(prefixes, model, chat)
    assert prefixes.cache.evict(1)
    assert _got(prefixes, model, chat) == (2048, index, False)
    assert prefixes.prompts == []
    _put(prefixes, model, chat)
    assert _got(prefixes, model, chat) == (2998, index, True)


def test_conversations_with_one_system_prompt_do_not_overwrite_each_other(
    prefixes: KVPrefixCache, model: PosKV
) -> None:
    """exo#1816: the second one shares more than half, so the engine updates the first one's index."""
    system = prompt(60)
    one, two = ([*system, *prompt(40, first)] for first in (1, 2))
    first, second = request(prefixes, model, one, tps=1.0), request(prefixes, model, two, tps=2.0)
    assert (second.hit, second.index, second.exact) == (60, first.saved, False)
    assert second.saved != first.saved
    assert prefixes.cache.ntokens == 60 + 2 * 38
    assert [_got(prefixes, model, each) for each in (one, two)] == [
        (98, first.saved, True),
        (98, second.saved, True),
    ]
    assert [prefixes.prefill_tps[each.saved] for each in (first, second)] == [1.0, 2.0]
    assert [each.tolist() for each in prefixes.prompts] == [one, two]


def test_lists_and_rows_of_tokens(prefixes: KVPrefixCache, model: PosKV) -> None:
    tokens = prompt(20)
    prefixes.add_kv_cache(tokens, model.filled(tokens))
    assert prefixes.get_kv_cache(model, [*tokens, 1, 2])[1] == [1, 2]
    assert prefixes.get_kv_cache(model, mx.array([[*tokens, 1, 2]]))[1].tolist() == [[1, 2]]


def test_what_cannot_be_stored_is_refused(prefixes: KVPrefixCache, model: PosKV) -> None:
    tokens = prompt(20)
    assert prefixes.add_kv_cache(mx.array(tokens), model.make_cache()) is None
    assert prefixes.add_kv_cache(mx.array(tokens[:10]), model.filled(tokens)) is None
    state = MODELS["state-only"]()
    assert prefixes.add_kv_cache(mx.array(tokens), state.filled(tokens[:-2])) is None
    hybrid = MODELS["arrays"]()
    rotated = MODELS["rotating"]()
    out_of_step = [rotated.filled(tokens)[0], rotated.filled(tokens[:5])[1]]
    assert KVPrefixCache(None).add_kv_cache(mx.array(tokens), out_of_step) is None
    assert prefixes.add_kv_cache(mx.array(tokens), hybrid.filled(tokens)) == 0
    assert prefixes.add_kv_cache(mx.array(tokens), model.filled(tokens)) is None
    with pytest.raises(TokenError, match="position 1"):
        prefixes.add_kv_cache([1, -1], model.filled([1]))
    with pytest.raises(TypeError, match="prompt_cache"):
        prefixes.add_kv_cache([1, 1], None)
    prefixes.cache.validate()


def test_no_memory_costs_the_reuse_only(prefixes: KVPrefixCache, model: PosKV) -> None:
    tokens = prompt(20)
    given = model.filled(tokens)
    with failing(lambda _: True, allocation_failure):
        assert prefixes.add_kv_cache(mx.array(tokens), given) is None
    index = _put(prefixes, model, tokens)
    with failing(lambda _: True, allocation_failure) as faults:
        cache, rest, found, exact = prefixes.get_kv_cache(model, mx.array(tokens))
    assert faults.raised
    assert (len(rest), found, exact) == (20, None, False)
    assert all(layer.keys is None for layer in cache)
    assert index == 0
    prefixes.cache.validate()
