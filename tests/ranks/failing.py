"""One rank fails at this or that: all ranks have to come to the same end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import BatchKVCache

from tests.ranks.faulty import SourceError, failing
from tests.ranks.trial import A, B, Trial
from tests.support.layers import KV
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable

ALWAYS = 1000


def _during(here: bool, action: Callable[[], Any], count: int, error: Exception | None = None) -> Any:
    """The action, with the first ``count`` copies failing on this rank."""
    if not here:
        return action()
    with failing(1, count) if error is None else failing(1, count, lambda: error):
        return action()


def allocation_at_fetch(group: Any, broken: int) -> Trial:
    trial = Trial(group, broken)
    trial.store(B)
    trial.store(A)
    for take in (False, True):
        fetch = partial(trial.cache.fetch, [*A, 1], take=take)
        if not take:
            trial.call("fails once", partial(_during, trial.here, fetch, 1))
        short = ("AllocationError", "AllocationError")
        trial.call("fails always", partial(_during, trial.here, fetch, ALWAYS), raises=short)
        # A fetch loses nothing that it fetches; a take loses that one entry, cleanly.
        trial.fetch([*A, 1], "and again")
    trial.works()
    return trial


def allocation_at_store(group: Any, broken: int) -> Trial:
    trial = Trial(group, broken)
    short = ("AllocationError", "AllocationError")

    def store(count: int, donate: bool) -> Any:
        prompt_cache = trial.filled(A)
        return _during(trial.here, lambda: trial.cache.store(A, prompt_cache, donate=donate), count)

    trial.call("fails once", partial(store, 1, False))
    for donate in (False, True):
        trial.call("clear", trial.cache.clear)
        trial.call("fails always", partial(store, ALWAYS, donate), raises=short, changes=False)
        trial.store(B)
        trial.call("fails always", partial(store, ALWAYS, donate), raises=short)
        trial.fetch([*A, 1], "none of it is held")
        trial.store(A, "and again")
    trial.works()
    return trial


def two_kinds_of_failure(group: Any, broken: int) -> Trial:
    """One rank lacks memory while another's copy is wrong."""
    trial = Trial(group, broken)
    trial.store(A)
    raises = ("ZeroDivisionError", "RankError")
    for name, action in (
        ("fetch", partial(trial.cache.fetch, [*A, 1])),
        ("store", partial(trial.cache.store, B, trial.filled(B))),
    ):
        error = ZeroDivisionError() if trial.here else None
        trial.call(name, partial(_during, True, action, ALWAYS, error), raises=raises)
    trial.fetch([*A, 1])
    trial.works()
    return trial


def lazy_layers(group: Any, broken: int) -> Trial:
    """What a forward pass left to be computed waits for all ranks, also where one of them fails."""
    trial = Trial(group, broken)
    for count in (1, ALWAYS):
        prompt_cache = trial.filled(A)
        layer = prompt_cache[0]
        layer.keys = mx.depends(layer.keys, mx.distributed.all_sum(mx.ones(3), group=group))
        store = partial(trial.cache.store, A, prompt_cache)
        short = ("AllocationError", "AllocationError") if count == ALWAYS else ("", "")
        trial.call(f"{count} fail", partial(_during, trial.here, store, count), raises=short)
        trial.call("clear", trial.cache.clear)
    trial.works()
    return trial


class _Source:
    """Pressure of so many bytes, or none that can be told."""

    def __init__(self) -> None:
        self.excess: int | None = 0

    def excess_bytes(self) -> int:
        if self.excess is None:
            raise SourceError
        return self.excess


def pressure_raises(group: Any, broken: int) -> Trial:
    source = _Source()
    trial = Trial(group, broken, pressure=source)
    trial.store(A)
    source.excess = None if trial.here else 0
    raises = ("SourceError", "RankError")
    trial.fetch([*A, 1], raises=raises, changes=False)
    trial.store(B, raises=raises)
    trial.call("reserve", lambda: trial.cache.reserve(100), raises=raises, changes=False)
    trial.call("peek", lambda: trial.cache.peek([*A, 1]), changes=False)
    source.excess = 0
    trial.fetch([*A, 1], "and again")
    trial.works()
    return trial


def pressure_on_one_rank(group: Any, broken: int) -> Trial:
    """Pressure that eviction cannot cure."""
    source = _Source()
    trial = Trial(group, broken, pressure=source)
    trial.store(A)
    trial.store([*range(300, 330)])
    source.excess = 10**9 if trial.here else 0
    for _ in range(3):
        trial.fetch([*A, 1])
        trial.store(B)
        trial.call("reserve", lambda: trial.cache.reserve(100))
    source.excess = 0
    trial.works()
    return trial


def closes(group: Any, broken: int) -> Trial:
    trial = Trial(group, broken)
    trial.store(A)
    pin = trial.call("pin", lambda: trial.cache.pin(A))
    hit = trial.fetch([*A, 1])
    trial.alike = False
    if trial.here:
        trial.cache.close()
    raises = ("ClosedError", "RankError")
    cache = trial.cache
    for name, call in {
        "fetch": lambda: cache.fetch(A),
        "peek": lambda: cache.peek(A),
        "store": lambda: cache.store(B, trial.filled(B)),
        "session": lambda: cache.session(A, model=trial.model).__enter__(),
        "reserve": lambda: cache.reserve(10),
        "reserve for a hit": lambda: cache.reserve(10, protect=hit),
        "evict": lambda: cache.evict(10),
        "evict_idle": lambda: cache.evict_idle(10),
        "trim_to": lambda: cache.trim_to(nbytes=0),
        "another pin": lambda: cache.pin(A),
        "drop": lambda: cache.drop(""),
        "clear": cache.clear,
    }.items():
        trial.call(name, call, raises=raises)
    trial.call("release", pin.release)
    cache.close()
    return trial


