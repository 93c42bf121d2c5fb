"""The books of a world: what its cache may hand out, and sums of what its calls returned."""

from __future__ import annotations

import gc
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final

from kvcache import Eviction, KVPrefixCache, MediaSpan
from tests.fuzz.disturbances import EXPECTED, Broken, disturbed
from tests.fuzz.settings import draw
from tests.fuzz.trie import Given
from tests.support import inside
from tests.support.inside import stored_arrays
from tests.support.memory import active, charged, charges
from tests.support.oracle import Media, Prompt
from tests.support.poskv import held

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache import Hit, Pin, Stats

SUMS: Final = ("lookups", "hits", "lookup_tokens", "hit_tokens", "stores", "stored_tokens")
EVICTED: Final = ("evictions", "evicted_tokens", "evicted_bytes", "reclaim_cycles")
_KNOWN: Final = 12


class Books:
    """One cache, and all that is known about it."""

    def __init__(self, seed: int) -> None:
        gc.collect()
        self.random = Random(seed)
        self.settings = draw(self.random)
        self.base = active()
        self.now = 0.0
        self.failing_clock = 0
        self.failing_pressure = False
        self.disturbed = False
        self.armed: Callable[..., Any] | None = None
        self.trail: list[str] = []
        self.limit = self.settings.max_bytes
        self.cache = KVPrefixCache(
            max_bytes=self.limit,
            max_buffers=self.settings.max_buffers,
            segment_tokens=self.settings.segment_tokens,
            max_checkpoints=self.settings.max_checkpoints,
            gc=self.settings.gc,
            clock=self.clock,
        )
        memory = None if self.settings.memory is None else self.base + self.settings.memory
        inside.limit(self.cache, memory, self if self.settings.pressure else None)
        self.pins: list[tuple[Pin, str, Prompt]] = []
        # Where a pin may have kept checkpoints from being thinned out: that happens at stores only.
        self.pinned: set[str] = set()
        self.loans: list[tuple[Any, list[Any], list[int]]] = []
        self.sums: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = {
            "misses_by_reason": Counter(),
            "refused_by_reason": Counter(),
        }
        self.evictions = 0
        self.given: dict[str, dict[str, Given]] = {}
        self.known: dict[str, list[Prompt]] = {}
        for space in self.settings.spaces:
            self.forget(space)
        letters = range(self.random.choice([2, 4, 30]))
        self.bases = [tuple(self.random.choices(letters, k=self.settings.longest)) for _ in range(2)]
        self.letters = letters

    def note(self, line: str) -> None:
        """For the report of a failure."""
        self.trail.append(line)

    def clock(self) -> float:
        if self.failing_clock:
            self.failing_clock -= 1
            if not self.failing_clock:
                raise Broken
        return self.now

    def excess_bytes(self) -> int:
        """This world is a pressure source too."""
        if self.failing_pressure:
            raise Broken
        how, most = self.settings.pressure, 20_000
        if how == "machine":
            return max(0, active() - self.base - most)
        if how == "stuck":
            return 5000 if int(self.now) % 3 == 0 else 0
        return self.random.choice([0, 0, 0, self.random.randrange(most)])

    def call(self, action: Callable[[], Any]) -> Any:
        """A call into the cache, disturbed where a disturbance is armed."""
        if self.armed is None or self.random.random() < 0.3:
            return action()
        disturbance, self.armed, self.disturbed = self.armed, None, True
        return disturbed(self, disturbance, action)

    def arm(self) -> None:
        """Chooses whether the next call is disturbed."""
        self.disturbed, self.armed = False, None
        if self.random.random() < self.settings.disturbed:
            self.armed = self.random.choice(list(EXPECTED))

    def space(self) -> str:
        return self.random.choice(list(self.settings.spaces))

    def prompt(self, space: str) -> Prompt:
        """One that goes on from what was stored, or shares less with it, some with pictures."""
        random, known = self.random, self.known[space]
        if known and random.random() < self.settings.reuse:
            base = known[-1] if self.settings.chain else random.choice(known)
            less = (
                0
                if self.settings.chain
                else random.choice([0, 0, 0, 1, 2, random.randrange(len(base.ids) + 1)])
            )
            kept = base.cut(max(0, len(base.ids) - less))
            tail = random.choices(self.letters, k=random.choice([0, 1, 1, 2, 5, 12]))
            return Prompt((*kept.ids, *tail), kept.media)
        base = random.choice(self.bases)
        ids = base[: random.randrange(len(base) + 1)] + tuple(
            random.choices(self.letters, k=random.randrange(4))
        )
        media = []
        while random.random() < self.settings.pictures and len(media) < 3:
            start = (media[-1].end if media else 0) + random.randrange(8)
            spot = Media(start, random.choice([1, 3, 4, 9]), random.choice("ab"))
            if spot.end > len(ids):
                break
            media.append(spot)
        return Prompt(ids, tuple(media))

    def media(self, prompt: Prompt) -> list[MediaSpan]:
        return [MediaSpan(span.start, span.length, span.picture) for span in prompt.media]

    def peeked(self, space: str, prompt: Prompt) -> Hit:
        return self.cache.peek(prompt.ids, namespace=space, media=self.media(prompt))

    def forget(self, space: str) -> None:
        """A namespace is empty."""
        self.given[space] = {name: Given(model) for name, model in self.settings.spaces[space].items()}
        self.known[space] = []
        self.pinned.discard(space)
        for pin, where, _ in self.pins:
            if where == space:
                pin.release()
        self.pins = [each for each in self.pins if each[1] != space]

    def remember(self, space: str, prompt: Prompt) -> None:
        self.known[space] = [*self.known[space][1 - _KNOWN :], prompt]

    def exact(self, space: str) -> bool:
        return all(given.exact for given in self.given[space].values())

    def lost(self, space: str | None = None) -> None:
        """Something may be gone, so that lengths are upper bounds from now on."""
        for name in self.given if space is None else (space,):
            for given in self.given[name].values():
                given.lost()

    def count(self, eviction: Eviction) -> None:
        """Adds up what a call says that it evicted."""
        assert eviction.freed >= eviction.nbytes or self.disturbed
        assert bool(eviction) <= bool(eviction.cycles)
        self.sums.update(
            evictions=eviction.segments + eviction.checkpoints,
            evicted_tokens=eviction.tokens,
            evicted_bytes=eviction.nbytes,
            reclaim_cycles=eviction.cycles,
        )
        self.sync()

    def sync(self) -> None:
        """After a call: where anything was evicted, lengths are upper bounds."""
        evictions = self.cache.stats().evictions
        if evictions != self.evictions:
            self.evictions = evictions
            self.lost()

    def rebase(self, *names: str) -> None:
        """Takes counters as they are, where calls do not return what they did."""
        stats = self.cache.stats()
        for name in names:
            assert getattr(stats, name) >= self.sums[name] or self.disturbed, name
            self.sums[name] = getattr(stats, name)
        if "stores" in names:
            self.reasons["refused_by_reason"] = Counter(stats.refused_by_reason)
        if "lookups" in names:
            self.reasons["misses_by_reason"] = Counter(stats.misses_by_reason)

    def check_counters(self, stats: Stats) -> None:
        names = SUMS if self.settings.measured else SUMS + EVICTED
        for name in names:
            assert getattr(stats, name) == self.sums[name], (
                f"{name}: {getattr(stats, name)}, not {self.sums[name]}"
            )
        for name, counted in self.reasons.items():
            assert dict(getattr(stats, name)) == dict(counted), name
        parts = [self.cache.stats(space) for space in self.settings.spaces]
        for name in ("nbytes", "ntokens", "nodes", "segments", "checkpoints", "buffers"):
            assert getattr(stats, name) == sum(getattr(part, name) for part in parts), name
        assert (stats.nbytes, stats.ntokens) == (self.cache.nbytes, self.cache.ntokens)

    def check(self) -> None:
        """After every operation."""
        cache, settings = self.cache, self.settings
        cache.validate()
        stats = cache.stats()
        assert self.limit is None or cache.nbytes <= self.limit
        assert settings.max_buffers is None or stats.buffers <= settings.max_buffers
        lent = sum(charges(held(caches)) for _, caches, _ in self.loans)
        assert active() - self.base == charged(cache) + lent, "memory that nobody holds, or too little"
        figures = inside.index(cache).stats()
        assert figures.reserved_bytes == 0
        assert self.pins or figures.leased_bytes == 0, "a lease that nobody holds"
        self.check_counters(stats)
        for pin, space, prompt in self.pins:
            longer = Prompt((*prompt.ids, 8), prompt.media)
            assert self.peeked(space, longer).length >= pin.tokens, "what was pinned is gone"
        for space, layouts in self.given.items():
            self._check_space(space, cache.stats(space), layouts)

    def _check_space(self, space: str, stats: Stats, layouts: dict[str, Given]) -> None:
        most = sum(given.tokens for given in layouts.values())
        assert stats.ntokens <= most, f"{stats.ntokens} tokens of {most}"
        if self.exact(space) and all(given.model.spans for given in layouts.values()):
            assert stats.ntokens == most, f"{stats.ntokens} tokens, not {most}"
        if all(given.model.spans for given in layouts.values()):
            assert stats.checkpoints == 0
        elif all(given.chain for given in layouts.values()) and space not in self.pinned:
            most = self.settings.max_checkpoints * len(layouts)
            assert stats.checkpoints <= most, f"{stats.checkpoints} checkpoints of {most}"

    def close(self) -> None:
        """The end of the world: all comes back, and can be used again."""
        self.settings_end()
        cache = self.cache
        for pin, _, _ in self.pins:
            pin.release()
        self.pins.clear()
        self.loans.clear()
        gc.collect()
        cache.evict(10**9)
        cache.validate()
        assert (cache.nbytes, cache.ntokens, list(stored_arrays(cache))) == (0, 0, [])
        figures = inside.index(cache).stats()
        assert (figures.leased_bytes, figures.reserved_bytes) == (0, 0)
        assert active() == self.base, "memory that does not come back"
        cache.close()

    def settings_end(self) -> None:
        """Nothing measured or disturbed any more."""
        self.armed, self.disturbed = None, False
        inside.limit(self.cache, None)
