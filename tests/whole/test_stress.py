"""Eight threads, thousands of random operations on one cache: no deadlock, no borrow error, no lost byte.

``KVCACHE_STRESS_OPERATIONS`` sets the operations of each thread; ``make test-stress`` runs 10,000.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from kvcache import KVPrefixCache
from tests.support.failures import assert_settled
from tests.support.full import many
from tests.support.memory import active, charged, footprint
from tests.support.threads import THREADS, often, together
from tests.support.workers import WEIGHTS, Worker

OPERATIONS = int(os.environ.get("KVCACHE_STRESS_OPERATIONS", many(700, 2000)))
# Slow machines included; a deadlock ends the test as a thread that waits for ever.
PATIENCE = 900 + OPERATIONS


@pytest.mark.timeout(2 * PATIENCE)
def test_eight_threads_on_one_cache() -> None:
    """REPORTS 104."""
    limit, before, base = 100_000, footprint(), active()
    cache = KVPrefixCache(max_bytes=limit, segment_tokens=8)
    workers = [Worker(cache, number) for number in range(THREADS)]

    def work(number: int) -> None:
        workers[number].work(OPERATIONS)
        assert cache.nbytes <= limit

    with often():
        together(work, patience=PATIENCE)
    counted = sum((worker.counted for worker in workers), Counter())
    assert sum(counted[action] for action in WEIGHTS) == THREADS * OPERATIONS
    assert_settled(cache)
    assert active() - base == charged(cache)

    stats = cache.stats()
    for name in ("lookups", "hits", "lookup_tokens", "hit_tokens"):
        assert getattr(stats, name) == counted[name], name
    assert counted["hits"] > 0

    cache.clear()
    cache.validate()
    assert (cache.nbytes, cache.ntokens, len(cache)) == (0, 0, 0)
    assert footprint() == before
    cache.close()
    assert footprint() == before
