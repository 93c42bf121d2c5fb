"""Sessions: what is stored however a request ends, and what is never hidden."""

from __future__ import annotations

import contextlib
import copy
import pickle
from array import array
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from loguru import logger

from kvcache import ClosedError, ConfigError, KVPrefixCache
from tests.support.failures import allocation_failure, assert_settled, failing
from tests.support.layers import KV
from tests.support.models import MODELS, SPANS, prompt
from tests.support.poskv import PosKV
from tests.support.request_loop import STEP, Stopped, generate, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def logged(lines: list[str]) -> Iterator[None]:
    """What kvcache logs while the context lasts."""
    logger.enable("kvcache")
    sink = logger.add(lambda message: lines.append(str(message)), level="WARNING")
    try:
        yield
    finally:
        logger.remove(sink)
        logger.disable("kvcache")


kinds = pytest.mark.parametrize("kind", MODELS)


hybrids = pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in SPANS])


spans = pytest.mark.parametrize("kind", SPANS)


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
    if not model.spans:
        # Nobody told the session that the last token was run, and windows and states do not show it for sure.
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


@pytest.mark.pairwise
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
    assert hit.length == 22
    model.check(hit.prompt_cache, [*tokens, 7, 8])


@kinds
def test_a_generator_that_its_reader_closes(kind: str) -> None:
    """A client goes away in the middle of its answer: what was appended stays."""
    model, cache = MODELS[kind](), KVPrefixCache()
    tokens = prompt(20)

    def answer() -> Iterator[int]:
        with cache.session(tokens, model=model) as session:
            for token in generate(
                model, session.prompt_cache, session.remaining, [7, 8, 9], session.on_progress
            ):
                session.append(token)
                yield token

    reader = answer()
    assert [next(reader), next(reader)] == [7, 8]
    reader.close()
    hit = cache.fetch([*tokens, 7, 8, 1])
    assert hit.length == 22
    model.check(hit.prompt_cache, [*tokens, 7, 8])


@hybrids
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, SystemExit])
@pytest.mark.parametrize("caught", [False, True])
def test_an_exception_where_no_update_is_under_way(
    kind: str, error: type[BaseException], caught: bool
) -> None:
    """Nothing has moved since the last token was appended, so all of it is known to be whole."""
    model, cache = MODELS[kind](), KVPrefixCache()
    session = cache.session(prompt(20), model=model)
    with contextlib.suppress(error), session:
        try:
            for token in generate(
                model, session.prompt_cache, session.remaining, [7, 8], session.on_progress
            ):
                session.append(token)
                if token == 8:
                    raise error
        except error:
            if not caught:
                raise
    assert session.stored.length == 22
    model.check(cache.fetch([*prompt(20), 7, 8, 1]).prompt_cache, [*prompt(20), 7, 8])


def test_a_session_is_one_request() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    session = cache.session(prompt(6), model=model)
    with pytest.raises(ConfigError, match="before the session was entered"):
        session.append(7)
    with session:
        model.grow(session.prompt_cache, [*prompt(6), 7, 8])
        session.append(7)
        session.append(8)
        with pytest.raises(ConfigError, match="entered before"), session:
            pytest.fail("the block must not run")
    assert session.stored.length == 8
    cache.clear()
    with pytest.raises(ConfigError, match="make a new one"), session:
        pytest.fail("the block must not run")
    assert len(cache) == 0


@pytest.mark.parametrize("kind", [list, np.array, mx.array, lambda ids: array("i", ids), tuple])
@pytest.mark.parametrize("inside", [False, True])
def test_the_caller_uses_its_buffer_again(kind: Callable[[list[int]], Any], inside: bool) -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    tokens = kind(prompt(8))
    session = cache.session(tokens, model=model)

    def overwrite() -> None:
        if not isinstance(tokens, tuple):
            for at in range(4):
                tokens[at] = 99

    if not inside:
        overwrite()
    with session:
        assert type(session.remaining) is type(tokens)
        if inside:
            overwrite()
        ids = [int(token) for token in session.remaining]
        assert ids == prompt(8)
        model.grow(session.prompt_cache, ids)
    model.check(cache.fetch([*prompt(8), 1]).prompt_cache, prompt(8))
    assert cache.peek([99] * 8).length == 0


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
    if failure is allocation_failure:
        assert (session.stored.reason, session.stored.length) == ("too_large", 0)
    else:
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


