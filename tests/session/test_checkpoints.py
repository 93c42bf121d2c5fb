"""Where a session leaves checkpoints, and what they cost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kvcache import ConfigError, KVPrefixCache
from tests.support.failures import allocation_failure, assert_settled, failing
from tests.support.layers import KV, Arrays, Rotating
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV
from tests.support.request_loop import STEP, generate, request

hybrids = pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in SPANS])


spans = pytest.mark.parametrize("kind", SPANS)


@hybrids
@pytest.mark.parametrize("as_array", [False, True])
def test_a_session_makes_the_checkpoint_that_later_ones_need(kind: str, as_array: bool) -> None:
    """REPORTS 65: the second prompt leaves a checkpoint where the two part; the third one hits it."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=16)
    common = prompt(43)

    def asked(first: int) -> Any:
        tokens = common + prompt(20, first=first)
        return mx.array([tokens]) if as_array else tokens

    cache.store(asked(1), model.filled(common + prompt(20, first=1)), length=len(common) + 20)
    widths = []

    def run(tokens: mx.array, cache: list[Any]) -> None:
        widths.append(tokens.shape[1])
        model(tokens, cache)

    run.make_cache = model.make_cache
    with cache.session(asked(2), model=run, prefill_step_size=STEP) as session:
        assert session.hit.checkpoint_at == 43
        assert widths == [8, 8, 8, 8, 8, 3]
        model.check(session.prompt_cache, common)
        assert type(session.remaining) is (mx.array if as_array else list)
        assert np.array(session.remaining).reshape(-1).tolist() == prompt(20, first=2)
        model.grow(session.prompt_cache, prompt(20, first=2))
        session.on_progress(19, 20)
    hit = cache.fetch(asked(3))
    assert (hit.length, hit.checkpoint_at) == (43, None)
    model.check(hit.prompt_cache, common)
    assert_settled(cache)


@hybrids
def test_an_exact_repeat_leaves_a_checkpoint_before_its_last_token(kind: str) -> None:
    """REPORTS 59: the same prompt again and again; from the third time on all but one token."""
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(30)
    lengths = [request(cache, model, tokens, [5]).hit.length for _ in range(5)]
    # The chunks of the first run end at 24 and then at 29, which is all but the last token.
    assert lengths == [0, 29, 29, 29, 29]
    model.check(cache.fetch(tokens).prompt_cache, tokens[:29])


def test_without_a_model_the_engine_prefills_itself() -> None:
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
    common = prompt(20)
    cache.store(common, model.filled(common))
    cache.store(common + prompt(9, first=1), model.filled(common + prompt(9, first=1)))
    tokens = common + prompt(5, first=1) + prompt(3, first=2)
    with cache.session(tokens) as session:
        assert (session.hit.length, session.hit.checkpoint_at) == (20, 25)
        assert session.remaining == tokens[20:]
        model.grow(session.prompt_cache, tokens[20:25])
        session.on_progress(5, 8)
        model.grow(session.prompt_cache, tokens[25:])
    assert cache.peek([*tokens[:25], 99]).length == 25


