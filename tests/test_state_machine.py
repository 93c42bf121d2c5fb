"""Random calls of everything, against a list of what was stored; every returned cache is read back."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvcache import Eviction, KVPrefixCache, MediaSpan
from tests.support.faults import contents
from tests.support.layers import KV, Arrays, Chunked, Concatenate, List, Opaque, Quantized, Rotating
from tests.support.memory import active, footprint
from tests.support.oracle import Media, Prompt, Shelf
from tests.support.poskv import PosKV, held, nbytes

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


spaces = st.sampled_from(sorted(LAYOUTS))
picks = st.integers(0, 1)


class Machine(RuleBasedStateMachine):
    """One cache, the shelves that say what it may hand out, and sums of what it said it did."""

    @initialize(
        limit=st.sampled_from([None, None, None, 12_000, 40_000]),
        max_buffers=st.sampled_from([None, None, None, 60]),
        segment_tokens=st.sampled_from([1, 2, 3, 5, 8, 64]),
        max_checkpoints=st.sampled_from([1, 3, 100]),
        policy=st.sampled_from(["always", "auto"]),
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
        policy: Any,
        used: list[str],
    ) -> None:
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
            gc=policy,
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

    # What calls returned -------------------------------------------------------------------------

    def count(self, eviction: Eviction, before: int | None = None) -> None:
        """Adds up, and checks that memory fell by what the ledger says."""
        self.evicted += eviction
        assert eviction.freed == eviction.nbytes
        assert before is None or before - footprint() == eviction.nbytes
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

    # Rules ---------------------------------------------------------------------------------------

    def check_hit(self, hit: Hit, space: str, prompt: Prompt) -> None:
        bounds = [shelf.usable(prompt) for shelf in self.shelves[space].values()]
        least, most, matched = (max(figures) for figures in zip(*bounds, strict=True))
        note(f"{hit.reason} {hit.length} of {least} to {most}, matched {hit.matched}")
        assert 0 <= hit.length <= min(most, max(len(prompt.ids) - 1, 0))
        assert hit.length <= hit.matched <= matched
        if all(shelf.exact for shelf in self.shelves[space].values()):
            assert hit.length >= least
        assert prompt.back(hit.length) == hit.length
        assert list(hit.remaining) == list(prompt.ids[hit.length :])
        assert bool(hit) == (hit.reason == "hit") == (hit.length > 0)
        if hit.checkpoint_at is not None:
            assert hit.length < hit.checkpoint_at <= min(hit.matched, len(prompt.ids) - 1)
            assert prompt.back(hit.checkpoint_at) == hit.checkpoint_at
        if len(prompt.ids) < 2:
            assert hit.reason == "too_short"

    @rule(
        pick=picks,
        prompt=prompts(),
        take=st.booleans(),
        more=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    )
    def fetch(self, pick: int, prompt: Prompt, take: bool, more: list[int]) -> None:
        self.fetch_of(self.space(pick), prompt, take, more)

    def fetch_of(self, space: str, prompt: Prompt, take: bool, more: list[int]) -> None:
        peeked = self.cache.peek(prompt.ids, namespace=space, media=self.spans(prompt))
        ledger = self.cache.nbytes
        given = np.array(prompt.ids, np.int32)
        hit = self.cache.fetch(given, namespace=space, media=self.spans(prompt), take=take)
        self.check_hit(hit, space, prompt)
        assert (hit.length, hit.matched, hit.reason) == (peeked.length, peeked.matched, peeked.reason)
        assert (hit.checkpoint_at, peeked.prompt_cache) == (peeked.checkpoint_at, None)
        self.sums.update(lookups=1, hits=int(bool(hit)), lookup_tokens=len(prompt.ids), hit_tokens=hit.length)
        if not hit:
            self.misses[hit.reason] += 1
            assert hit.prompt_cache is None
            return
        (model,) = (
            model
            for model in LAYOUTS[space].values()
            if [type(layer) for layer in model.make_cache()] == [type(layer) for layer in hit.prompt_cache]
        )
        content = prompt.content()[: hit.length]
        model.check(hit.prompt_cache, content)
        assert active() - self.base == self.cache.nbytes + nbytes(hit.prompt_cache)
        assert nbytes(hit.prompt_cache) == model.roomy(hit.length, len(hit.remaining))
        if not take:
            assert self.cache.nbytes == ledger
        elif self.cache.nbytes < ledger:
            for shelf in self.shelves[space].values():
                shelf.exact = False
        self.unchanged()
        model.grow(hit.prompt_cache, more)
        model.check(hit.prompt_cache, content + more)
        for array in held(hit.prompt_cache):
            array[...] = 0
        self.unchanged()

    @rule(
        pick=picks,
        prompt=prompts(),
        extra=st.integers(0, 2),
        chunk=st.sampled_from([None, 1, 4]),
        data=st.data(),
    )
    def store(self, pick: int, prompt: Prompt, extra: int, chunk: int | None, data: st.DataObject) -> None:
        self.store_of(self.space(pick), prompt, extra, chunk, data)

    def store_of(
        self, space: str, prompt: Prompt, extra: int, chunk: int | None, data: st.DataObject
    ) -> None:
        name = data.draw(st.sampled_from(sorted(LAYOUTS[space])))
        model, donate = LAYOUTS[space][name], data.draw(st.booleans())
        if model.spans and prompt.ids:
            length = data.draw(st.none() | st.integers(1, len(prompt.ids)))
        else:
            length = None
        if space == "state":
            extra = 0  # such a key must be exactly what was run
        content = prompt.content()
        prompt_cache = model.filled(content, chunk)
        key = prompt.ids + (7,) * extra
        ledger = self.cache.nbytes
        stored = self.cache.store(
            key,
            prompt_cache,
            namespace=space,
            media=self.spans(prompt),
            length=length,
            label=name,
            donate=donate,
        )
        self.count(stored.evicted)
        self.sums.update(stores=1, stored_tokens=stored.new_tokens)
        if stored.reason not in ("stored", "already"):
            self.refusals[stored.reason] += 1
        self.check_stored(stored, space, name, prompt, length, ledger)
        if not donate or stored.reason not in ("stored", "already", "truncated"):
            model.check(prompt_cache, content)
        elif stored.length and space in ("text", "window"):
            model.check(prompt_cache, [])

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

    @precondition(lambda self: any(self.known.values()))
    @rule(data=st.data(), take=st.booleans())
    def fetch_again(self, data: st.DataObject, take: bool) -> None:
        """What was stored, or less of it, with something else behind."""
        space, prompt = self.drawn(data)
        self.fetch_of(space, prompt, take, [5])

    @precondition(lambda self: any(self.known.values()))
    @rule(data=st.data())
    def store_longer(self, data: st.DataObject) -> None:
        """The next turn of a chat."""
        space, prompt = self.drawn(data)
        self.store_of(space, prompt, 0, None, data)

    def drawn(self, data: st.DataObject) -> tuple[str, Prompt]:
        space = data.draw(st.sampled_from(sorted(space for space in self.known if self.known[space])))
        prompt = data.draw(st.sampled_from(self.known[space]))
        kept = prompt.cut(data.draw(st.integers(0, 3).map(lambda less: max(0, len(prompt.ids) - less))))
        tail = tuple(data.draw(st.lists(st.integers(0, 3), max_size=4)))
        return space, Prompt(kept.ids + tail, kept.media)

    @rule(pick=picks, prompt=prompts())
    def peek(self, pick: int, prompt: Prompt) -> None:
        space = self.space(pick)
        self.check_hit(self.cache.peek(prompt.ids, namespace=space, media=self.spans(prompt)), space, prompt)

    @precondition(lambda self: self.young > 4)
    @rule(amount=st.integers(0, 4000))
    def evict(self, amount: int) -> None:
        ledger, before = self.cache.nbytes, footprint()
        eviction = self.cache.evict(amount)
        self.count(eviction, before)
        assert ledger - self.cache.nbytes == eviction.nbytes
        assert amount or not eviction
        if not self.pins:
            assert eviction.nbytes >= min(amount, ledger)

    @precondition(lambda self: self.young > 10)
    @rule(amount=st.integers(0, 40_000), tokens=st.none() | st.integers(0, 60))
    def trim_to(self, amount: int, tokens: int | None) -> None:
        before = footprint()
        self.count(self.cache.trim_to(nbytes=amount, tokens=tokens), before)
        if not self.pins:
            assert self.cache.nbytes <= amount
            assert tokens is None or self.cache.ntokens <= tokens

    @rule(amount=st.integers(0, 30_000), pick=picks, prompt=prompts(), protects=st.booleans())
    def reserve(self, amount: int, pick: int, prompt: Prompt, protects: bool) -> None:
        space = self.space(pick)
        hit = self.cache.peek(prompt.ids, namespace=space, media=self.spans(prompt))
        before = footprint()
        eviction = self.cache.reserve(amount, protect=hit if protects else None)
        self.count(eviction, before)
        if self.limit is None:
            assert not eviction
        elif eviction:
            assert self.cache.nbytes + amount <= self.limit
        if protects:
            assert self.cache.peek(prompt.ids, namespace=space, media=self.spans(prompt)).length >= hit.length

    @rule(pick=picks, prompt=prompts())
    def pin(self, pick: int, prompt: Prompt) -> None:
        space = self.space(pick)
        pin = self.cache.pin(prompt.ids, namespace=space, media=self.spans(prompt))
        longer = Prompt((*prompt.ids, 8), prompt.media)
        assert pin.tokens == self.cache.peek(longer.ids, namespace=space, media=self.spans(longer)).length
        self.pins.append((pin, space, prompt))

    @precondition(lambda self: self.pins)
    @rule(data=st.data(), how=st.sampled_from(["release", "twice", "forget", "with"]))
    def release(self, data: st.DataObject, how: str) -> None:
        ledger = self.cache.nbytes
        pin, space, _ = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
        if how == "with":
            with pin:
                pass
        elif how != "forget":
            pin.release()
            if how == "twice":
                pin.release()
        del pin
        if self.cache.nbytes < ledger:
            for shelf in self.shelves[space].values():
                shelf.exact = False

    @rule(seconds=st.sampled_from([0.0, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.young > 8)
    @rule(seconds=st.sampled_from([0.0, 5.0, 100.0]))
    def evict_idle(self, seconds: float) -> None:
        before = footprint()
        self.count(self.cache.evict_idle(seconds), before)

    @precondition(lambda self: self.young > 10)
    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        space = self.space(pick)
        ledger, others = self.cache.stats(space).nbytes, self.cache.nbytes - self.cache.stats(space).nbytes
        before = footprint()
        eviction = self.cache.drop(space)
        exact = {id(shelf): shelf.exact for shelf in self.all_shelves()}
        self.count(eviction, before)
        for shelf in self.all_shelves():
            shelf.exact = exact[id(shelf)]
        assert (eviction.nbytes, self.cache.nbytes) == (ledger, others)
        self.forget(space)

    @precondition(lambda self: self.young > 12)
    @rule()
    def clear(self) -> None:
        ledger, before = self.cache.nbytes, footprint()
        eviction = self.cache.clear()
        self.count(eviction, before)
        assert eviction.nbytes == ledger
        assert eviction.cycles == 1
        for space in LAYOUTS:
            self.forget(space)
        assert len(self.cache) == self.cache.ntokens == 0

    # Invariants ----------------------------------------------------------------------------------

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "cache"):
            return
        cache = self.cache
        cache.validate()
        stats = cache.stats()
        assert self.limit is None or cache.nbytes <= self.limit
        assert self.max_buffers is None or stats.buffers <= self.max_buffers
        assert active() - self.base == cache.nbytes
        for pin, space, prompt in self.pins:
            longer = self.cache.peek((*prompt.ids, 8), namespace=space, media=self.spans(prompt))
            # What is stored beside a window that is trimmed may match further, and be of no use.
            assert (longer.matched if space == "window" else longer.length) >= pin.tokens

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


Machine.TestCase.settings = settings(max_examples=250, stateful_step_count=60)
TestMachine = Machine.TestCase
