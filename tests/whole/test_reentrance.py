"""Finalizers, closed generators and signal handlers that call the cache in the middle of another call."""

from __future__ import annotations

import copy
import gc
import pickle
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from kvcache import BusyError, ClosedError, KVPrefixCache
from tests.support import inside
from tests.support.layers import KV, Arrays
from tests.support.models import prompt
from tests.support.patience import PATIENCE
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable

# Only a hang takes so long.
HANG = PATIENCE

MODEL = PosKV(KV())
OLD, NEW = prompt(20), prompt(30, first=1)


class Model:
    """Makes fresh layers, and is never run here."""

    @staticmethod
    def make_cache() -> list[Any]:
        return MODEL.make_cache()


def _in_session(cache: KVPrefixCache) -> None:
    with cache.session(NEW, model=Model()) as session:
        session.prompt_cache[:] = MODEL.filled(NEW)


OUTER: dict[str, Callable[[KVPrefixCache], object]] = {
    "fetch": lambda cache: cache.fetch([*OLD, 1]),
    "fetch, a miss": lambda cache: cache.fetch(NEW),
    "take": lambda cache: cache.fetch([*OLD, 1], take=True),
    "store": lambda cache: cache.store(NEW, MODEL.filled(NEW)),
    "store that splits": lambda cache: cache.store([*OLD[:5], 9], MODEL.filled([*OLD[:5], 9])),
    "store of what is held": lambda cache: cache.store(OLD, MODEL.filled(OLD)),
    "donate": lambda cache: cache.store(NEW, MODEL.filled(NEW), donate=True),
    "session": _in_session,
    "pin": lambda cache: cache.pin(OLD).release(),
    "reserve": lambda cache: cache.reserve(10, protect=cache.peek([*OLD, 1])),
    "evict": lambda cache: cache.evict(1),
    "evict_idle": lambda cache: cache.evict_idle(0),
    "trim_to": lambda cache: cache.trim_to(tokens=3),
    "drop": lambda cache: cache.drop(""),
    "clear": lambda cache: cache.clear(),
    "close": lambda cache: cache.close(),
    "validate": lambda cache: cache.validate(),
}
READS: dict[str, Callable[[KVPrefixCache], object]] = {
    "stats": lambda cache: cache.stats(),
    "stats of a namespace": lambda cache: cache.stats(""),
    "nbytes": lambda cache: cache.nbytes,
    "ntokens": lambda cache: cache.ntokens,
    "len": len,
    "repr": repr,
    "peek": lambda cache: cache.peek([*OLD, 1]),
}


def guarded(action: Callable[[], None]) -> None:
    """Runs it on a thread of its own, so that a hang fails one test."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - raised below, on the test's thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANG)
    assert not thread.is_alive(), "a hang"
    if failures:
        raise failures[0]


def inside_every_section(cache: KVPrefixCache, nested: Callable[[], None], sections: list[int]) -> None:
    """Has ``nested`` run right after the cache's lock was taken, every time, but not within itself."""
    contents = inside.contents(cache)
    opened = contents.opened

    def interrupted() -> Any:
        contents.opened = opened
        sections.append(1)
        try:
            nested()
        finally:
            contents.opened = interrupted
        return opened()

    contents.opened = interrupted


@pytest.mark.parametrize("inner", [*READS, *OUTER])
@pytest.mark.parametrize("outer", OUTER)
def test_a_call_in_the_middle_of_another_returns_or_is_refused_at_once(outer: str, inner: str) -> None:
    def scene() -> None:
        cache = KVPrefixCache()
        cache.store(OLD, MODEL.filled(OLD))
        refused, sections = [], []

        def nested() -> None:
            try:
                (READS | OUTER)[inner](cache)
            except BusyError:
                refused.append(inner)

        inside_every_section(cache, nested, sections)
        with suppress(ClosedError):
            OUTER[outer](cache)
        del inside.contents(cache).opened
        assert sections
        if inner in READS or inner == "close":
            assert not refused
        if inner == "close" or outer == "close":
            with pytest.raises(ClosedError):
                cache.validate()
            return
        cache.validate()
        cache.store(NEW, MODEL.filled(NEW))
        MODEL.check(cache.fetch([*NEW, 1]).prompt_cache, NEW)

    guarded(scene)


