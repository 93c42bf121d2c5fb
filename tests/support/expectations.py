"""The books that the state machine keeps: what a cache may hand out, and what it said it did."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from kvcache import Eviction, KVPrefixCache, MediaSpan
from tests.support.failures import contents
from tests.support.layers import KV, Arrays, Chunked, Concatenate, List, Opaque, Quantized, Rotating
from tests.support.memory import Weight, active, assert_freed, charged, footprint, given_back
from tests.support.oracle import Media, Prompt, Shelf
from tests.support.poskv import PosKV, held

if TYPE_CHECKING:
    from kvcache import Hit, Pin, Stored

# Which models' caches each namespace is given: one, or a plain one that is quantised in mid-request.
LAYOUTS = {
    "text": {
        "plain": PosKV(KV(), List(KV(heads=1), Concatenate())),
        "packed": PosKV(Quantized(), List(Quantized(1), Quantized())),
    },
    "hybrid": {"hybrid": PosKV(KV(), Arrays(), Opaque())},
    "window": {"window": PosKV(Rotating(6, keep=1), KV(), Chunked(9))},
    "state": {"state": PosKV(Arrays(), Arrays())},
}
MOST_ARRAYS = max(
    len(list(held(model.filled([1])))) for models in LAYOUTS.values() for model in models.values()
)
BASES = (
    (1, 2, 3, 4, 1, 2, 2, 3, 3, 1, 4, 4, 2, 1, 3, 1, 1, 4, 2, 3, 4, 3, 2, 1),
    (1, 2, 3, 4, 1, 2, 5, 5, 5, 6) * 2,
)
SPOTS = (Media(2, 3, "a"), Media(2, 3, "b"), Media(2, 4, "a"), Media(9, 2, "a"), Media(9, 2, "c"))


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    """Prompts that share prefixes of all lengths, some with pictures in them."""
    base = draw(st.sampled_from(BASES))
    ids = base[: draw(st.integers(0, len(base)))] + tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
    spots = draw(st.lists(st.sampled_from(SPOTS), max_size=2, unique_by=lambda spot: spot.start))
    spots = sorted((spot for spot in spots if spot.end <= len(ids)), key=lambda spot: spot.start)
    return Prompt(ids, tuple(spots))


picks = st.integers(0, 1)


class Books(RuleBasedStateMachine):
    """One cache, the shelves that say what it may hand out, and sums of what it said it did."""

    @initialize(
        limit=st.sampled_from([None, None, None, 12_000, 40_000]),
        max_buffers=st.sampled_from([None, None, None, 60]),
        segment_tokens=st.sampled_from([1, 2, 3, 5, 8, 64]),
        max_checkpoints=st.sampled_from([1, 3, 100]),
        collect=st.sampled_from(["always", "auto"]),
        used=st.lists(
            st.sampled_from(["text", "text", "hybrid", "window", "state"]),
            min_size=1,
            max_size=2,
            unique=True,
        ),
    )
    def start(
        self,
        limit: Any,
        max_buffers: Any,
        segment_tokens: int,
        max_checkpoints: int,
        collect: Any,
        used: list[str],
    ) -> None:
        # An example that was given up in mid-step leaves a traceback, and arrays in its frames.
        gc.collect()
        self.base = active()
        self.used = used
        self.limit = limit
        self.max_buffers = max_buffers
        self.now = 0.0
        self.cache = KVPrefixCache(
            max_bytes=limit,
            max_buffers=max_buffers,
            segment_tokens=segment_tokens,
            max_checkpoints=max_checkpoints,
            gc=collect,
            clock=lambda: self.now,
        )
        self.many = max_checkpoints == 100
        self.shelves = {
            space: {name: Shelf(not model.spans) for name, model in models.items()}
            for space, models in LAYOUTS.items()
        }
        self.pins: list[tuple[Pin, str, Prompt]] = []
        self.sums: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.evicted = Eviction()
        self.seen: dict[Any, list[bytes]] = {}
        self.known: dict[str, list[Prompt]] = {space: [] for space in LAYOUTS}
        self.young = 0

    def teardown(self) -> None:
        # After a failure the frames of the failed step still hold arrays.
        if hasattr(self, "cache") and sys.exc_info()[0] is None:
            self.unchanged()
            self.pins.clear()
            self.cache.close()
            assert footprint() == self.base

    def count(self, eviction: Eviction, before: Weight | None = None) -> None:
        """Adds up, and checks that memory fell by what the evicted arrays were charged."""
        self.evicted += eviction
        assert_freed(eviction, MOST_ARRAYS)
        assert before is None or given_back(before, self.cache) == eviction.freed
        if eviction:
            self.young = 0
            assert eviction.cycles == 1
            for shelf in self.all_shelves():
                shelf.exact = False

    def space(self, pick: int) -> str:
        """One of the few namespaces of this run."""
        return self.used[pick % len(self.used)]

    def all_shelves(self) -> list[Shelf]:
        return [shelf for shelves in self.shelves.values() for shelf in shelves.values()]

    def forget(self, space: str) -> None:
        for name, model in LAYOUTS[space].items():
            self.shelves[space][name] = Shelf(not model.spans)
        self.known[space] = []
        self.pins = [(pin, where, prompt) for pin, where, prompt in self.pins if where != space]

    def spans(self, prompt: Prompt) -> list[MediaSpan]:
        return [MediaSpan(span.start, span.length, span.picture) for span in prompt.media]

    def unchanged(self) -> None:
        """Arrays are never changed in place, whatever callers did with what they got."""
        now = contents(self.cache)
        for name in self.seen.keys() & now.keys():
            assert self.seen[name] == now[name], f"{name} changed"
        self.seen = now

    def check_hit(self, hit: Hit, space: str, prompt: Prompt) -> None:
        bounds = [shelf.usable(prompt) for shelf in self.shelves[space].values()]
        longest, matched = (max(figures) for figures in zip(*bounds, strict=True))
        note(f"{hit.reason} {hit.length} of {longest}, matched {hit.matched}")
        assert 0 <= hit.length <= min(longest, max(len(prompt.ids) - 1, 0))
        assert hit.length <= hit.matched <= matched
        if all(shelf.exact for shelf in self.shelves[space].values()):
            assert hit.length == longest
        assert prompt.back(hit.length) == hit.length
        assert list(hit.remaining) == list(prompt.ids[hit.length :])
        assert bool(hit) == (hit.reason == "hit") == (hit.length > 0)
        if hit.checkpoint_at is not None:
            assert hit.length < hit.checkpoint_at <= min(hit.matched, len(prompt.ids) - 1)
            assert prompt.back(hit.checkpoint_at) == hit.checkpoint_at
        if len(prompt.ids) < 2:
            assert hit.reason == "too_short"

    def check_stored(
        self, stored: Stored, space: str, name: str, prompt: Prompt, length: int | None, ledger: int
    ) -> None:
        model, shelf = LAYOUTS[space][name], self.shelves[space][name]
        asked = len(prompt.ids) if length is None else length
        if not prompt.ids:
            assert stored.reason == "empty"
            return
        assert stored.reason in ("stored", "already", "truncated", "too_large")
        assert stored.length <= asked
        assert 0 <= stored.new_tokens <= stored.length
        if stored.reason in ("stored", "already"):
            assert stored.length == asked
        if self.limit is None and self.max_buffers is None and prompt.back(asked) == asked:
            assert stored.reason in ("stored", "already")
        added = self.cache.nbytes - ledger + stored.evicted.nbytes
        if model.spans or (self.many and not stored.evicted):
            assert added == stored.nbytes
        else:
            # Checkpoints thinned out, and KV that was kept for the store only, go without notice.
            assert added <= stored.nbytes
            shelf.exact = False
        if stored.length == 0 or (stored.reason == "too_large" and not model.spans):
            return
        kept = prompt.cut(stored.length)
        self.known[space] = [*self.known[space][-7:], kept]
        self.young += 1
        shelf.entries[tuple(kept.keys())] = all(_whole(layer, stored.length) for layer in model.layers)
        found = self.cache.peek((*kept.ids, 8), namespace=space, media=self.spans(kept))
        assert found.length == stored.length
        if name == "state":
            assert self.cache.nbytes >= model.nbytes(stored.length)

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "cache"):
            return
        cache = self.cache
        cache.validate()
        stats = cache.stats()
        assert self.limit is None or cache.nbytes <= self.limit
        assert self.max_buffers is None or stats.buffers <= self.max_buffers
        assert active() - self.base == charged(cache)
        for pin, space, prompt in self.pins:
            longer = self.cache.peek((*prompt.ids, 8), namespace=space, media=self.spans(prompt))
            assert longer.length >= pin.tokens

    @invariant()
    def counted(self) -> None:
        if not hasattr(self, "cache"):
            return
        stats = self.cache.stats()
        for name in ("lookups", "hits", "lookup_tokens", "hit_tokens", "stores", "stored_tokens"):
            assert getattr(stats, name) == self.sums[name], name
        assert stats.misses_by_reason == self.misses
        assert stats.refused_by_reason == self.refusals
        evicted = self.evicted
        assert stats.evictions == evicted.segments + evicted.checkpoints
        assert (stats.evicted_tokens, stats.evicted_bytes) == (evicted.tokens, evicted.nbytes)
        assert stats.reclaim_cycles == evicted.cycles
        assert stats.reclaim_seconds == pytest.approx(evicted.seconds)
        spaces = [self.cache.stats(space) for space in LAYOUTS]
        for name in ("nbytes", "ntokens", "nodes", "segments", "checkpoints", "buffers"):
            assert getattr(stats, name) == sum(getattr(space, name) for space in spaces), name
        assert (stats.nbytes, stats.ntokens) == (self.cache.nbytes, self.cache.ntokens)


def _whole(layer: Any, length: int) -> bool:
    """Whether the layer's cache has all tokens from the first, in order."""
    if isinstance(layer, List):
        return all(_whole(member, length) for member in layer.members)
    return layer.spans or length <= getattr(layer, "window", getattr(layer, "chunk", -1))