@hybrids
def test_progress_stores_each_chunk_but_not_the_last_call(kind: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(30)
    with cache.session(tokens, model=model) as session:
        seen = []

        def progress(done: int, total: int) -> None:
            session.on_progress(done, total)
            seen.append((done, cache.peek([*tokens, 1]).length))

        for _ in generate(model, session.prompt_cache, session.remaining, [7], progress):
            break
    assert seen == [(0, 0), (8, 8), (16, 16), (24, 24), (29, 29), (30, 29)]
    assert cache.peek([*tokens, 1]).length == 29
    assert_settled(cache)


@spans
def test_progress_of_a_model_that_can_be_cut_stores_nothing(kind: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache()
    with cache.session(prompt(30), model=model) as session:
        model.grow(session.prompt_cache, prompt(16))
        session.on_progress(16, 30)
        assert cache.nbytes == 0
    assert session.stored.length == 16


def test_progress_counts_from_what_was_reused() -> None:
    """``total`` is what was left to run, ``done`` the part of it that was."""
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
    request(cache, model, prompt(20), [])
    held = cache.peek([*prompt(20), 1]).length
    tokens = prompt(60)
    with cache.session(tokens, model=model) as session:
        start = session.hit.length
        assert start == held > 0
        model.grow(session.prompt_cache, tokens[start : start + 10])
        session.on_progress(10, len(session.remaining))
        assert cache.peek(tokens).length == start + 10
    model.check(cache.fetch(tokens).prompt_cache, tokens[: start + 10])


def test_a_checkpoint_that_finds_no_memory_stops_nothing() -> None:
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
    tokens = prompt(30)
    with cache.session(tokens, model=model) as session:
        model.grow(session.prompt_cache, tokens[:16])
        with failing(lambda at: True, allocation_failure):
            session.on_progress(16, 30)
        assert cache.nbytes == 0
        model.grow(session.prompt_cache, tokens[16:29])
        session.on_progress(29, 30)
    assert session.stored.length == 29


def test_one_prefill_under_a_full_budget_starts_a_handful_of_cycles() -> None:
    """A session reserves once for its whole prompt, its checkpoints included."""
    model = PosKV(KV(), Arrays())
    tokens, chunks = prompt(513, first=9), 64
    full = 2 * model.nbytes(512) + 100 * 32
    cache = KVPrefixCache(max_bytes=full, segment_tokens=32)
    for first in range(64):
        cache.store(prompt(16, first=first + 20), model.filled(prompt(16, first=first + 20)))
    assert cache.nbytes > full // 2
    before = cache.stats().reclaim_cycles
    with cache.session(tokens, model=model, prefill_step_size=8) as session:
        for at in range(chunks):
            model.grow(session.prompt_cache, tokens[at * 8 : at * 8 + 8])
            session.on_progress(at * 8 + 8, 513)
        model.grow(session.prompt_cache, [tokens[512], 7])
        session.append(7)
    assert session.stored.length == 514
    assert cache.stats().reclaim_cycles - before <= 4


def test_a_session_s_reservation_protects_its_own_hit() -> None:
    model = PosKV(KV())
    cache = KVPrefixCache(max_bytes=model.nbytes(100))
    cache.store(prompt(50), model.filled(prompt(50)))
    cache.store(prompt(50, first=1), model.filled(prompt(50, first=1)))
    with cache.session(prompt(90), model=model) as session:
        assert session.hit.length == 50
        assert cache.peek([*prompt(50), 1]).length == 50
        assert cache.nbytes <= model.nbytes(60)
        model.grow(session.prompt_cache, prompt(90)[50:])
    assert session.stored.evicted.cycles == 0


def test_checkpoints_are_spread_out() -> None:
    """REPORTS 38: of 64 chunks some eight checkpoints are kept, the newest among them."""
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache(max_checkpoints=8)
    tokens = prompt(520)
    request(cache, model, tokens, [])
    assert cache.stats().checkpoints == 8
    usable = sorted({cache.peek([*tokens[:end], 9]).length for end in range(1, 521)})
    assert usable[-1] == 519
    assert max(after - before for before, after in pairwise(usable)) <= 2 * 520 / 8


def test_a_longer_conversation_beside_it_does_not_hide_a_window() -> None:
    """Trimmed, the short one serves up to where the two part; the long one has rotated."""
    model, cache = PosKV(KV(), Rotating(6)), KVPrefixCache()
    cache.store([1, 2, 3, 4], model.filled([1, 2, 3, 4]))
    assert cache.peek([1, 2, 5, 0, 0]).length == 2
    longer = [1, 2, 5, 6, 7, 8, 9, 10]
    cache.store(longer, model.filled(longer))
    hit = cache.fetch([1, 2, 5, 0, 0])
    assert hit.length == 2
    model.check(hit.prompt_cache, [1, 2])


@pytest.mark.parametrize("most", [2, 3, 8])
@pytest.mark.parametrize("kind", ["arrays", "rotating-keep", "state-only"])
def test_the_checkpoint_at_the_prompt_s_end_outlives_those_of_the_answer(kind: str, most: int) -> None:
    """An engine that stores in the middle of its answers says where the prompt ended."""
    model, cache = MODELS[kind](), KVPrefixCache(max_checkpoints=most, gc="auto")
    key, layers = prompt(100), model.make_cache()
    for start in range(0, 100, 10):
        model.append(layers, key[start : start + 10])
        cache.store(key[: start + 10], layers, length=start + 10, prompt_length=100)
    for turn in range(8):
        answer = prompt(7, first=turn + 1)
        model.append(layers, answer)
        key = [*key, *answer]
        cache.store(key, layers, length=len(key), prompt_length=100)
    assert cache.peek([*prompt(100), 9]).length == 100
    assert cache.peek([*key, 9]).length == len(key)
    assert cache.stats().checkpoints <= most
    cache.validate()


@pytest.mark.parametrize("wrong", [-1, 2.5, "3", True])
def test_a_prompt_length_that_is_none_is_refused(wrong: object) -> None:
    model, cache = MODELS["arrays"](), KVPrefixCache()
    with pytest.raises((TypeError, ConfigError), match="prompt_length must be"):
        cache.store(prompt(5), model.filled(prompt(5)), prompt_length=wrong)  # type: ignore[arg-type]
    assert cache.nbytes == 0
    cache.validate()
