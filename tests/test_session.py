"""Sessions: what is stored however a request ends, and what is never hidden."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest

from kvcache import AllocationError, ClosedError, ConfigError, KVPrefixCache, MediaSpan, TokenError
from kvcache.layers.prompt import Prompt
from tests.support.faults import allocation_failure, assert_settled, failing
from tests.support.layers import KV, WIDTH, Arrays, List, Quantized
from tests.support.memory import active
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

STEP = 8
kinds = pytest.mark.parametrize("kind", MODELS)
hybrids = pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in SPANS])
spans = pytest.mark.parametrize("kind", SPANS)


def generate(
    model: PosKV,
    prompt_cache: list[Any],
    tokens: Sequence[int],
    sampled: Sequence[int],
    progress: Callable[[int, int], None],
) -> Iterator[int]:
    """What stream_generate does: all but the last prompt token in chunks, then one at a time.

    A token is run before it is handed out, and the last call of ``progress`` comes when the cache
    has run the first sampled token already.
    """
    total, done = len(tokens), 0
    progress(0, total)
    while done < total - 1:
        chunk = tokens[done : min(done + STEP, total - 1)]
        model.grow(prompt_cache, chunk)
        done += len(chunk)
        progress(done, total)
    model.grow(prompt_cache, tokens[done:])
    for number, token in enumerate(sampled):
        model.grow(prompt_cache, [token])
        if number == 0:
            progress(total, total)
        yield token


def request(
    cache: KVPrefixCache, model: PosKV, tokens: list[int], sampled: Sequence[int], **options: Any
) -> Any:
    """One request from end to end."""
    with cache.session(tokens, model=model, prefill_step_size=STEP, **options) as session:
        assert session.stored is None
        for token in generate(model, session.prompt_cache, session.remaining, sampled, session.on_progress):
            session.append(token)
    return session


class Stopped(Exception):
    """The caller has had enough."""


@kinds
def test_a_conversation_grows_by_its_turns(kind: str) -> None:
    """REPORTS 62: each turn reuses everything before it."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=16)
    history: list[int] = []
    for turn in range(4):
        tokens = [*history, *prompt(20, first=turn + 1)]
        answer = [10 * turn + at for at in range(5)]
        session = request(cache, model, tokens, answer)
        assert session.hit.length == len(history)
        assert session.hit.reason == ("hit" if turn else "no_entry")
        history = tokens + answer
        assert (session.stored.reason, session.stored.length) == ("stored", len(history))
        model.check(cache.fetch([*history, 1]).prompt_cache, history)
        assert_settled(cache)


