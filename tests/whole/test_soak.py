"""Two thousand random requests over all kinds of layers under a tight limit: memory stays bounded.

The workload is model-free: chats on shared system prompts, retries, cut-off requests, pictures, and
between them what an engine's housekeeping does. Memory is compared to the byte: with what the device charges
for each array.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final

from kvcache import KVPrefixCache, MediaSpan
from tests.support.memory import active, assert_freed, charged, peak, peak_from_here, spill
from tests.support.models import MODELS, prompt
from tests.support.poskv import held, nbytes

if TYPE_CHECKING:
    from kvcache import Eviction, Pin

REQUESTS: Final = 2000
SEGMENT: Final = 32
LONGEST: Final = 240
PICTURE: Final = 500


class Soak:
    """One cache, and a random engine in front of it.

    Attributes:
        limit: Bytes that the ledger may hold.
        buffers: The most arrays that one model's prompt cache has.
        seen: What happened, by name: a soak that exercises nothing would prove nothing.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.models = {name: make() for name, make in MODELS.items()}
        self.limit = max(model.nbytes(LONGEST) for model in self.models.values())
        self.buffers = max(_arrays(model.filled([1])) for model in self.models.values())
        self.now = 0.0
        self.base = active()
        self.cache = KVPrefixCache(max_bytes=self.limit, segment_tokens=SEGMENT, clock=lambda: self.now)
        self.chats: list[tuple[str, list[int], int | None]] = []
        self.pins: list[tuple[float, Pin]] = []
        self.seen: Counter[str] = Counter()

    def run(self, requests: int) -> None:
        """That many requests, with housekeeping between some of them."""
        for number in range(requests):
            self.now += self.random.random()
            self.request()
            self.housekeeping()
            if number % 100 == 99:
                self.cache.validate()
                assert active() - self.base == charged(self.cache)

    def held(self) -> None:
        """After every call."""
        assert self.cache.nbytes <= self.limit

    def chat(self) -> tuple[str, list[int], int | None]:
        """(model, tokens, where a picture stands): a chat that goes on, or a new one."""
        random = self.random
        if self.chats and random.random() < 0.6:
            at = random.randrange(len(self.chats))
            name, tokens, picture = self.chats.pop(at)
            if len(tokens) < LONGEST - 60:
                return name, tokens + prompt(random.randrange(1, 40), first=random.randrange(1, 9)), picture
        name = random.choice(list(self.models))
        tokens = prompt(random.choice([20, 64, 65, 120])) + prompt(
            random.randrange(1, 40), first=random.randrange(1, 9)
        )
        picture = None
        if random.random() < 0.2:
            picture = random.randrange(len(tokens) - 8)
            tokens[picture : picture + 8] = [PICTURE + random.randrange(3)] * 8
        return name, tokens, picture

    def request(self) -> None:
        """One request from fetch to store; MLX's peak is looked at in each of the two."""
        random, (name, tokens, picture) = self.random, self.chat()
        model, take, donate = self.models[name], random.random() < 0.3, random.random() < 0.3
        media = [] if picture is None else [MediaSpan(picture, 8, f"{tokens[picture]}")]
        buffers = self.cache.stats().buffers
        peak_from_here()
        hit = self.cache.fetch(tokens, namespace=name, media=media, take=take)
        prompt_cache = hit.prompt_cache or model.make_cache()
        # What was taken is in the ledger no more: it counts as the request's own.
        layer = _largest(prompt_cache) if take else 0
        most = self.cache.nbytes + nbytes(prompt_cache) + model.nbytes(SEGMENT) + layer
        assert peak() - self.base <= most + spill(buffers + 2 * _arrays(prompt_cache))
        self.held()
        if hit:
            model.check(prompt_cache, tokens[: hit.length])
        stops = self.stops(hit.checkpoint_at, hit.length, len(tokens), picture)
        done = hit.length
        for stop in stops:
            model.grow(prompt_cache, tokens[done:stop], chunk=random.choice([None, 16]))
            done = stop
            self.store(name, tokens[:done], prompt_cache, media, donate and done == stops[-1])
        self.seen.update({"hit": bool(hit), "take": take and bool(hit), hit.reason: 1})
        del hit, prompt_cache
        if done == len(tokens):
            self.chats.append((name, tokens, picture))
            del self.chats[: max(0, len(self.chats) - 10)]

    def stops(self, wanted: int | None, start: int, end: int, picture: int | None) -> list[int]:
        """Where this prefill stores: where the cache asks for it, now and then half-way, at the end."""
        random, stops = self.random, {end}
        if wanted is not None:
            stops.add(wanted)
        if random.random() < 0.3:
            stops.add(random.randrange(start + 1, end + 1))
        if picture is not None:
            stops = {stop for stop in stops if not picture < stop < picture + 8} or {end}
        if random.random() < 0.1:
            # The client hangs up: what was run up to here is all there is.
            stops = {min(stops)}
        return sorted(stops)

    def store(
        self, name: str, tokens: list[int], prompt_cache: list[Any], media: list[MediaSpan], donate: bool
    ) -> None:
        model, own = self.models[name], nbytes(prompt_cache)
        most = self.cache.nbytes + _largest(prompt_cache) if donate else self.limit
        media = [span for span in media if span.start + span.length <= len(tokens)]
        buffers = self.cache.stats().buffers + _arrays(prompt_cache)
        peak_from_here()
        stored = self.cache.store(
            tokens, prompt_cache, length=len(tokens), namespace=name, media=media, donate=donate
        )
        buffers += self.cache.stats().buffers
        assert peak() - self.base <= most + own + model.nbytes(SEGMENT) + spill(buffers)
        self.held()
        self.seen.update({f"store {stored.reason}": 1, "donate": donate})
        self.count(stored.evicted)

    def count(self, evicted: Eviction) -> None:
        assert_freed(evicted, self.buffers)
        self.seen.update({"evicted": bool(evicted), "cycles": evicted.cycles})

    def housekeeping(self) -> None:
        """What an engine does beside requests, each now and then."""
        random, cache = self.random, self.cache
        due = [pin for end, pin in self.pins if end <= self.now]
        self.pins = [(end, pin) for end, pin in self.pins if end > self.now]
        for pin in due:
            pin.release()
        roll = random.random()
        if roll < 0.04 and self.chats:
            name, tokens, picture = random.choice(self.chats)
            media = [] if picture is None else [MediaSpan(picture, 8, f"{tokens[picture]}")]
            pin = cache.pin(tokens, namespace=name, media=media)
            self.pins.append((self.now + random.randrange(1, 20), pin))
            self.seen["pinned"] += pin.tokens > 0
        elif roll < 0.08:
            self.count(cache.evict(random.randrange(self.limit // 4)))
        elif roll < 0.12:
            self.count(cache.reserve(random.randrange(self.limit)))
        elif roll < 0.14:
            self.count(cache.trim_to(nbytes=self.limit // 2, tokens=1500))
        elif roll < 0.16:
            self.count(cache.evict_idle(60))
        elif roll < 0.165:
            self.count(cache.drop(random.choice(list(self.models))))
        elif roll < 0.166:
            self.count(cache.clear())
        self.held()


def _largest(prompt_cache: list[Any]) -> int:
    return max(nbytes([layer]) for layer in prompt_cache)


def _arrays(prompt_cache: list[Any]) -> int:
    return len(list(held(prompt_cache)))


def test_two_thousand_requests_of_every_kind() -> None:
    soak = Soak(seed=4)
    soak.run(REQUESTS)
    soak.cache.validate()
    assert active() - soak.base == charged(soak.cache)
    assert soak.cache.nbytes > soak.limit // 4
    stats = soak.cache.stats()
    assert stats.reclaim_cycles == soak.seen["cycles"]
    assert (stats.lookups, stats.hits) == (REQUESTS, soak.seen["hit"])
    floors = {
        "hit": 600,
        "take": 150,
        "donate": 400,
        "evicted": 800,
        "pinned": 20,
        "store truncated": 3,
        "store too_large": 3,
    }
    assert {name: soak.seen[name] for name in floors if soak.seen[name] < floors[name]} == {}
    for _, pin in soak.pins:
        pin.release()
    soak.cache.clear()
    assert active() == soak.base
