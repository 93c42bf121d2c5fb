"""Runs worlds one after the other, and says how to repeat the one that fails."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Final

import mlx.core as mx

from tests.fuzz.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TRAIL: Final = 30


class WorldFailure(AssertionError):
    """A world in which something did not hold.

    Attributes:
        seed: The world's.
        operations: How many it takes, the failing one included.
    """

    def __init__(self, seed: int, operations: int, name: str, world: Sessions | None, error: str) -> None:
        self.seed = seed
        self.operations = operations
        settings = "" if world is None else str(world.settings)
        trail = [] if world is None else world.trail[-_TRAIL:]
        super().__init__(
            f"{name}: {error}\n  {settings}\n  last: {', '.join(trail)}\n"
            f"  replay: python -m tests.fuzz --seed {seed} --operations {operations}"
        )


def length(seed: int) -> int:
    """Operations of the world with this seed."""
    return Random(seed).choice([20, 60, 60, 150])


def run_world(seed: int, operations: int, done: Callable[[str], None] = lambda _: None) -> None:
    """One world of so many operations, from its beginning to its end.

    Raises:
        WorldFailure: Something did not hold.
    """
    world, name, count = None, "beginning", 0
    try:
        world = Sessions(seed)
        for count in range(1, operations + 1):  # noqa: B007 - the failure names it
            name = world.step()
            done(name)
        name = "end"
        world.close()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not error.args:
            raise
        name = world.trail[-1] if world and world.trail and name != "end" else name
        told = f"{type(error).__name__}: {error}"
        raise WorldFailure(seed, count, name, world, told) from error


def run(seed: int, operations: int, done: Callable[[str], None] = lambda _: None) -> Counter[str]:
    """Worlds with seeds from ``seed`` on, until so many operations have run. Counts them by name."""
    counted: Counter[str] = Counter()

    def note(name: str) -> None:
        counted[name] += 1
        done(name)

    with quiet():
        while (left := operations - counted.total()) > 0:
            run_world(seed, min(left, length(seed)), note)
            seed += 1
    return counted


@contextmanager
def quiet() -> Iterator[None]:
    """MLX without its pool; collections look at what the worlds made, and at nothing before them."""
    limit = mx.set_cache_limit(0)
    gc.collect()
    mx.clear_cache()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        mx.set_cache_limit(limit)
