"""Engine threads on one cache: random requests whose content is checked, and what they counted."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.support.models import MODELS, prompt
from tests.support.request_loop import request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache import KVPrefixCache

# One namespace for each kind of tree, and a second one of spans, so that equal tokens lie in two.
SPACES: Final = {"kv": "kv", "kv-again": "kv", "arrays": "arrays", "rotating-keep": "rotating-keep"}
# How often a worker does what.
WEIGHTS: Final = {
    "turn": 24,
    "take": 8,
    "store": 20,
    "session": 6,
    "peek": 12,
    "pin": 6,
    "evict": 6,
    "trim": 5,
    "reserve": 5,
    "stats": 4,
    "idle": 2,
    "validate": 1,
    "drop": 1,
}


class Worker:
    """One engine thread with requests of its own.

    Attributes:
        counted: What the calls said, to compare with the cache's own statistics.
        pins: Pins that are held now.
    """

    def __init__(self, cache: KVPrefixCache, number: int) -> None:
        self.cache = cache
        self.random = Random(number)
        self.models = {space: MODELS[kind]() for space, kind in SPACES.items()}
        self.counted: Counter[str] = Counter()
        self.pins: list[Any] = []

    def work(self, operations: int) -> None:
        """So many random operations; then pins are let go, some by their finalizers only."""
        for action in self.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=operations):
            space = self.random.choice(list(SPACES))
            getattr(self, "_" + action)(space)
            self.counted[action] += 1
        for space in SPACES:
            tokens = self._prompt()
            self.cache.store(tokens, self.models[space].filled(tokens), namespace=space)
            self.pins += [self.cache.pin(tokens, namespace=space) for _ in range(2)]
        for pin in self.pins[::2]:
            pin.release()
        self.pins.clear()

    def _prompt(self) -> list[int]:
        random = self.random
        return prompt(random.randrange(1, 40)) + prompt(random.randrange(1, 12), first=random.randrange(1, 5))

    def _looked_up(self, tokens: Sequence[int], hit: Any) -> None:
        self.counted["lookups"] += 1
        self.counted["hits"] += bool(hit)
        self.counted["lookup_tokens"] += len(tokens)
        self.counted["hit_tokens"] += hit.length

    def _turn(self, space: str, take: bool = False, donate: bool = False) -> None:
        model, tokens = self.models[space], self._prompt()
        hit = self.cache.fetch(tokens, namespace=space, take=take)
        self._looked_up(tokens, hit)
        prompt_cache = hit.prompt_cache or model.make_cache()
        model.check(prompt_cache, tokens[: hit.length])
        model.grow(prompt_cache, hit.remaining)
        self.cache.store(tokens, prompt_cache, namespace=space, donate=donate)

    def _take(self, space: str) -> None:
        self._turn(space, take=True, donate=self.random.random() < 0.7)

    def _store(self, space: str) -> None:
        tokens = self._prompt()
        stored = self.cache.store(tokens, self.models[space].filled(tokens), namespace=space)
        assert stored.reason in ("stored", "already", "truncated", "too_large")

    def _session(self, space: str) -> None:
        tokens = self._prompt()
        session = request(self.cache, self.models[space], tokens, [7, 8], namespace=space)
        self._looked_up(tokens, session.hit)

    def _peek(self, space: str) -> None:
        tokens = self._prompt()
        assert self.cache.peek(tokens, namespace=space).length < len(tokens)

    def _pin(self, space: str) -> None:
        self.pins.append(self.cache.pin(self._prompt(), namespace=space))
        if len(self.pins) > 3:
            pin = self.pins.pop(self.random.randrange(4))
            if self.random.random() < 0.5:  # the others are let go by their finalizer
                pin.release()

    def _evict(self, _: str) -> None:
        self.cache.evict(self.random.randrange(3000))

    def _trim(self, _: str) -> None:
        if self.random.random() < 0.5:
            self.cache.trim_to(nbytes=self.random.randrange(40_000, 90_000))
        else:
            self.cache.trim_to(tokens=self.random.randrange(100, 400))

    def _reserve(self, space: str) -> None:
        protect = self.cache.peek(self._prompt(), namespace=space)
        self.cache.reserve(self.random.randrange(5000), protect=protect)

    def _stats(self, space: str) -> None:
        stats = self.cache.stats(self.random.choice([None, space]))
        assert 0 <= stats.hits <= stats.lookups
        assert 0 <= stats.hit_tokens <= stats.lookup_tokens
        assert len(self.cache) >= 0
        assert self.cache.ntokens >= 0

    def _idle(self, _: str) -> None:
        self.cache.evict_idle(self.random.random())

    def _validate(self, _: str) -> None:
        self.cache.validate()

    def _drop(self, space: str) -> None:
        self.cache.drop(space)
