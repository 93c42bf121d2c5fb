"""What agreement adds to a fetch, against a bare ``all_min`` of one integer in the same run.

A cache of the group and one without a group hold the same prompts. In turn, each between two rendezvous:
nothing, a bare ``all_min``, a hit of each cache, a miss of each. The time to the second rendezvous is
taken, since a model's next step waits for the slowest rank with or without a cache. A hit takes two
collectives, a miss one; the rest of the difference is the code around them. The bar is for the
quietest 2 % of the rounds, in which no rank waited for a time slice: a ring's threads poll, and with
fewer cores than threads a message of more than one integer may cost one (the bare ``all_gather`` beside
shows it). Where the median ``all_min`` takes several times as long as a quiet one, other programs had
the cores, and the bar is not applied.

``python -m benches.ranks.fetch`` starts the ranks itself; ``mlx.launch`` can, too.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from kvcache import KVPrefixCache

if TYPE_CHECKING:
    from collections.abc import Callable

# Times a bare collective: two for a hit, one for a miss, and the code around them.
BARS = {"hit": 2.6, "miss": 1.6}
QUIET, WARM_UP, BUSY = 0.02, 20, 2.0
Times = dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    mx.set_default_device(mx.cpu)
    group = mx.distributed.init()
    if group.size() == 1:
        return start(options.ranks)
    return report(group, measured(group, options.rounds, options.tokens))


def start(ranks: int) -> int:
    """Runs this program on each rank of a ring."""
    from tests.support.ring import ring

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benches.ranks.fetch", *sys.argv[1:]]
        codes = ring(command, ranks, Path(folder), 600, {})
        print((Path(folder) / "ring.log").read_text(), end="")
    return max(1 if code is None else abs(code) for code in codes)


def measured(group: Any, rounds: int, tokens: int) -> Times:
    """Microseconds of each call, round by round."""
    grouped, alone = KVPrefixCache(group=group), KVPrefixCache()
    known, unknown = list(range(tokens)), list(range(10_000, 10_000 + tokens))
    for cache in (grouped, alone):
        cache.store(known, _filled(tokens))
    one = mx.array(1, dtype=mx.int32)
    seven = mx.array([1] * 7, dtype=mx.int32)

    def bare() -> None:
        mx.distributed.all_min(one, group=group).item()

    def gather() -> None:
        mx.distributed.all_gather(seven, group=group).tolist()

    calls: dict[str, Callable[[], Any]] = {
        "bare": bare,
        "gather": gather,
        "bare alone": lambda: None,
        "hit": lambda: grouped.fetch([*known, 1]),
        "hit alone": lambda: alone.fetch([*known, 1]),
        "miss": lambda: grouped.fetch(unknown),
        "miss alone": lambda: alone.fetch(unknown),
    }
    taken: Times = {name: [] for name in calls}
    for turn in range(WARM_UP + rounds):
        for name, call in calls.items():
            bare()
            began = perf_counter()
            call()
            bare()
            if turn >= WARM_UP:
                taken[name].append((perf_counter() - began) * 1e6)
    return taken


def _filled(length: int) -> list[Any]:
    """Two layers of KV."""
    layers = [KVCache(), KVCache()]
    for layer in layers:
        layer.update_and_fetch(mx.ones((1, 2, length, 32)), mx.ones((1, 2, length, 32)))
    return layers


def report(group: Any, taken: Times) -> int:
    """Prints the first rank's figures; all ranks end alike, by the rank with the largest."""
    say = print if group.rank() == 0 else lambda *_: None
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    say(f"{group.size()} ranks, {len(taken['bare'])} rounds, {load}; microseconds, first rank's")
    ratios: dict[str, float] = {}
    bares = []
    for name, at in (("quietest 2 %", QUIET), ("median", 0.5)):
        figures = {call: sorted(times)[int(len(times) * at)] for call, times in taken.items()}
        added = {call: figures[call] - figures[f"{call} alone"] for call in ("bare", *BARS)}
        bares.append(added["bare"])
        gather = figures["gather"] - figures["bare alone"]
        say(f"{name}: a bare all_min of one integer {added['bare']:.1f}, all_gather of seven {gather:.1f}")
        for call in BARS:
            ratio = mx.distributed.all_max(mx.array(added[call] / added["bare"]), group=group).item()
            ratios.setdefault(call, ratio)
            say(
                f"  {call:4} {figures[call]:8.1f}, without a group {figures[f'{call} alone']:8.1f}: "
                f"adds {added[call]:8.1f}; on the worst rank {ratio:.2f} x bare"
            )
    busy = mx.distributed.all_max(mx.array(bares[1] / bares[0]), group=group).item()
    if busy > BUSY:
        say(f"no verdict: the median collective takes {busy:.1f} times a quiet one, others have the cores")
        return 0
    say("bars: " + ", ".join(f"{call} {ratios[call]:.2f} of {bar} x bare" for call, bar in BARS.items()))
    return int(any(ratios[call] > bar for call, bar in BARS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
