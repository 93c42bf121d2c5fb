"""Failures at every array operation, and from every callback: all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from kvcache import AllocationError, Eviction, KVPrefixCache, arrays
from tests.support import inside
from tests.support.failures import allocation_failure, assert_settled, contents, failing
from tests.support.memory import active, charge, charged
from tests.support.models import MODELS, prompt

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache import Hit, Stored
    from tests.support.poskv import PosKV


OLD = prompt(40), prompt(20) + prompt(30, first=1), prompt(25, first=2)


kinds = pytest.mark.parametrize("kind", ["kv", "rotating-keep", "all"])


@dataclass
class Case:
    """One call on a cache that holds three prompts.

    Attributes:
        tokens: The prompt that is stored or asked for.
        run: The call, given the cache, the model and the caller's layer caches.
        gives_up: It lets go of arrays as it goes: a failure loses that one entry.
    """

    tokens: list[int]
    run: Callable[[KVPrefixCache, Case, list[Any]], Any]
    gives_up: bool = False
    stores: bool = True


def _store(cache: KVPrefixCache, case: Case, prompt_cache: list[Any]) -> Stored:
    return cache.store(case.tokens, prompt_cache, donate=case.gives_up)


def _fetch(cache: KVPrefixCache, case: Case, prompt_cache: list[Any]) -> Hit:
    return cache.fetch([*case.tokens, 1], take=case.gives_up)


CASES = {
    "store": Case(prompt(40) + prompt(9, first=7), _store),
    "store elsewhere": Case(prompt(33, first=8), _store),
    "split": Case(prompt(13) + prompt(9, first=7), _store),
    "donate": Case(prompt(40) + prompt(9, first=7), _store, gives_up=True),
    "donate and split": Case(prompt(13) + prompt(9, first=7), _store, gives_up=True),
    "fetch": Case(prompt(40), _fetch, stores=False),
    "fetch half": Case(prompt(20) + prompt(5, first=1), _fetch, stores=False),
    "take": Case(OLD[1], _fetch, gives_up=True, stores=False),
    "take alone": Case(OLD[2], _fetch, gives_up=True, stores=False),
}


cases = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def no_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after a store, and its failures are no failures of the store: see test_compacting."""
    monkeypatch.setattr("kvcache.operations.store.compact", lambda *_: Eviction())


def _cache(model: PosKV, **options: Any) -> KVPrefixCache:
    cache = KVPrefixCache(segment_tokens=16, **options)
    for tokens in OLD:
        assert cache.store(tokens, model.filled(tokens)).reason == "stored"
    return cache


def _lengths(cache: KVPrefixCache) -> list[int]:
    return [cache.peek([*tokens, 1]).length for tokens in OLD]


def _whole(model: PosKV, case: Case, cache: KVPrefixCache, result: Any) -> None:
    """The call did what it is for."""
    if case.stores:
        assert result.reason == "stored"
        hit = cache.fetch([*case.tokens, 1])
        model.check(hit.prompt_cache, case.tokens)
    elif result:
        model.check(result.prompt_cache, case.tokens[: result.length])
    assert_settled(cache)


def _for_each_operation(attempt: Callable[[int], bool]) -> None:
    """Fails the first operation, then the second, ..., until an attempt ran to its end."""
    for k in count(1):
        base = active()
        done = attempt(k)
        assert active() == base, f"attempt {k} left arrays behind"
        if done:
            return


def _exception_at(k: int, case: Case, model: PosKV, error: type[BaseException]) -> bool:
    base = active()
    cache = _cache(model)
    before, lengths = contents(cache), _lengths(cache)
    prompt_cache = model.filled(case.tokens)
    try:
        with failing(lambda at: at == k, error) as faults:
            result = case.run(cache, case, prompt_cache)
    except error:
        assert faults.raised == 1
    else:
        assert faults.raised == 0
        assert k > 1 or not result
        _whole(model, case, cache, result)
        return True
    assert_settled(cache)
    after = contents(cache)
    if case.stores or not case.gives_up:
        assert after == before
        assert _lengths(cache) == lengths
    else:
        # The others' shared part stays; of the taken one nothing is half there.
        assert after.items() < before.items()
        model.check(cache.fetch([*OLD[0], 1]).prompt_cache, OLD[0])
        which = OLD.index(case.tokens)
        assert _lengths(cache)[which] < lengths[which]
    if not case.gives_up:
        model.check(prompt_cache, case.tokens)
    assert cache.stats().evictions == 0
    del prompt_cache
    assert active() - base == charged(cache)
    return False


@pytest.mark.pairwise
@kinds
@cases
@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
def test_any_exception_leaves_everything_as_it_was(name: str, kind: str, error: type[BaseException]) -> None:
    case, model = CASES[name], MODELS[kind]()
    _for_each_operation(lambda k: _exception_at(k, case, model, error))


def _one_failure_at(k: int, case: Case, model: PosKV) -> bool:
    base = active()
    cache = _cache(model)
    before = contents(cache)
    prompt_cache = model.filled(case.tokens)
    with failing(lambda at: at == k, allocation_failure) as faults:
        try:
            result = case.run(cache, case, prompt_cache)
        except AllocationError:
            assert case.gives_up
            assert_settled(cache)
            assert contents(cache).items() <= before.items()
            result = None
    if result is not None:
        _whole(model, case, cache, result)
        assert bool(cache.stats().evictions) == bool(faults.raised)
        assert not case.stores or bool(result.evicted) == bool(faults.raised)
    del prompt_cache, result
    assert active() - base == charged(cache)
    return not faults.raised


