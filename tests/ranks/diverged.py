"""One rank holds something else than the others, as only a defect would have it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kvcache._core import Tokens
from kvcache.ranks.group import CHECK
from tests.ranks.trial import A, B, Trial
from tests.support.layers import KV, Arrays
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

C = [*range(100, 130)]
DIFFER = ("InternalError", "InternalError")


class _Source:
    excess = 0

    def excess_bytes(self) -> int:
        return self.excess


def one_is_empty(group: Any, broken: int) -> Trial:
    source = _Source()
    trial = Trial(group, broken, pressure=source)
    cache = trial.cache
    trial.store(B)
    trial.store(A)
    hit = trial.fetch([*A, 1])
    trial.behind(lambda index: index.drop(""))
    trial.call("peek", lambda: cache.peek(A))
    trial.fetch(A)
    trial.fetch(A, take=True)
    trial.call("pin", lambda: cache.pin(A))
    trial.call("reserve for a hit", lambda: cache.reserve(10, protect=hit))
    # Only ranks that hold something can give something.
    source.excess = 0 if trial.here else 1
    trial.call("reserve under pressure", lambda: cache.reserve(10))
    trial.call("another", lambda: cache.reserve(10, protect=hit))
    source.excess = 0
    trial.store(A, raises=DIFFER)
    trial.call("session", partial(_session, trial, A), raises=DIFFER)
    trial.store(C)
    trial.fetch([*C, 1])
    # All of it, by the number of units of the rank that holds the most.
    trial.call("trim_to", lambda: cache.trim_to(nbytes=0))
    trial.alike = True
    trial.works()
    return trial


def one_lacks_a_part(group: Any, broken: int) -> Trial:
    """A hybrid model whose ranks hold different checkpoints."""
    model = PosKV(KV(), KV()) if group.rank() == 0 else PosKV(Arrays())
    trial = Trial(group, broken, model=model)
    for end in (10, 20, 30):
        trial.store(C[:end])
    trial.behind(lambda index: index.evict(units=1))
    for end in (11, 15, 21, 30):
        trial.fetch(C[:end], f"fetch {end}")
        trial.call(f"peek {end}", partial(trial.cache.peek, C[:end]))
        trial.call(f"pin {end}", lambda: trial.cache.pin(C[:end]))  # noqa: B023 - called at once
    trial.call("drop", lambda: trial.cache.drop(""))
    trial.alike = True
    trial.works()
    return trial


def _session(trial: Trial, tokens: list[int]) -> Any:
    with trial.cache.session(tokens, model=trial.model) as session:
        trial.model.grow(session.prompt_cache, list(session.remaining))
    return session


@contextmanager
def _checking() -> Iterator[None]:
    before = os.environ.get(CHECK, "")
    os.environ[CHECK] = "1"
    try:
        yield
    finally:
        os.environ[CHECK] = before


def every_call_is_checked(group: Any, broken: int) -> Trial:
    with _checking():
        trial = Trial(group, broken)
        other = Trial(group, broken, segment_tokens=16 if trial.here else 8)
    cache, model = trial.cache, trial.model
    for tokens in (A, B, C):
        trial.store(tokens)
    trial.call("the session", partial(_session, trial, A))
    trial.fetch(C)
    pin = trial.call("pin", lambda: cache.pin(B))
    session = cache.session(B, model=model).__enter__()
    trial.call("which call", cache.clear if trial.here else lambda: cache.peek(A), raises=DIFFER)
    # One use more: nothing else shows that the next eviction would take another prompt.
    trial.behind(lambda index: index.release(index.acquire(Tokens(A), "", [], len(A)).lease, 0))
    for name, call in {
        "fetch": lambda: cache.fetch(A),
        "peek": lambda: cache.peek(A),
        "store": lambda: cache.store(C, model.filled(C)),
        "session": lambda: cache.session(A, model=model),
        "the end of a session": lambda: session.__exit__(None, None, None),
        "reserve": lambda: cache.reserve(10),
        "evict": lambda: cache.evict(10),
        "evict_idle": lambda: cache.evict_idle(10),
        "trim_to": lambda: cache.trim_to(nbytes=0),
        "pin": lambda: cache.pin(A),
        "release": pin.release,
        "drop": lambda: cache.drop(""),
        "clear": cache.clear,
    }.items():
        trial.call(f"differs: {name}", call, raises=DIFFER)
    trial.call("grain", lambda: other.cache.peek(A), raises=DIFFER)
    if trial.here:
        cache.close()
    trial.call("closed", lambda: cache.fetch(A), raises=("ClosedError", "RankError"))
    return trial


SCENARIOS: tuple[Callable[[Any, int], Trial], ...] = (one_is_empty, one_lacks_a_part, every_call_is_checked)
