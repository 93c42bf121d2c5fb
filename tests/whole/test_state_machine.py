"""Random calls of everything, against a list of what was stored; every returned cache is read back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.support.expectations import LAYOUTS, Books, picks, prompts
from tests.support.full import many
from tests.support.memory import active, charged, charges, weigh
from tests.support.oracle import Prompt
from tests.support.poskv import held, nbytes


class Machine(Books):
    """The calls."""

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
        assert active() - self.base == charged(self.cache) + charges(held(hit.prompt_cache))
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
        content = prompt.content()
        prompt_cache = model.filled(content, chunk)
        key = prompt.ids + (7,) * extra
        ledger = self.cache.nbytes
        stored = self.cache.store(
            key,
            prompt_cache,
            namespace=space,
            media=self.spans(prompt),
            length=len(prompt.ids) if space == "state" else length,
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
        ledger, before = self.cache.nbytes, weigh(self.cache)
        eviction = self.cache.evict(amount)
        self.count(eviction, before)
        assert ledger - self.cache.nbytes == eviction.nbytes
        assert amount or not eviction
        if not self.pins:
            assert eviction.nbytes >= min(amount, ledger)

    @precondition(lambda self: self.young > 10)
    @rule(amount=st.integers(0, 40_000), tokens=st.none() | st.integers(0, 60))
    def trim_to(self, amount: int, tokens: int | None) -> None:
        before = weigh(self.cache)
        self.count(self.cache.trim_to(nbytes=amount, tokens=tokens), before)
        if not self.pins:
            assert self.cache.nbytes <= amount
            assert tokens is None or self.cache.ntokens <= tokens

    @rule(amount=st.integers(0, 30_000), pick=picks, prompt=prompts(), protects=st.booleans())
    def reserve(self, amount: int, pick: int, prompt: Prompt, protects: bool) -> None:
        space = self.space(pick)
        hit = self.cache.peek(prompt.ids, namespace=space, media=self.spans(prompt))
        before = weigh(self.cache)
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
        before = weigh(self.cache)
        self.count(self.cache.evict_idle(seconds), before)

    @precondition(lambda self: self.young > 10)
    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        space = self.space(pick)
        ledger, others = self.cache.stats(space).nbytes, self.cache.nbytes - self.cache.stats(space).nbytes
        before = weigh(self.cache)
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
        ledger, before = self.cache.nbytes, weigh(self.cache)
        eviction = self.cache.clear()
        self.count(eviction, before)
        assert eviction.nbytes == ledger
        assert eviction.cycles == 1
        for space in LAYOUTS:
            self.forget(space)
        assert len(self.cache) == self.cache.ntokens == 0


Machine.TestCase.settings = settings(
    max_examples=many(50, 150),
    stateful_step_count=60,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
)
# Making a failure small takes Hypothesis up to five minutes, on an idle machine.
TestMachine = pytest.mark.timeout(3600)(Machine.TestCase)
