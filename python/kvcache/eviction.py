"""The result of an eviction."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Eviction:
    """What an eviction dropped, and the memory that it freed.

    Attributes:
        segments: Segments of KV dropped.
        checkpoints: Checkpoints dropped.
        tokens: Tokens of KV dropped.
        nbytes: Bytes dropped, by the ledger.
        freed: Bytes freed, as measured: MLX's active and cached memory before minus after, so it includes
            everything that garbage collection and clearing MLX's pool freed.
        cycles: Eviction cycles; each drops, collects, clears and measures once.
        seconds: Time spent reclaiming memory.
    """

    segments: int = 0
    checkpoints: int = 0
    tokens: int = 0
    nbytes: int = 0
    freed: int = 0
    cycles: int = 0
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.segments > 0 or self.checkpoints > 0

    def __add__(self, other: Eviction) -> Eviction:
        return Eviction(
            segments=self.segments + other.segments,
            checkpoints=self.checkpoints + other.checkpoints,
            tokens=self.tokens + other.tokens,
            nbytes=self.nbytes + other.nbytes,
            freed=self.freed + other.freed,
            cycles=self.cycles + other.cycles,
            seconds=self.seconds + other.seconds,
        )
