"""What agreement costs a fetch, against a bare ``all_min`` of one integer in the same run.

A cache of the group and one without a group hold the same prompts. In turn, each after a rendezvous: a
bare ``all_min``, a hit of each cache, a miss of each. A hit takes two collectives, a miss one; the rest
of the difference is what stands around them. The bar is for the quietest 2 % of the rounds, in which no
rank waited for a time slice; where ranks share cores with others the median tells of the scheduler.

Run on ranks: ``mlx.launch -n 2 --backend ring benches/ranks/fetch.py``.
"""

from __future__ import annotations

import argparse
import os
from time import perf_counter
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from kvcache import KVPrefixCache

if TYPE_CHECKING:
    from collections.abc import Callable

# Times a bare collective: two for a hit, one for a miss, and what stands around them.
BARS = {"hit": 2.6, "miss": 1.6}


def filled(length: int) -> list[Any]:
    """Two layers of KV."""
    layers = [KVCache(), KVCache()]
    for layer in layers:
        layer.update_and_fetch(mx.ones((1, 2, length, 32)), mx.ones((1, 2, length, 32)))
    return layers


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    mx.set_default_device(mx.cpu)
    group = mx.distributed.init()
    if group.size() < 2:
        parser.error("start it on ranks: mlx.launch -n 2 --backend ring benches/ranks/fetch.py")
    grouped, alone = KVPrefixCache(group=group), KVPrefixCache()
    known, unknown = list(range(options.tokens)), list(range(10_000, 10_000 + options.tokens))
    for cache in (grouped, alone):
        cache.store(known, filled(options.tokens))
    one = mx.array(1, dtype=mx.int32)

    calls: dict[str, Callable[[], Any]] = {
        "bare": lambda: mx.distributed.all_min(one, group=group).item(),
        "hit": lambda: grouped.fetch([*known, 1]),
        "hit alone": lambda: alone.fetch([*known, 1]),
        "miss": lambda: grouped.fetch(unknown),
        "miss alone": lambda: alone.fetch(unknown),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(options.rounds + 20):
        for name, call in calls.items():
            # Ranks begin together: none is charged for what another did before.
            calls["bare"]()
            began = perf_counter()
            call()
            if turn >= 20:
                taken[name].append((perf_counter() - began) * 1e6)
    return report(group, taken)


def report(group: Any, taken: dict[str, list[float]]) -> int:
    """Prints the first rank's figures; all ranks end alike, by the rank with the largest."""
    if group.rank() == 0:
        load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        print(f"{group.size()} ranks, {len(taken['bare'])} rounds, {load}; microseconds, first rank's")
    over = False
    for name, at in (("quietest 2 %", 0.02), ("median", 0.5)):
        figures = {call: sorted(times)[int(len(times) * at)] for call, times in taken.items()}
        added = {call: figures[call] - figures[f"{call} alone"] for call in BARS}
        ratios = mx.array([added[call] / figures["bare"] for call in BARS])
        worst = mx.distributed.all_max(ratios, group=group).tolist()
        if at < 0.5:
            over = any(ratio > bar for ratio, bar in zip(worst, BARS.values(), strict=True))
        if group.rank() == 0:
            print(f"{name}: bare all_min of one integer {figures['bare']:.1f}")
            for (call, bar), ratio in zip(BARS.items(), worst, strict=True):
                print(
                    f"  {call:4} {figures[call]:8.1f}, without a group {figures[f'{call} alone']:6.1f}: "
                    f"adds {added[call]:8.1f}, on the worst rank {ratio:.2f} x bare"
                    + (f" (bar {bar})" if at < 0.5 else "")
                )
    return int(over)


if __name__ == "__main__":
    raise SystemExit(main())
