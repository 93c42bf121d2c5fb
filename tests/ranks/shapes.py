"""Which layers each rank has in each namespace: other kinds, widths and numbers of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tests.support.layers import KV, Arrays, Chunked, Concatenate, List, Opaque, Quantized, Rotating
from tests.support.oracle import Media, Prompt
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.layers import Layer

Part = tuple["Layer", ...]

# Namespace → models in turn (a cache can be quantised in mid-request) → rank → its layers.
SPACES: Final[dict[str, tuple[tuple[Callable[[], Part], ...], ...]]] = {
    "spans": (
        (
            lambda: (KV(), KV(heads=1)),
            lambda: (Quantized(),),
            lambda: (KV(heads=3),),
            lambda: (List(KV(heads=1), Concatenate()),),
        ),
        # The first rank quantises in mid-request, the others have nothing to quantise.
        (
            lambda: (Quantized(), Quantized(heads=1)),
            lambda: (Quantized(),),
            lambda: (KV(heads=3),),
            lambda: (List(KV(heads=1), Concatenate()),),
        ),
    ),
    "mixed": (
        (
            lambda: (KV(), KV(), KV()),
            lambda: (KV(heads=1), Arrays(), Opaque()),
            lambda: (Concatenate(),),
            lambda: (Arrays(), Arrays()),
        ),
    ),
    "window": (
        (
            lambda: (KV(heads=1),),
            lambda: (Rotating(6, keep=1), KV()),
            lambda: (Chunked(9),),
            lambda: (KV(), Rotating(20)),
        ),
    ),
    "state": (
        (lambda: (KV(heads=2),), lambda: (Arrays(), Arrays()), lambda: (Arrays(),), lambda: (Opaque(),)),
    ),
    "packed": (
        (lambda: (KV(),), lambda: (Arrays(),), lambda: (KV(), Arrays()), lambda: (KV(heads=1),)),
        (
            lambda: (Quantized(),),
            lambda: (Arrays(),),
            lambda: (Quantized(), Arrays()),
            lambda: (Quantized(1),),
        ),
    ),
}
_BASES: Final = tuple(tuple(random.Random(base).choices(range(6), k=44)) for base in range(2))
_ENDS: Final = (0, 1, 6, 12, 12, 18, 24, 24, 30, 36, 44)
_SPOTS: Final = (Media(2, 3, "a"), Media(2, 3, "b"), Media(2, 4, "a"), Media(9, 2, "a"), Media(30, 4, "c"))


def models(ranks: Sequence[int]) -> dict[str, Sequence[PosKV]]:
    """These ranks' parts of the model of each namespace, as one model."""
    return {
        space: [PosKV(*(layer for rank in ranks for layer in parts[rank]())) for parts in turns]
        for space, turns in SPACES.items()
    }


def random_prompt(choose: random.Random, media: bool = True) -> Prompt:
    """Prompts that share prefixes of all lengths, some with pictures in them."""
    base = choose.choice(_BASES)
    ids = base[: choose.choice(_ENDS)] + tuple(choose.choices(range(4), k=choose.choice((0, 0, 1, 3))))
    spots = choose.sample(_SPOTS, choose.choice((0, 0, 0, 1, 2))) if media else []
    placed: list[Media] = []
    for spot in sorted(spots, key=lambda spot: spot.start):
        if spot.end <= len(ids) and (not placed or placed[-1].end <= spot.start):
            placed.append(spot)
    return Prompt(ids, tuple(placed))
