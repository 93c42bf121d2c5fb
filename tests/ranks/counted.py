"""How often ranks meet, call by call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.ranks.trial import A, B, Trial
from tests.support.layers import KV, Arrays
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable


def collectives(group: Any, broken: int) -> Trial:
    trial = Trial(group, broken)
    _usual_calls(trial)
    return trial


def collectives_of_a_hybrid(group: Any, broken: int) -> Trial:
    trial = Trial(group, broken, model=PosKV(KV()) if group.rank() == broken else PosKV(KV(), Arrays()))
    _usual_calls(trial)
    return trial


def _usual_calls(trial: Trial) -> None:
    trial.fetch(A, "fetch of nothing")
    trial.store(A[:10], "store")
    trial.store(A[:10], "store again")
    trial.fetch(A, "fetch")
    trial.call("peek", lambda: trial.cache.peek(A))
    trial.fetch(B, "take", take=True)
    trial.call("evict", lambda: trial.cache.evict(1))
    trial.call("clear", trial.cache.clear)


SCENARIOS: tuple[Callable[[Any, int], Trial], ...] = (collectives, collectives_of_a_hybrid)
