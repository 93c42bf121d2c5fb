"""Random calls, the same ones on every rank.

In a rough run bytes, limits, pressure, clocks and failures differ. In a calm run there are none, and a
cache of one process that holds the layers of all ranks makes the same calls beside them: it must come
to the same lengths, reasons and index.
"""

from __future__ import annotations

import random
import time
import zlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
import numpy as np

from kvcache import (
    AllocationError,
    Eviction,
    KVPrefixCache,
    MediaSpan,
    RankError,
    TokenError,
)
from tests.ranks.faulty import Pressure, SourceError, failing
from tests.ranks.shapes import models, random_prompt
from tests.support import inside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcache import Hit, Pin, Stored
    from tests.support.oracle import Prompt
    from tests.support.poskv import PosKV

# What differs between ranks, by rank.
LIMITS: Final = (
    {"max_bytes": 50_000},
    {"max_bytes": 90_000, "memory_limit": 500_000},
    {"max_buffers": 160},
    {"max_bytes": 400_000, "max_buffers": 500},
)
WEIGHTS: Final = {
    "store": 26,
    "donate": 8,
    "fetch": 18,
    "take": 5,
    "peek": 5,
    "session": 10,
    "reserve": 4,
    "evict": 3,
    "trim_to": 2,
    "evict_idle": 2,
    "pin": 4,
    "release": 5,
    "drop": 0.5,
    "clear": 0.2,
    "bad_tokens": 1.5,
}
EXPECTED: Final = (AllocationError, RankError, SourceError, TokenError)


class EngineError(Exception):
    """The engine's own."""


