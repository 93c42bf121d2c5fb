"""One cache on every rank, what was called on it, and what came of each call."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from kvcache import Eviction, Hit, KVPrefixCache, Pin, Session, Stored
from tests.support import inside
from tests.support.layers import KV
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable

A, B = list(range(20)), [*range(10), *range(50, 60)]


class Trial:
    """Calls on a cache of which one rank is broken.

    Args:
        group: The ranks.
        broken: The rank on which things go wrong.
        model: This rank's layers; spans of other widths on each rank unless given.
        settings: Of the cache.
    """

    def __init__(self, group: Any, broken: int, model: PosKV | None = None, **settings: Any) -> None:
        self.rank = group.rank()
        self.here = self.rank == broken
        self.model = model or PosKV(*(KV(heads=1 + self.rank) for _ in range(1 + self.rank)))
        self.cache = KVPrefixCache(group=group, **({"segment_tokens": 8} | settings))
        self.steps: list[dict[str, Any]] = []
        # Cleared where this scenario has made the indexes differ.
        self.alike = True

    def call(
        self,
        name: str,
        action: Callable[[], Any],
        *,
        raises: tuple[str, str] = ("", ""),
        changes: bool = True,
    ) -> Any:
        """Calls, and notes what came of it.

        Args:
            name: For the reader.
            action: The call.
            raises: The exception that the broken rank has to raise, and the others.
            changes: Whether the index may be another one afterwards.
        """
        ranks = inside.ranks(self.cache)
        spent, shape = ranks.collectives, self.shape()
        error, text, result = "", "", None
        try:
            result = action()
        except Exception as raised:  # noqa: BLE001 - compared with what it has to be
            error, text = type(raised).__name__, str(raised)
        step = {
            "name": name,
            "error": error,
            "text": text,
            "expected": raises[0 if self.here else 1],
            "result": _told(result, self.alike),
            "spent": ranks.collectives - spent,
            "shape": self.shape() if self.alike else None,
            "kept": changes or self.shape() == shape,
        }
        self.steps.append(step)
        if not inside.closed(self.cache):
            self.cache.validate()
        return result

    def shape(self) -> int:
        return zlib.crc32("\n".join(inside.index(self.cache).outline()).encode())

    def behind(self, change: Callable[[Any], Any]) -> None:
        """Changes the index of the broken rank alone, as only a defect would."""
        self.alike = False
        if self.here:
            contents = inside.contents(self.cache)
            with contents.lock:
                change(contents.opened())
                contents.settle()

    def filled(self, tokens: list[int], **named: Any) -> list[Any]:
        return self.model.filled(tokens, **named)

    def store(self, tokens: list[int], name: str = "store", **named: Any) -> Any:
        expected = {key: named.pop(key) for key in ("raises", "changes") if key in named}
        return self.call(name, lambda: self.cache.store(tokens, self.filled(tokens), **named), **expected)

    def fetch(self, tokens: list[int], name: str = "fetch", **named: Any) -> Any:
        expected = {key: named.pop(key) for key in ("raises", "changes") if key in named}
        hit = self.call(name, lambda: self.cache.fetch(tokens, **named), **expected)
        if hit:
            self.model.check(hit.prompt_cache, tokens[: hit.length])
        return hit

    def works(self) -> None:
        """Later calls work as if nothing had been."""
        key = [*range(200, 220)]
        self.store(key, "later store")
        self.fetch([*key, 1], "later fetch")
        self.call("later evict", lambda: self.cache.evict(1))
        self.call("later clear", self.cache.clear)


def _told(result: Any, alike: bool) -> Any:
    """What must be equal on all ranks; what goes in an eviction only where they hold the same."""
    if isinstance(result, Hit):
        return [result.reason, result.length, result.matched, result.checkpoint_at]
    if isinstance(result, Stored):
        return [result.reason, result.length, result.new_tokens, _told(result.evicted, alike)]
    if isinstance(result, Eviction):
        return [result.segments, result.checkpoints, result.tokens, result.cycles] if alike else None
    if isinstance(result, Pin):
        return [result.tokens]
    if isinstance(result, Session):
        return [_told(getattr(result, "hit", None), alike), _told(result.stored, alike)]
    return None