def test_the_end_of_a_session_waits_for_the_call_that_it_interrupted() -> None:
    """A generator with a session in it, closed by the collector in the middle of a fetch."""

    def scene() -> None:
        cache = KVPrefixCache()
        cache.store(OLD, MODEL.filled(OLD))

        def answer() -> Any:
            with cache.session(NEW, model=Model()) as session:
                session.prompt_cache[:] = MODEL.filled(NEW[:-1])
                session.on_progress(len(NEW) - 1, len(NEW))
                yield session

        streams = [answer()]
        next(streams[0])
        inside_every_section(cache, streams.clear, [])
        cache.fetch([*OLD, 1])
        del inside.contents(cache).opened
        assert cache.peek(NEW).length == len(NEW) - 1
        cache.validate()

    guarded(scene)


def test_a_pin_released_or_collected_in_mid_call_is_let_go_of() -> None:
    def scene() -> None:
        for end in ("release", "collect"):
            cache = KVPrefixCache()
            cache.store(OLD, MODEL.filled(OLD))
            pins = [cache.pin(OLD)]

            def let_go(pins: list[Any] = pins, end: str = end) -> None:
                while pins:
                    pin = pins.pop()
                    if end == "release":
                        pin.release()
                    del pin

            inside_every_section(cache, let_go, [])
            cache.fetch([*OLD, 1])
            del inside.contents(cache).opened
            assert cache.evict(10**9).tokens == len(OLD)
            cache.validate()

    guarded(scene)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
@pytest.mark.parametrize("call", ["stats", "peek", "evict", "store", "pin", "clear", "fetch"])
def test_signal_handlers_may_call_the_cache(call: str) -> None:
    """Handlers run on the main thread between two bytecodes of whatever it is doing."""
    cache, ran = KVPrefixCache(), []
    cache.store(OLD, MODEL.filled(OLD))

    def handler(*_: object) -> None:
        ran.append(1)
        with suppress(BusyError):
            (READS | OUTER)[call](cache)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        while len(ran) < 40:
            cache.peek([1, 2, 3])
            cache.store(NEW, MODEL.filled(NEW))
            cache.fetch([*NEW, 1])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    cache.validate()


def test_threads_wait_for_each_other_all_the_same() -> None:
    """Only the thread that holds the lock is refused; another one waits."""

    def scene() -> None:
        cache, held, leave, answers = KVPrefixCache(), threading.Event(), threading.Event(), []
        cache.store(OLD, MODEL.filled(OLD))

        def hold() -> None:
            with inside.lock(cache):
                held.set()
                leave.wait(HANG)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait(HANG)
        asker = threading.Thread(target=lambda: answers.append(cache.ntokens))
        asker.start()
        assert not answers
        leave.set()
        holder.join(HANG)
        asker.join(HANG)
        assert answers == [len(OLD)]

    guarded(scene)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"]
)
def test_copies_are_refused_with_a_sentence(duplicate: Callable[[Any], Any]) -> None:
    cache = KVPrefixCache()
    cache.store(OLD, MODEL.filled(OLD))
    with cache.pin(OLD) as pin:
        for each in (cache, pin):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                duplicate(each)
    gc.collect()
    assert cache.fetch([*OLD, 1]).length == len(OLD)
    cache.validate()


def test_hybrids_too() -> None:
    """Checkpoints go through the same sections."""

    def scene() -> None:
        model, cache = PosKV(KV(), Arrays()), KVPrefixCache()
        cache.store(OLD, model.filled(OLD))
        inside_every_section(cache, cache.stats, [])
        for take in (False, True):
            model.check(cache.fetch([*OLD, 1], take=take).prompt_cache, OLD)
        del inside.contents(cache).opened
        cache.validate()

    guarded(scene)


def test_the_prompt_cache_of_servers_too() -> None:
    """A finalizer may come in the middle of an insertion."""
    from kvcache.integrations.mlx_lm import PromptCache

    def scene() -> None:
        served = PromptCache(max_size=4)
        refused, sections = [], []

        def nested() -> None:
            try:
                served.insert_cache("model", OLD, MODEL.filled(OLD))
            except BusyError:
                refused.append(1)

        inside_every_section(served.cache, nested, sections)
        assert served.insert_cache("model", NEW, MODEL.filled(NEW)).reason == "stored"
        del inside.contents(served.cache).opened
        assert refused
        assert served.insert_cache("model", OLD, MODEL.filled(OLD)).length == len(OLD)
        for tokens in (OLD, NEW):
            layers, rest = served.fetch_nearest_cache("model", [*tokens, 1])
            MODEL.check(layers, tokens)
            assert list(rest) == [1]
        served.cache.validate()

    guarded(scene)
