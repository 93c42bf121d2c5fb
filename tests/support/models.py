"""One small model for each kind of layer, and mixtures as real ones have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.support.layers import KV, Arrays, Chunked, Concatenate, List, Opaque, Quantized, Rotating
from tests.support.poskv import PosKV

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS: Final[dict[str, Callable[[], PosKV]]] = {
    "kv": lambda: PosKV(KV(), KV(heads=1)),
    "concatenate": lambda: PosKV(Concatenate(), Concatenate()),
    "quantized": lambda: PosKV(Quantized(), Quantized(bits=8)),
    "list": lambda: PosKV(List(KV(), KV(heads=1)), KV()),
    "rotating": lambda: PosKV(KV(), Rotating(8)),
    "rotating-keep": lambda: PosKV(Rotating(8, keep=2), KV()),
    "chunked": lambda: PosKV(Chunked(8), KV()),
    "arrays": lambda: PosKV(KV(), Arrays()),
    "opaque": lambda: PosKV(KV(), Opaque()),
    "list-state": lambda: PosKV(List(Arrays(), KV()), List(Arrays(), KV())),
    "state-only": lambda: PosKV(Arrays(), Arrays()),
    "all": lambda: PosKV(KV(), Quantized(), List(Concatenate(), Arrays()), Rotating(8), Chunked(8), Opaque()),
}
SPANS: Final = tuple(name for name, make in MODELS.items() if make().spans)


def prompt(length: int, first: int = 0) -> list[int]:
    """Token ids in which every position tells; prompts of different ``first`` share nothing."""
    return [1000 * first + at for at in range(length)]