@kinds
def test_nothing_sampled_stores_the_prompt(kind: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache()
    session = request(cache, model, prompt(20), [])
    hit = cache.fetch([*prompt(20), 1])
    if any(offset is None for offset in Prompt(model.filled([1])).offsets):
        # Nobody told the session that the last token was run, and state layers do not show it.
        assert session.stored is None
        assert hit.length == 19
    else:
        assert session.stored.length == hit.length == 20
    model.check(hit.prompt_cache, prompt(20)[: hit.length])


@kinds
def test_a_generation_broken_off_before_its_token_was_appended(kind: str) -> None:
    """The cache is one token ahead of the key; of a pure state no offset shows it."""
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(20)
    with cache.session(tokens, model=model) as session:
        for token in generate(model, session.prompt_cache, session.remaining, [7, 8, 9], session.on_progress):
            if token == 9:
                break
            session.append(token)
    known = [*tokens, 7, 8]
    if model.spans:
        assert session.stored.length == len(known)
    else:
        assert session.stored is None
    hit = cache.fetch([*known, 9, 1])
    model.check(hit.prompt_cache or model.make_cache(), [*known, 9][: hit.length])
    assert hit.length == (len(known) if model.spans else 19)
    assert_settled(cache)


@kinds
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_a_prefill_broken_off_by_a_break(kind: str, chunks: int) -> None:
    """REPORTS 66: the retry goes on where the first try stopped."""
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(30)
    with cache.session(tokens, model=model) as session:
        for at in range(chunks):
            model.grow(session.prompt_cache, tokens[at * STEP : (at + 1) * STEP])
            session.on_progress((at + 1) * STEP, len(tokens))
    if chunks == 0:
        assert session.stored is None
    else:
        assert session.stored.length == chunks * STEP
    retry = cache.fetch(tokens)
    assert retry.length == chunks * STEP
    model.check(retry.prompt_cache or model.make_cache(), tokens[: chunks * STEP])


@kinds
@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("reached", [1, 99])
def test_an_exception_inside_a_forward_pass(
    kind: str, error: type[BaseException], chunk: int, reached: int
) -> None:
    """Some layers ran the chunk and some did not. What the last whole chunk left is good."""
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(40)
    session = cache.session(tokens, model=model)
    with pytest.raises(error), session:
        for at in range(5):
            new = tokens[at * STEP : (at + 1) * STEP]
            if at == chunk:
                for layer, part in list(zip(model.layers, session.prompt_cache, strict=True))[:reached]:
                    layer.grow(part, new, at * STEP)
                raise error
            model.grow(session.prompt_cache, new)
            session.on_progress((at + 1) * STEP, len(tokens))
    whole = chunk * STEP
    if model.spans:
        assert session.stored.length == whole
    else:
        assert session.stored is None
    hit = cache.fetch(tokens)
    assert hit.length == whole
    model.check(hit.prompt_cache, tokens[:whole])
    assert_settled(cache)


@kinds
def test_an_exception_between_forward_passes(kind: str) -> None:
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(20)
    session = cache.session(tokens, model=model)
    with pytest.raises(Stopped), session:
        for token in generate(model, session.prompt_cache, session.remaining, [7, 8, 9], session.on_progress):
            session.append(token)
            if token == 8:
                raise Stopped
    hit = cache.fetch([*tokens, 7, 8, 1])
    assert hit.length == (22 if model.spans else 19)
    model.check(hit.prompt_cache, [*tokens, 7, 8][: hit.length])


# Checkpoints -------------------------------------------------------------------------------------


@hybrids
@pytest.mark.parametrize("as_array", [False, True])
def test_a_session_makes_the_checkpoint_that_later_ones_need(kind: str, as_array: bool) -> None:
    """REPORTS 65: the second prompt leaves a checkpoint where the two part; the third one hits it."""
    model, cache = MODELS[kind](), KVPrefixCache(segment_tokens=16)
    common = prompt(43)

    def asked(first: int) -> Any:
        tokens = common + prompt(20, first=first)
        return mx.array([tokens]) if as_array else tokens

    cache.store(asked(1), model.filled(common + prompt(20, first=1)))
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


# What a session is given -------------------------------------------------------------------------


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
    assert active() - base == cache.nbytes


# What a session never hides ----------------------------------------------------------------------


@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize(
    "failure", [allocation_failure, lambda: RuntimeError("[eval] kernel"), lambda: KeyError("x")]
)
def test_the_caller_s_own_exception_comes_through(
    error: type[BaseException], failure: Callable[[], Exception]
) -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    session = cache.session(prompt(20), model=model)
    with pytest.raises(error, match="mine"), failing(lambda at: armed, failure), session:
        armed = False
        model.grow(session.prompt_cache, prompt(16))
        session.on_progress(16, 20)
        armed = True
        raise error("mine")
    assert session.stored is None
    assert_settled(cache)
    assert cache.nbytes == 0


def test_a_cache_closed_during_a_request_that_fails() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    with pytest.raises(Stopped), cache.session(prompt(20), model=model) as session:
        model.grow(session.prompt_cache, prompt(16))
        session.on_progress(16, 20)
        cache.close()
        raise Stopped


def test_a_failure_to_store_is_no_secret() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    with pytest.raises(AllocationError), failing(lambda at: armed, allocation_failure):
        armed = False
        with cache.session(prompt(20), model=model) as session:
            model.grow(session.prompt_cache, prompt(20))
            armed = True
    with pytest.raises(ClosedError), cache.session(prompt(20), model=model) as session:
        model.grow(session.prompt_cache, prompt(20))
        cache.close()
    with pytest.raises(ClosedError), cache.session(prompt(20), model=model):
        pytest.fail("the block must not run")


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


def test_checkpoints_are_spread_out() -> None:
    """REPORTS 38: of 64 chunks some eight checkpoints are kept, the newest among them."""
    model, cache = PosKV(KV(), Arrays()), KVPrefixCache(max_checkpoints=8)
    tokens = prompt(520)
    request(cache, model, tokens, [])
    assert cache.stats().checkpoints == 8
    usable = sorted({cache.peek([*tokens[:end], 9]).length for end in range(1, 521)})
    assert usable[-1] == 519
    assert max(after - before for before, after in pairwise(usable)) <= 2 * 520 / 8


def test_a_model_of_another_depth_is_told_to_use_a_namespace_of_its_own() -> None:
    cache = KVPrefixCache()
    request(cache, PosKV(KV()), prompt(20), [])
    with pytest.raises(ConfigError, match="holds caches of 1 layers, this model makes 2"):
        cache.session(prompt(30), model=PosKV(KV(), KV())).__enter__()
    assert len(cache) == 1
    assert_settled(cache)
