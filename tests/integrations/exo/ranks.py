"""One rank of exo's engine: ``python -m tests.integrations.exo.ranks MODEL,MODEL...``, a model a rank.

Plays each group of models and prints what it saw as JSON. Ranks that do not agree hang or fail.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import patch

import mlx.core as mx
import psutil
from mlx_lm.models.cache import BatchKVCache

from kvcache.integrations.exo import KVPrefixCache
from tests.integrations.exo.engine import Region, request
from tests.support.models import MODELS, prompt

if TYPE_CHECKING:
    import kvcache

SYSTEM = prompt(30)


class Pressure:
    """Presses on one rank only, until something was evicted there."""

    def __init__(self) -> None:
        self.cache: kvcache.KVPrefixCache | None = None
        self.held = 0

    def press(self, cache: kvcache.KVPrefixCache) -> None:
        self.cache, self.held = cache, cache.nbytes

    def excess_bytes(self) -> int:
        return int(self.cache is not None and self.cache.nbytes == self.held)


def play(group: mx.distributed.Group, names: list[str]) -> list[object]:
    rank = group.rank()
    model = MODELS[names[rank]]()
    pressure = Pressure()
    prefixes = KVPrefixCache(group, pressure=pressure)
    seen: list[object] = []

    def note(*what: object) -> None:
        stats = prefixes.cache.stats()
        seen.append([*what, prefixes.cache.ntokens, stats.checkpoints, len(prefixes.prompts)])

    def ask(tokens: list[int], *regions: Region) -> None:
        turn = request(prefixes, model, tokens, regions)
        note(turn.hit, turn.index, turn.exact, turn.saved)

    prefixes.evict_for_prefill()
    one, two = ([*SYSTEM, *prompt(32, first)] for first in (1, 2))
    for tokens in (one, two, one, [*two, *prompt(26, 3)]):
        ask(tokens)
    ask([*SYSTEM, *prompt(32, 4)], Region("", 40, 50))
    ask([*SYSTEM, *prompt(32, 4)], Region("a", 40, 50))
    ask([*SYSTEM, *prompt(32, 4)], Region("b", 40, 50))
    if rank == 1:
        pressure.press(prefixes.cache)
    note(prefixes.evict_for_prefill().checkpoints)
    batched = [BatchKVCache([0]) for _ in model.layers] if rank == 0 else model.filled(one)
    note(prefixes.add_kv_cache(mx.array(one), batched))
    for tokens in (one, one, [*one, 7], [*one, 7]):
        ask(tokens)
    memory = SimpleNamespace(total=100, available=80 - 30 * rank)
    with patch.object(psutil, "virtual_memory", lambda: memory):
        note(round(prefixes.get_memory_used_percentage(), 3))
    prefixes.clear()
    ask(one)
    return seen


def main(groups: list[str]) -> None:
    group = mx.distributed.init(strict=True, backend="ring")
    print(json.dumps([play(group, names.split(",")) for names in groups]))


if __name__ == "__main__":
    main(sys.argv[1:])