@kinds
@cases
def test_one_failed_allocation_is_tried_again(name: str, kind: str) -> None:
    """Evict, reclaim, once more. What gives arrays up as it goes cannot be run a second time."""
    case, model = CASES[name], MODELS[kind]()
    _for_each_operation(lambda k: _one_failure_at(k, case, model))


def _failures_from(k: int, case: Case, model: PosKV, pinned: bool) -> bool:
    base = active()
    cache = _cache(model)
    before, lengths, held = contents(cache), _lengths(cache), cache.nbytes
    pins = [cache.pin(tokens) for tokens in OLD] if pinned else []
    prompt_cache = model.filled(case.tokens)
    try:
        with failing(lambda at: at >= k, MemoryError) as faults:
            case.run(cache, case, prompt_cache)
    except AllocationError as error:
        evicted, text = error.evicted, str(error)
    else:
        assert not faults.raised
        return True
    assert "could not be allocated" in text
    assert_settled(cache, pinned)
    after = contents(cache)
    assert after.items() <= before.items()
    if pinned:
        assert after == before
        assert _lengths(cache) == lengths
        assert not evicted
    elif case.stores or not case.gives_up:
        assert held - cache.nbytes == evicted.nbytes > 0
        assert cache.stats().evicted_bytes == evicted.nbytes
    if not case.gives_up:
        model.check(prompt_cache, case.tokens)
    del prompt_cache
    assert active() - base == charged(cache)
    assert cache.store(case.tokens, model.filled(case.tokens)).reason in ("stored", "already")
    del pins
    return False


@pytest.mark.pairwise
@kinds
@cases
@pytest.mark.parametrize("pinned", [False, True])
def test_memory_that_stays_out_is_reported(name: str, kind: str, pinned: bool) -> None:
    case, model = CASES[name], MODELS[kind]()
    _for_each_operation(lambda k: _failures_from(k, case, model, pinned))


def test_the_error_counts_what_was_evicted_for_the_plan_too() -> None:
    model = MODELS["kv"]()
    cache = _cache(model, max_bytes=model.nbytes(100))
    tokens, held = prompt(50, first=9), cache.nbytes
    prompt_cache = model.filled(tokens)
    with failing(lambda at: at >= 1, allocation_failure), pytest.raises(AllocationError) as caught:
        cache.store(tokens, prompt_cache)
    assert held - cache.nbytes == caught.value.evicted.nbytes == cache.stats().evicted_bytes
    assert isinstance(caught.value, MemoryError)
    assert_settled(cache)


@pytest.mark.parametrize("kind", MODELS)
def test_the_first_attempt_s_arrays_are_gone_before_the_second(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be finished may not stand in the way of what is tried next."""
    model, base = MODELS[kind](), active()
    cache = KVPrefixCache(segment_tokens=16)
    tokens = prompt(60)
    prompt_cache = model.filled(tokens)
    own, detach, evaluate = active() - base, arrays.detach, mx.eval
    left: list[int] = []
    # Whoever keeps the error, a debugger for one, keeps its frames.
    failure = allocation_failure()

    def evaluating(*made: Any) -> None:
        evaluate(*made)
        if not left:
            left.append(-1)
            raise failure

    def detaching(array: mx.array) -> mx.array:
        if left == [-1]:
            left[0] = active() - base - own
        return detach(array)

    monkeypatch.setattr(mx, "eval", evaluating)
    monkeypatch.setattr(arrays, "detach", detaching)
    assert cache.store(tokens, prompt_cache, length=len(tokens)).reason == "stored"
    # A window with kept rows was put in order before it was copied, and is still in order.
    assert left == [2 * charge(model.layers[0].nbytes(8) // 2) if kind == "rotating-keep" else 0]


def test_an_error_that_only_looks_like_one_propagates() -> None:
    model = MODELS["kv"]()
    cache = _cache(model)
    before = contents(cache)
    for error in (RuntimeError("[matmul] shapes"), TypeError("alloc"), KeyError("out of memory")):
        with failing(lambda at: at == 1, lambda error=error: error), pytest.raises(type(error)):
            cache.fetch([*OLD[0], 1])
    assert contents(cache) == before
    assert cache.stats().evictions == 0


class Broken:
    """A pressure source that works a few times."""

    def __init__(self, good: int) -> None:
        self.good = good

    def excess_bytes(self) -> int:
        self.good -= 1
        if self.good < 0:
            raise OSError("no figures to be had")
        return 1


@pytest.mark.parametrize("good", [0, 1])
@pytest.mark.parametrize("name", ["store", "split", "donate", "fetch", "take"])
def test_a_pressure_source_that_raises(name: str, good: int) -> None:
    case, model = CASES[name], MODELS["all"]()
    cache = _cache(model)
    prompt_cache = model.filled(case.tokens)
    inside.limit(cache, None, Broken(good))
    with pytest.raises(OSError, match="no figures"):
        case.run(cache, case, prompt_cache)
    with pytest.raises(OSError, match="no figures"):
        cache.reserve(10, protect=cache.peek([*OLD[0], 1]))
    inside.limit(cache, None)
    assert_settled(cache)
    if case.stores:
        model.check(prompt_cache, case.tokens)
        assert cache.store(case.tokens, prompt_cache).reason == "stored"
