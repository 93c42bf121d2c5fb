"""What a world is drawn from: layers, limits, how often each operation runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.support.layers import KV, Concatenate, List, Quantized
from tests.support.models import MODELS
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

# A request that is quantised half-way: two layouts in one namespace.
MIXED: Final[dict[str, Callable[[], PosKV]]] = {
    "plain": lambda: PosKV(KV(), List(KV(heads=1), Concatenate())),
    "packed": lambda: PosKV(Quantized(), List(Quantized(1), Quantized())),
}
OPERATIONS: Final[dict[str, float]] = {
    "fetch": 5,
    "take": 2,
    "peek": 1,
    "store": 6,
    "chat": 5,
    "session": 4,
    "pin": 1.5,
    "unpin": 1.5,
    "reserve": 1,
    "evict": 1.5,
    "evict_idle": 0.7,
    "trim_to": 0.7,
    "drop": 0.5,
    "clear": 0.3,
    "wait": 1,
}
# Those that a store depends on; the others are left out of some worlds altogether.
_ALWAYS: Final = ("fetch", "store", "chat")


@dataclass(frozen=True)
class Settings:
    """One world.

    Attributes:
        spaces: The models whose caches each namespace is given.
        segment_tokens: As the cache takes it.
        max_checkpoints: As the cache takes it.
        gc: As the cache takes it.
        max_bytes: As the cache takes it.
        max_buffers: As the cache takes it.
        memory: MLX active memory above that of the world's beginning, or None.
        pressure: How the pressure source behaves, or "".
        weights: How often each operation runs.
        disturbed: The part of operations that are disturbed.
        reuse: The part of prompts that go on from one that was stored.
        chain: All of them go on from the last one: a single chat.
        pictures: The part of new prompts with media in them.
        longest: Tokens of a new prompt at most.
    """

    spaces: Mapping[str, Mapping[str, PosKV]]
    segment_tokens: int
    max_checkpoints: int
    gc: str
    max_bytes: int | None
    max_buffers: int | None
    memory: int | None
    pressure: str
    weights: Mapping[str, float]
    disturbed: float
    reuse: float
    chain: bool
    pictures: float
    longest: int

    @property
    def measured(self) -> bool:
        """Whether memory as it is measured decides on evictions, which a fetch does not report."""
        return self.memory is not None or bool(self.pressure)

    @property
    def unlimited(self) -> bool:
        """Whether nothing ever has to go."""
        return self.max_bytes is None and self.max_buffers is None and not self.measured

    @property
    def spans(self) -> bool:
        """Whether no model of this world needs checkpoints."""
        return all(model.spans for models in self.spaces.values() for model in models.values())

    def __str__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if name not in ("spaces", "weights")}
        named = {space: sorted(models) for space, models in self.spaces.items()}
        return f"spaces={named}, " + ", ".join(f"{name}={value}" for name, value in shown.items())


def draw(random: Random) -> Settings:
    """A world; many of them lack a limit or a kind of operation, so that others show."""
    names = random.sample([*MODELS, "mixed"], random.choice([1, 1, 2, 3]))
    spaces = {
        name: {kind: make() for kind, make in (MIXED if name == "mixed" else {name: MODELS[name]}).items()}
        for name in names
    }
    longest = random.choice([12, 24, 24, 60, 150])
    largest = max(model.nbytes(longest) for models in spaces.values() for model in models.values())
    limited = random.random() < 0.6
    return Settings(
        spaces=spaces,
        segment_tokens=random.choice([1, 2, 3, 5, 8, 16, 64, 1024]),
        max_checkpoints=random.choice([1, 2, 3, 8, 100, 100]),
        gc=random.choice(["always", "always", "auto", "full"]),
        max_bytes=int(largest * random.uniform(0.3, 4)) if limited and random.random() < 0.7 else None,
        max_buffers=random.randrange(8, 120) if limited and random.random() < 0.3 else None,
        memory=int(largest * random.uniform(2, 6)) if limited and random.random() < 0.3 else None,
        pressure=random.choice(["random", "machine", "stuck"]) if limited and random.random() < 0.3 else "",
        weights={
            name: weight * (random.choice([0.5, 1, 2]) if name in _ALWAYS else random.choice([0, 0.3, 1, 2]))
            for name, weight in OPERATIONS.items()
        },
        disturbed=random.choice([0, 0, 0.1, 0.3, 0.5]),
        reuse=random.choice([0.3, 0.6, 0.9]),
        chain=random.random() < 0.2,
        pictures=random.choice([0, 0, 0.4]),
        longest=longest,
    )