def bad_arguments(group: Any, broken: int) -> Trial:
    """Whatever is wrong with a call on one rank; what is held stays as it is, order of use included."""
    trial = Trial(group, broken)
    trial.store(A)
    trial.store(B)
    # Not the latest: were it used now, another prompt would be the next to go.
    hit = trial.cache.fetch([*A, 1])
    trial.fetch([*B, 1])
    cache, here = trial.cache, trial.here
    tokens = np.array([*A[:-1], -1 if here else 19], np.int32)
    listed = [0, 2**31 if here else 1]

    def session(**named: Any) -> None:
        with cache.session(**({"tokens": [1, 2, 3], "model": trial.model} | named)):
            pass

    def answer() -> None:
        with cache.session([1, 2, 3], model=trial.model) as asked:
            asked.append(-1 if here else 1)

    for name, error, call in (
        ("a token of fetch", "TokenError", lambda: cache.fetch(tokens)),
        ("a token in a list", "TokenError", lambda: cache.fetch(listed)),
        ("a token of peek", "TokenError", lambda: cache.peek(tokens)),
        ("a token of pin", "TokenError", lambda: cache.pin(tokens)),
        ("a token of store", "TokenError", lambda: cache.store(tokens, trial.filled(A))),
        ("a token of session", "TokenError", lambda: session(tokens=listed)),
        ("a late token of session", "TokenError", lambda: session(tokens=tokens)),
        ("no token", "TypeError", lambda: cache.fetch("text" if here else A)),
        ("a namespace", "TypeError", lambda: cache.fetch(A, namespace=5 if here else "")),
        ("media", "TypeError", lambda: cache.fetch(A, media=[5] if here else [])),
        ("a size to evict", "ConfigError", lambda: cache.evict(-1 if here else 0)),
        ("a size to reserve", "ConfigError", lambda: cache.reserve(-1 if here else 0, protect=hit)),
        ("what to protect", "TypeError", lambda: cache.reserve(5, protect=5 if here else hit)),
        ("a size to keep", "ConfigError", lambda: cache.trim_to(nbytes="x" if here else 10**6)),
        ("seconds", "ConfigError", lambda: cache.evict_idle(-1 if here else 10**6)),
        ("what to drop", "TypeError", lambda: cache.drop(5 if here else "other")),
        ("a length", "TypeError", lambda: cache.store(A, trial.filled(A), length="x" if here else None)),
        ("a label", "TypeError", lambda: cache.store(A, trial.filled(A), label=5 if here else "")),
        ("no prompt cache", "TypeError", lambda: cache.store(A, 5 if here else trial.filled(A))),
        ("a step", "ConfigError", lambda: session(prefill_step_size=0 if here else 8)),
        ("no model", "ConfigError", lambda: session(model=None if here else trial.model)),
        ("an answer", "TokenError", answer),
    ):
        trial.call(name, call, raises=(error, "RankError"), changes=False)
    trial.works()
    return trial


def refusals(group: Any, broken: int) -> Trial:
    """A cache that one rank cannot store is stored by none; the reason is the same everywhere."""
    trial = Trial(group, broken)
    trial.store(A[:8])
    batch = BatchKVCache([0])
    other = PosKV(*(KV(heads=7) for _ in trial.model.layers))
    uneven = trial.filled(A)
    uneven.append(PosKV(KV()).filled(B[:5])[0])
    for name, tokens, prompt_cache in (
        ("batched", A, [batch]),
        ("empty", A, trial.model.make_cache()),
        ("key too short", A[:15], trial.filled(A)),
        ("another model's", A, other.filled(A)),
        ("out of step", A, uneven),
        ("unsupported", A, [object()]),
        ("another length", A, trial.filled(A[:12])),
    ):
        given = prompt_cache if trial.here else trial.filled(A)
        store = partial(trial.cache.store, tokens if trial.here else A, given)
        trial.call(name, store, changes=False)
    trial.works()
    return trial


def uneven_sessions(group: Any, broken: int) -> Trial:
    """At the end of a request one rank's engine fails, or has run less than the others'."""
    trial = Trial(group, broken)

    def request(fails: bool, tokens: list[int], fewer: int) -> Any:
        session = trial.cache.session(tokens, model=trial.model)
        try:
            with session:
                rest = list(session.remaining)
                trial.model.grow(session.prompt_cache, rest[: len(rest) - fewer])
                session.append(1)
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        return session

    trial.call("one fails", partial(request, trial.here, A, 0))
    trial.call("one lags", partial(request, False, B, 3 if trial.here else 0))
    trial.works()
    return trial


def forgotten_pin(group: Any, broken: int) -> Trial:
    """One rank's pin is collected: when that happens is no rank's choice, so it goes on pinning."""
    trial = Trial(group, broken)
    trial.store(A)
    trial.store(B)
    pin = trial.call("pin", lambda: trial.cache.pin(A))
    if trial.here:
        del pin
    trial.call("evict", lambda: trial.cache.evict(10**9))
    trial.fetch([*A, 1])
    trial.works()
    return trial


SCENARIOS: tuple[Callable[[Any, int], Trial], ...] = (
    allocation_at_fetch,
    allocation_at_store,
    two_kinds_of_failure,
    lazy_layers,
    pressure_raises,
    pressure_on_one_rank,
    closes,
    bad_arguments,
    refusals,
    uneven_sessions,
    forgotten_pin,
)