def run(group: Any, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``options["runs"]``: the number of operations, the seed and whether it is calm, of each run."""
    return [_run(group, **each) for each in options["runs"]]


def _run(group: Any, operations: int, seed: int, calm: bool) -> dict[str, Any]:
    calls = Calls(seed, group, calm=calm)
    alone = Calls(seed, None, calm=calm, ranks=group.size()) if calm else None
    began = time.perf_counter()
    records, strays = [], []
    for number in range(operations):
        records.append(calls.one(number))
        if alone is not None:
            expected = alone.one(number)
            # All but the last, the number of collectives.
            if records[-1][:-1] != expected[:-1]:
                strays.append([number, records[-1], expected])
    cache = calls.cache
    return {
        "records": records,
        "strays": strays,
        "outline": inside.index(cache).outline(),
        "collectives": inside.ranks(cache).collectives,
        "seconds": time.perf_counter() - began,
        "freed": cache.stats().evicted_bytes,
    }


def units(eviction: Eviction) -> list[int]:
    return [eviction.segments, eviction.checkpoints, eviction.tokens, eviction.cycles]


def found(hit: Hit) -> list[Any]:
    return [hit.reason, hit.length, hit.matched, hit.checkpoint_at, len(hit.remaining)]


def kept(stored: Stored | None) -> list[Any]:
    if stored is None:
        return []
    return [stored.reason, stored.length, stored.new_tokens, *units(stored.evicted)]


class Calls:
    """One cache, and what was called on it. ``choose`` draws alike on all ranks, ``own`` does not.

    Args:
        seed: Of all that is drawn.
        group: The ranks; None: one process that stands for all of them.
        calm: Nothing fails, and nothing is short.
        ranks: How many it stands for.
    """

    def __init__(self, seed: int, group: Any, *, calm: bool, ranks: int = 0) -> None:
        self.seed, self.calm = seed, calm
        self.rank, self.size = (0, ranks) if group is None else (group.rank(), group.size())
        self.broken = range(self.size) if group is None else [self.rank]
        self.own = random.Random(f"{seed} of all" if calm else f"{seed} of rank {self.rank}")
        self.models = models(range(ranks) if group is None else [self.rank])
        self.now = 1000.0 if calm else 1000.0 * self.rank
        self.pressure = Pressure(self.own)
        limits: dict[str, Any] = {} if calm else dict(LIMITS[self.rank])
        if "memory_limit" in limits:
            limits["memory_limit"] += mx.get_active_memory()
        self.cache = KVPrefixCache(
            group=group,
            segment_tokens=5,
            max_checkpoints=3,
            clock=lambda: self.now,
            pressure=None if calm else self.pressure,
            **limits,
        )
        self.pins: list[Pin] = []

    def one(self, number: int) -> list[Any]:
        """What must be equal on all ranks of the call with this number."""
        # Drawn anew for each call: no rank can get out of step with the others' draws.
        self.choose = random.Random(f"{self.seed} {number}")
        self.now += self.own.random() * 3
        name = self.choose.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        # Two at a time: more would share no prefixes before they are evicted.
        self.space = self.choose.choice(
            random.Random(f"{self.seed} {number // 40} spaces").sample(sorted(self.models), 2)
        )
        self.model: PosKV = self.choose.choice(self.models[self.space])
        self.prompt = random_prompt(self.choose, media=name != "session")
        self.media = [MediaSpan(span.start, span.length, span.picture) for span in self.prompt.media]
        # At the very end of a session one rank alone may fail: nobody waits for anybody there. It then
        # has an error of its own, and does not learn of another rank's.
        one_fails = name == "session" and self.choose.random() < 0.1
        whose = self.choose.randrange(self.size)
        self.ends_badly = one_fails and (self.calm or whose == self.rank)
        faulty = not self.calm and not one_fails and self.own.random() < 0.04
        before = inside.ranks(self.cache).collectives
        try:
            with failing(self.own.randint(1, 4), self.own.choice((1, 100))) if faulty else nullcontext():
                self.pressure.awake = not one_fails
                outcome = getattr(self, name)()
        except EXPECTED:
            outcome = ["failed"]
        except BaseException as error:
            error.add_note(f"rank {self.rank}, call {number}: {name} in {self.space} for {self.prompt}")
            raise
        finally:
            self.pressure.awake = False
        cache = self.cache
        cache.validate()
        figures = cache.stats()
        spent = inside.ranks(cache).collectives - before
        shape = zlib.crc32("\n".join(inside.index(cache).outline()).encode())
        held = [len(cache), cache.ntokens, figures.segments, figures.checkpoints]
        return [name, self.space, outcome, held, shape, spent]

    def where(self, prompt: Prompt | None = None) -> dict[str, Any]:
        return {"namespace": self.space, "media": self.media if prompt is None else ()}

    def check(self, prompt_cache: list[Any] | None, length: int, *, grow: bool = True) -> None:
        """The layers hold exactly so many tokens; growing them changes nothing that is stored."""
        if prompt_cache is None:
            return
        kinds = [type(layer) for layer in prompt_cache]
        fitting = (
            model
            for model in self.models[self.space]
            if [type(layer) for layer in model.make_cache()] == kinds
        )
        content, model = self.prompt.content()[:length], next(fitting)
        model.check(prompt_cache, content)
        if grow:
            model.grow(prompt_cache, [9, 9])
            model.check(prompt_cache, [*content, 9, 9])

    # Calls ---------------------------------------------------------------------------------------

    def store(self, donate: bool = False) -> list[Any]:
        prompt_cache = self.model.filled(self.prompt.content(), self.choose.choice((None, 4)))
        # A key may be longer than what was run, and spans may be cut.
        extra, cut = self.choose.choice((0, 0, 2)), self.choose.random() < 0.2
        length = self.choose.randint(0, len(self.prompt.ids)) if cut and self.space == "spans" else None
        key = [*self.prompt.ids, *[7] * extra]
        label = self.choose.choice(("", "user"))
        stored = self.cache.store(
            key, prompt_cache, length=length, label=label, donate=donate, **self.where()
        )
        return kept(stored)

    def donate(self) -> list[Any]:
        return self.store(donate=True)

    def fetch(self, take: bool = False) -> list[Any]:
        tokens = np.array(self.prompt.ids, np.int32)
        hit = self.cache.fetch(tokens, take=take, **self.where())
        self.check(hit.prompt_cache, hit.length)
        return found(hit)

    def take(self) -> list[Any]:
        return self.fetch(take=True)

    def peek(self) -> list[Any]:
        return found(self.cache.peek(self.prompt.ids, **self.where()))

    def session(self) -> list[Any]:
        ids, model = list(self.prompt.ids), self.models[self.space][0]
        stop_at = self.choose.choice((None, None, None, 1, 2))
        session = self.cache.session(
            ids, model=model, namespace=self.space, prefill_step_size=4, take=self.choose.random() < 0.2
        )
        try:
            with session:
                rest = list(session.remaining)
                # Further than the hit where the session ran up to a checkpoint itself.
                self.check(session.prompt_cache, len(ids) - len(rest), grow=False)
                for number, start in enumerate(range(0, len(rest) - 1, 4)):
                    if number == stop_at:
                        raise EngineError
                    chunk = rest[start : min(start + 4, len(rest) - 1)]
                    model.grow(session.prompt_cache, chunk)
                    session.on_progress(start + len(chunk), len(rest))
                model.grow(session.prompt_cache, rest[-1:])
                for token in range(self.choose.randint(0, 3)):
                    model.grow(session.prompt_cache, [token])
                    session.append(token)
                if self.ends_badly:
                    raise EngineError
        except EngineError:
            pass
        return [found(session.hit), kept(session.stored)]

    def reserve(self) -> list[Any]:
        hit = self.cache.peek(self.prompt.ids, **self.where())
        nbytes = self.own.randint(0, 60_000)
        protect = hit if self.choose.random() < 0.5 else None
        return units(self.cache.reserve(nbytes, protect=protect))

    def evict(self) -> list[Any]:
        if self.calm:
            return units(self.cache.evict(0))
        return units(self.cache.evict(self.own.randint(0, 8000)))

    def trim_to(self) -> list[Any]:
        tokens = self.choose.choice((None, 150))
        nbytes = None if self.calm else self.own.randint(20_000, 100_000)
        # A limit that never binds: without any the call is refused.
        return units(self.cache.trim_to(nbytes=nbytes, tokens=tokens, sequences=10_000))

    def evict_idle(self) -> list[Any]:
        return units(self.cache.evict_idle(self.choose.choice((20.0, 60.0, 200.0))))

    def pin(self) -> list[Any]:
        self.pins.append(self.cache.pin(self.prompt.ids, **self.where()))
        return [self.pins[-1].tokens]

    def release(self) -> list[Any]:
        if self.pins:
            self.pins.pop(self.choose.randrange(len(self.pins))).release()
        return []

    def drop(self) -> list[Any]:
        return units(self.cache.drop(self.space))

    def clear(self) -> list[Any]:
        return units(self.cache.clear())

    def bad_tokens(self) -> list[Any]:
        """One rank is given what is no token; the call is another each time."""
        tokens: Any = np.array([1, 2, 3], np.int32)
        if self.choose.randrange(self.size) in self.broken:
            tokens[2] = -1
        call = self.choose.choice(("fetch", "peek", "pin", "store", "session"))
        if call == "store":
            self.cache.store(tokens, self.model.filled([1, 2, 3]), namespace=self.space)
        elif call == "session":
            with self.cache.session(tokens, model=self.model, namespace=self.space):
                pass
        else:
            getattr(self.cache, call)(tokens, namespace=self.space)
        raise AssertionError(f"{call} took {tokens}")