@kinds
@pytest.mark.parametrize(
    "failure", [allocation_failure, lambda: KeyError("x"), lambda: RuntimeError("[eval] kernel")]
)
def test_an_answer_is_not_lost_because_it_could_not_be_stored(
    kind: str, failure: Callable[[], Exception]
) -> None:
    """The block ends in peace; what happened is in `stored` and in the log."""
    model, cache, lines = MODELS[kind](), KVPrefixCache(), []
    with logged(lines), failing(lambda at: armed, failure):
        armed = False
        with cache.session(prompt(20), model=model) as session:
            for token in generate(
                model, session.prompt_cache, session.remaining, [7, 8], session.on_progress
            ):
                session.append(token)
            armed = True
    assert session.stored is None or (session.stored.reason, session.stored.length) == ("too_large", 0)
    assert (session.stored is None) == (failure is not allocation_failure)
    assert any("could not store 22 tokens" in line for line in lines)
    assert_settled(cache)


@kinds
@pytest.mark.parametrize("at", ["prefill", "end"])
def test_a_cache_that_is_closed_under_a_request(kind: str, at: str) -> None:
    """A server that shuts down lets its last requests answer."""
    model, cache, lines = MODELS[kind](), KVPrefixCache(), []
    with logged(lines), cache.session(prompt(20), model=model) as session:
        if at == "prefill":
            cache.close()
        for token in generate(model, session.prompt_cache, session.remaining, [7, 8], session.on_progress):
            session.append(token)
        cache.close()
    assert session.stored is None
    assert any("its cache was closed" in line for line in lines)
    with pytest.raises(ClosedError):
        cache.fetch(prompt(20))


def test_a_clock_that_raises_at_the_end() -> None:
    def clock() -> float:
        if armed:
            raise OSError("no time")
        return 0.0

    armed = False
    model, cache = PosKV(KV()), KVPrefixCache(clock=clock)
    with cache.session(prompt(20), model=model) as session:
        model.grow(session.prompt_cache, prompt(20))
        armed = True
    armed = False
    assert session.stored is None


def test_a_session_shows_how_far_it_is() -> None:
    cache, model = KVPrefixCache(), PosKV(KV())
    cache.store(prompt(50_000), model.filled(prompt(50_000)))
    session = cache.session(prompt(60_000), model=model)
    assert repr(session) == "Session(60000 tokens, not fetched, 0 appended)"
    with session:
        model.grow(session.prompt_cache, prompt(60_000))
        session.append(7)
        assert repr(session) == "Session(60000 tokens, 50000 reused, 1 appended)"


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_is_not_copied(how: Callable[[Any], Any]) -> None:
    session = KVPrefixCache().session(prompt(4), model=PosKV(KV()))
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        how(session)


@pytest.mark.parametrize(
    "kind", [lambda ids: memoryview(array("i", ids)), lambda ids: memoryview(np.array([ids], np.int64))]
)
def test_what_a_fetch_takes_a_session_takes(kind: Callable[[list[int]], Any]) -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    with cache.session(kind(prompt(8)), model=model) as session:
        assert session.remaining == prompt(8)
        model.grow(session.prompt_cache, session.remaining)
    assert session.stored.length == 8


def test_a_closed_cache_begins_nothing() -> None:
    model, cache = PosKV(KV()), KVPrefixCache()
    cache.close()
    with pytest.raises(ClosedError), cache.session(prompt(20), model=model):
        pytest.fail("the block must not run")
