"""The operations of a world, each with what must hold after it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
import numpy as np

from tests.fuzz.books import EVICTED, SUMS, Books
from tests.fuzz.disturbances import Disturbed
from tests.support import inside
from tests.support.inside import stored_arrays
from tests.support.memory import active, charged, charges
from tests.support.oracle import Prompt
from tests.support.poskv import held, nbytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache import Eviction, Hit, Stored
    from tests.fuzz.trie import Given

_KINDS: Final[tuple[Callable[[tuple[int, ...]], Any], ...]] = (
    list,
    tuple,
    lambda ids: np.array(ids, np.int32),
    lambda ids: np.array(ids, np.int64)[None],
    lambda ids: array("i", ids),
    lambda ids: mx.array(ids, mx.int32),
)
_LOANS: Final = 2


class Operations(Books):
    """What an engine calls."""

    def fetch(self) -> None:
        space = self.space()
        self.use(space, self.fetch_of(space, self.prompt(space), take=False))

    def take(self) -> None:
        space = self.space()
        self.use(space, self.fetch_of(space, self.prompt(space), take=True))

    def fetch_of(self, space: str, prompt: Prompt, *, take: bool) -> tuple[Prompt, Hit, Given | None]:
        """A fetch with all that can be said about its answer."""
        peeked, ledger = self.peeked(space, prompt), self.cache.nbytes
        alone = [given.alone(prompt, peeked.length) for given in self.given[space].values()]
        tokens = self.random.choice(_KINDS)(prompt.ids)
        try:
            hit = self.call(
                lambda: self.cache.fetch(tokens, namespace=space, media=self.media(prompt), take=take)
            )
        finally:
            if take and self.cache.nbytes != ledger:
                self.lost(space)
        self.check_hit(space, prompt, peeked)
        self.sums.update(lookups=1, hits=int(bool(hit)), lookup_tokens=len(prompt.ids), hit_tokens=hit.length)
        if not hit:
            self.reasons["misses_by_reason"][hit.reason] += 1
        assert (hit.length, hit.matched, hit.reason) == (peeked.length, peeked.matched, peeked.reason)
        assert (hit.checkpoint_at, peeked.prompt_cache) == (peeked.checkpoint_at, None)
        assert np.array(hit.remaining).reshape(-1).tolist() == list(prompt.ids[hit.length :])
        if not (self.settings.measured or self.disturbed):
            assert take or self.cache.nbytes == ledger
            if take and hit and all(alone) and not self.pins:
                assert self.cache.nbytes < ledger, "what was taken is still there"
        if self.settings.measured or self.disturbed:
            self.rebase(*EVICTED)
        self.sync()
        if not hit:
            assert hit.prompt_cache is None
            return prompt, hit, None
        (given,) = (
            given
            for given in self.given[space].values()
            if [type(layer) for layer in given.model.make_cache()]
            == [type(layer) for layer in hit.prompt_cache]
        )
        self.check_handed_out(hit, given, prompt, take=take)
        return prompt, hit, given

    def check_hit(self, space: str, prompt: Prompt, hit: Hit) -> None:
        """At most what the list of all stored prompts allows; just that where nothing was dropped."""
        bounds = [given.shelf.usable(prompt) for given in self.given[space].values()]
        longest, matched = (max(figures) for figures in zip(*bounds, strict=True))
        assert 0 <= hit.length <= min(longest, max(len(prompt.ids) - 1, 0)), f"{hit.length} of {longest}"
        assert hit.length <= hit.matched <= matched, f"matched {hit.matched} of {matched}"
        assert not self.exact(space) or hit.length == longest, f"{hit.length}, not {longest}"
        assert prompt.back(hit.length) == hit.length
        assert bool(hit) == (hit.reason == "hit") == (hit.length > 0)
        if hit.checkpoint_at is not None:
            assert hit.length < hit.checkpoint_at <= min(hit.matched, len(prompt.ids) - 1)
            assert prompt.back(hit.checkpoint_at) == hit.checkpoint_at
        assert (len(prompt.ids) < 2) == (hit.reason == "too_short")

    def check_handed_out(self, hit: Hit, given: Given, prompt: Prompt, *, take: bool) -> None:
        given.model.check(hit.prompt_cache, prompt.content()[: hit.length])
        arrays = list(held(hit.prompt_cache))
        stored = {id(each) for each in stored_arrays(self.cache)}
        assert not any(id(each) in stored for each in arrays), "a stored array was handed out"
        lent = sum(charges(held(caches)) for _, caches, _ in self.loans)
        # Tokens in an array of MLX's are in its memory too.
        if not isinstance(hit.tokens, mx.array):
            assert active() - self.base == charged(self.cache) + charges(arrays) + lent, "buffers are shared"
        if not take:
            assert nbytes(hit.prompt_cache) == given.model.roomy(hit.length, len(prompt.ids) - hit.length)

    def use(self, space: str, fetched: tuple[Prompt, Hit, Given | None]) -> None:
        """Grows what was handed out, spoils it, or keeps it for a while."""
        prompt, hit, given = fetched
        if given is None:
            return
        content, more = prompt.content()[: hit.length], [9, 8]
        given.model.grow(hit.prompt_cache, more)
        given.model.check(hit.prompt_cache, content + more)
        if len(self.loans) < _LOANS and self.random.random() < 0.2:
            self.loans.append((given.model, hit.prompt_cache, content + more))
            return
        for each in held(hit.prompt_cache):
            each[...] = 0

    def peek(self) -> None:
        space = self.space()
        prompt = self.prompt(space)
        ledger = self.cache.nbytes
        hit = self.call(lambda: self.peeked(space, prompt))
        self.check_hit(space, prompt, hit)
        assert self.disturbed or self.cache.nbytes == ledger

    def store(self) -> None:
        space = self.space()
        prompt, random = self.prompt(space), self.random
        given = random.choice(list(self.given[space].values()))
        caches = given.model.filled(prompt.content(), random.choice([None, None, 1, 4]))
        cuttable = given.model.spans and prompt.ids and random.random() < 0.3
        length = random.randint(1, len(prompt.ids)) if cuttable else None
        self.store_of(space, given, prompt, caches, length, donate=random.random() < 0.3)

    def store_of(
        self, space: str, given: Given, prompt: Prompt, caches: list[Any], length: int | None, *, donate: bool
    ) -> Stored:
        """A store with all that can be said about its answer; ``caches`` ran all of the prompt."""
        asked = len(prompt.ids) if length is None else length
        told = len(prompt.ids) if space == "state-only" else length
        key = prompt.ids + (7,) * self.random.choice([0, 0, 1, 2])
        before = self.cache.stats()
        exact, tree = self.exact(space), given.tokens
        try:
            stored = self.call(
                lambda: self.cache.store(
                    key, caches, namespace=space, media=self.media(prompt), length=told, donate=donate
                )
            )
        except Disturbed as error:
            after = self.cache.stats()
            if error.evicted is not None and not donate:
                left = after.nbytes - (before.nbytes - error.evicted)
                assert left == 0, "a store that failed left something"
            if (after.nbytes, after.evictions) != (before.nbytes, before.evictions):
                given.add(prompt.cut(prompt.back(asked)))
                self.lost()
            raise
        over = inside.memory_limit(self.cache)
        if over is not None and stored.new_tokens and not donate:
            assert mx.get_active_memory() <= over, "memory_limit was passed"
        self.sums.update(stores=1, stored_tokens=stored.new_tokens)
        if stored.reason not in ("stored", "already"):
            self.reasons["refused_by_reason"][stored.reason] += 1
        self.check_stored(space, given, prompt, asked, stored, before.nbytes)
        self.count(stored.evicted)
        if exact and self.exact(space) and given.model.spans:
            assert stored.new_tokens == given.tokens - tree, "tokens were copied that were held, or too few"
        if not donate or stored.reason not in ("stored", "already", "truncated"):
            given.model.check(caches, prompt.content())
        elif stored.length and given.model.spans:
            given.model.check(caches, [])
        return stored

    def check_stored(
        self, space: str, given: Given, prompt: Prompt, asked: int, stored: Stored, ledger: int
    ) -> None:
        model = given.model
        if not prompt.ids:
            assert stored.reason in ("empty", "unknown_length"), stored
            return
        assert stored.reason in ("stored", "already", "truncated", "too_large"), stored
        assert 0 <= stored.new_tokens <= stored.length <= asked
        assert stored.length == asked or stored.reason not in ("stored", "already")
        if self.settings.unlimited and prompt.back(asked) == asked and not self.disturbed:
            assert stored.reason in ("stored", "already"), stored
        added = self.cache.nbytes - ledger + stored.evicted.nbytes
        if model.spans or (self.settings.max_checkpoints == 100 and not stored.evicted):
            assert added == stored.nbytes or self.disturbed, f"{added} bytes more, {stored.nbytes} were said"
        else:
            # Checkpoints thinned out, and KV that was kept for the store only, go without notice.
            assert added <= stored.nbytes
            given.lost()
        if stored.length == 0 or (stored.reason == "too_large" and not model.spans):
            return
        kept = prompt.cut(stored.length)
        given.add(kept)
        self.remember(space, kept)
        assert self.peeked(space, Prompt((*kept.ids, 8), kept.media)).length == stored.length

    def chat(self) -> None:
        """A turn: fetch, run the rest, answer, store."""
        space, random = self.space(), self.random
        prompt = self.prompt(space)
        _, hit, given = self.fetch_of(space, prompt, take=random.random() < 0.3)
        if given is None:
            given = random.choice(list(self.given[space].values()))
        caches = hit.prompt_cache or given.model.make_cache()
        answered = Prompt(
            prompt.ids + tuple(random.choices(self.letters, k=random.randrange(5))), prompt.media
        )
        content, start = answered.content(), hit.length
        del hit
        if start < len(prompt.ids) and random.random() < 0.3:
            given.model.grow(caches, content[start : len(prompt.ids)], random.choice([None, 3]))
            self.store_of(space, given, prompt, caches, None, donate=False)
            start = len(prompt.ids)
        given.model.grow(caches, content[start:], random.choice([None, 1, 8]))
        self.store_of(space, given, answered, caches, None, donate=random.random() < 0.4)
        del caches

    def pin(self) -> None:
        space = self.space()
        prompt = self.prompt(space)
        expected = self.peeked(space, Prompt((*prompt.ids, 8), prompt.media)).length
        pin = self.call(lambda: self.cache.pin(prompt.ids, namespace=space, media=self.media(prompt)))
        if not self.disturbed:
            assert pin.tokens == expected, f"{pin.tokens} pinned, not {expected}"
        self.pins.append((pin, space, prompt))
        self.pinned.add(space)

    def unpin(self) -> None:
        if not self.pins:
            return
        ledger = self.cache.nbytes
        pin, space, _ = self.pins.pop(self.random.randrange(len(self.pins)))
        try:
            if self.random.random() < 0.7:
                self.call(pin.release)
                pin.release()
        finally:
            pin.release() if self.disturbed else None
            del pin
            if self.cache.nbytes != ledger:
                self.lost(space)

    def evicting(self, call: Callable[[], Eviction]) -> tuple[Eviction, int]:
        """What was evicted, and the bytes held before. The ledger says the same."""
        ledger = self.cache.nbytes
        try:
            eviction = self.call(call)
        finally:
            if self.cache.nbytes != ledger:
                self.lost()
        self.count(eviction)
        assert self.disturbed or ledger - self.cache.nbytes == eviction.nbytes
        return eviction, ledger

    def evict(self) -> None:
        held_now = self.cache.nbytes
        amount = self.random.choice([0, 1, self.random.randrange(held_now + 1), self.random.randrange(4000)])
        eviction, ledger = self.evicting(lambda: self.cache.evict(amount))
        assert amount or not eviction
        if not self.pins and not self.disturbed:
            assert eviction.nbytes >= min(amount, ledger), f"{eviction.nbytes} of {amount}"
        if self.settings.spans and not self.disturbed:
            models = [given.model for layouts in self.given.values() for given in layouts.values()]
            unit = max(model.nbytes(min(self.settings.segment_tokens, 1000)) for model in models)
            assert eviction.nbytes < amount + unit or not eviction, "more than the smallest run"

    def trim_to(self) -> None:
        amount = self.random.randrange(self.cache.nbytes + 2)
        tokens = self.random.choice([None, self.random.randrange(self.cache.ntokens + 2)])
        self.evicting(lambda: self.cache.trim_to(nbytes=amount, tokens=tokens))
        if not self.pins and not self.disturbed:
            assert self.cache.nbytes <= amount
            assert tokens is None or self.cache.ntokens <= tokens

    def reserve(self) -> None:
        space = self.space()
        prompt = self.prompt(space)
        hit = self.random.choice([None, self.peeked(space, prompt)])
        amount = self.random.randrange(30_000)
        eviction, _ = self.evicting(lambda: self.cache.reserve(amount, protect=hit))
        if self.settings.unlimited and not self.disturbed:
            assert not eviction
        if eviction and self.limit is not None and not self.settings.measured:
            assert self.cache.nbytes + amount <= self.limit or self.disturbed
        if hit is not None and not self.disturbed:
            assert self.peeked(space, prompt).length >= hit.length, "what was protected is gone"

    def evict_idle(self) -> None:
        seconds = self.random.choice([0.0, 5.0, 50.0])
        self.evicting(lambda: self.cache.evict_idle(seconds))
        if seconds == 0 and not self.pins and not self.disturbed:
            assert self.cache.nbytes == 0

    def drop(self) -> None:
        space = self.space()
        own, others = (
            self.cache.stats(space).nbytes,
            {name: self.cache.stats(name).nbytes for name in self.settings.spaces if name != space},
        )
        exact = {name: self.exact(name) for name in others}
        eviction, _ = self.evicting(lambda: self.cache.drop(space))
        if self.disturbed:
            return
        assert eviction.nbytes == own
        assert {name: self.cache.stats(name).nbytes for name in others} == others
        for name, was in exact.items():
            for given in self.given[name].values():
                given.shelf.exact = was
        self.forget(space)

    def clear(self) -> None:
        eviction, ledger = self.evicting(self.cache.clear)
        if self.disturbed:
            return
        assert eviction.nbytes == ledger
        assert eviction.cycles == 1
        for space in self.given:
            self.forget(space)
        assert len(self.cache) == self.cache.ntokens == 0

    def wait(self) -> None:
        """Time goes by, and what was kept for a while is looked at and let go."""
        self.now += self.random.choice([0.5, 1, 10])
        for model, caches, content in self.loans:
            model.check(caches, content)
        self.loans.clear()

    def rebased(self) -> None:
        """After what was disturbed counters are taken as they are."""
        self.rebase(*SUMS, *EVICTED)
        self.sync()
