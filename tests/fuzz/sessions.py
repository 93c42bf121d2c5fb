"""Requests through ``Session``: whole, broken off at any point, with errors that the engine catches."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from tests.fuzz.books import EVICTED, SUMS
from tests.fuzz.disturbances import Disturbed
from tests.fuzz.operations import Operations
from tests.support.oracle import Prompt
from tests.support.poskv import held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fuzz.trie import Given
    from tests.support.poskv import PosKV

_ERRORS: Final[tuple[type[BaseException], ...]] = (ValueError, RuntimeError, KeyboardInterrupt, GeneratorExit)


class HungUp(Exception):
    """What the engine's own code raised in a session."""


class Engine:
    """A model that sees what stands in the prompt's media, as a vision model does."""

    def __init__(self, model: PosKV, content: Sequence[int]) -> None:
        self.model = model
        self.content = content

    def make_cache(self) -> list[Any]:
        return self.model.make_cache()

    def __call__(self, tokens: mx.array, cache: list[Any]) -> None:
        start = self.model.layers[0].length(cache[0])
        self.model.append(cache, self.content[start : start + tokens.size])


class Sessions(Operations):
    """All operations."""

    def session(self) -> None:
        space, random = self.space(), self.random
        prompt = self.prompt(space)
        given = random.choice(list(self.given[space].values()))
        answer = random.choices(self.letters, k=random.randrange(5))
        whole = Prompt((*prompt.ids, *answer), prompt.media)
        if not prompt.ids:
            return  # refused: there is nothing to run
        peeked, ledger = self.peeked(space, prompt), self.cache.nbytes
        # What a fetch or a session's own store may leave behind.
        self.reached = {peeked.length, peeked.checkpoint_at or 0}
        self.ran = given
        take = random.random() < 0.3
        bad = random.choice([None, None, None, random.choice(_ERRORS)])
        session = self.cache.session(
            prompt.ids,
            model=Engine(given.model, whole.content()),
            namespace=space,
            media=self.media(prompt),
            take=take,
            prefill_step_size=random.choice([1, 4, 2048]),
        )
        outcome = "ended"
        try:
            outcome = self.call(lambda: self.request(session, space, prompt, whole, bad))
        finally:
            model, stored = self.ran.model, session.stored
            kept = 0 if stored is None else stored.length
            if model.spans and kept and not self.disturbed:
                self.ran.add(whole.cut(kept))
            elif not model.spans or self.cache.nbytes != ledger:
                for at in {*self.reached, kept}:
                    self.ran.add(whole.cut(at))
                self.lost(space)
            if take and peeked:
                self.lost(space)
            self.rebase("stores", "stored_tokens", "hits", "hit_tokens", *EVICTED)
            self.sync()
        if self.disturbed:
            return
        self.sums.update(lookups=1, lookup_tokens=len(prompt.ids))
        if not peeked:
            self.reasons["misses_by_reason"][peeked.reason] += 1
        self.check_session(session, space, whole, len(prompt.ids), peeked.length, outcome)

    def request(self, session: Any, space: str, prompt: Prompt, whole: Prompt, bad: Any) -> str:
        """The engine's side. Returns how it ended."""
        random = self.random
        breaks = random.randrange(8) if bad else -1
        caught = random.random() < 0.3
        content, total, at, steps = whole.content(), len(prompt.ids), 0, 0

        def trouble(caches: list[Any], model: PosKV) -> None:
            """Raises, sometimes with only the first layers run."""
            nonlocal steps
            steps += 1
            if steps != breaks + 1:
                return
            if not caught and random.random() < 0.5:
                start = model.layers[0].length(caches[0])
                for layer, cache in list(zip(model.layers, caches, strict=True))[: random.randrange(1, 3)]:
                    layer.grow(cache, content[start : start + 1] or [5], start)
            raise bad

        try:
            with session:
                caches, hit = session.prompt_cache, session.hit
                self.ran = self.layout_of(space, caches)
                model = self.ran.model
                at = total - len(session.remaining)
                assert at >= hit.length
                assert list(session.remaining) == list(prompt.ids[at:])
                model.check(caches, content[:at])
                while at < len(content):
                    try:
                        trouble(caches, model)
                    except BaseException:
                        if not caught:
                            raise
                    until = min(at + random.choice([1, 3, 7]), total) if at < total else at + 1
                    model.append(caches, content[at:until])
                    mx.eval(list(held(caches)))
                    at = until
                    self.reached.add(at)
                    if at < total:
                        session.on_progress(at - hit.length, total - hit.length)
                    elif at > total:
                        session.append(whole.ids[at - 1])
        except BaseException as error:
            if bad is None or type(error) is not bad:
                raise
            return "broken off"
        finally:
            # The engine lets go of its caches.
            session.prompt_cache = []
        return "ended"

    def layout_of(self, space: str, caches: list[Any]) -> Given:
        kinds = [type(cache) for cache in caches]
        for given in self.given[space].values():
            if [type(layer) for layer in given.model.make_cache()] == kinds:
                return given
        raise AssertionError(f"no model has layers {kinds}")

    def check_session(
        self, session: Any, space: str, whole: Prompt, prompt_length: int, length: int, outcome: str
    ) -> None:
        assert session.hit.length == length, f"{session.hit.length} fetched, {length} peeked"
        stored = session.stored
        # Without an append nobody says that windows and states have run the last token.
        told = self.ran.model.spans or len(whole.ids) > prompt_length
        if outcome == "ended" and self.settings.unlimited and whole.ids and told:
            end = len(whole.ids)
            counted = stored is not None and (stored.length == end or whole.back(end) != end)
            assert counted, f"{stored} of {end} tokens"
        if stored is None or not stored.length:
            return
        assert stored.length <= len(whole.ids)
        kept = whole.cut(stored.length)
        if stored.reason in ("stored", "already", "truncated"):
            found = self.peeked(space, Prompt((*kept.ids, 8), kept.media)).length
            assert found == stored.length, f"{found} found of {stored.length} stored"
            self.remember(space, kept)

    def step(self) -> str:
        """One operation, disturbed or not. Returns its name."""
        weights = self.settings.weights
        name = self.random.choices(list(weights), list(weights.values()))[0]
        self.arm()
        self.note(name)
        with suppress(Disturbed):
            getattr(self, name)()
        if self.disturbed:
            if name in ("drop", "clear"):
                for pin, _, _ in self.pins:
                    pin.release()
                self.pins.clear()
            self.rebased()
        self.sync()
        self.check()
        return name


__all__ = ["SUMS", "Engine", "Sessions"]
