"""PosKV: a model without weights, whose caches can be read back token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.layers import Layer


def held(prompt_cache: Any) -> Iterator[mx.array]:
    """Every array that layer caches hold."""
    for cache in prompt_cache:
        if hasattr(cache, "caches"):
            yield from held(cache.caches)
            continue
        for _, value in tree_flatten(list(vars(cache).values())):
            if isinstance(value, mx.array):
                yield value


class PosKV:
    """Layers in order; what mlx-lm calls a model, as far as caches are concerned."""

    def __init__(self, *layers: Layer) -> None:
        self.layers = layers
        for number, layer in enumerate(layers):
            layer.numbered(number)

    @property
    def spans(self) -> bool:
        """Whether it can be cut at any token."""
        return all(layer.spans for layer in self.layers)

    def nbytes(self, length: int) -> int:
        """Bytes that ``length`` tokens need in all layers, no row too many."""
        return sum(layer.nbytes(length) for layer in self.layers)

    def roomy(self, length: int, remaining: int) -> int:
        """The same with room for ``remaining`` more where a class over-allocates."""
        return sum(layer.roomy(length, remaining) for layer in self.layers)

    def make_cache(self) -> list[Any]:
        return [layer.fresh() for layer in self.layers]

    def __call__(self, tokens: mx.array, cache: list[Any]) -> None:
        """A forward pass over ``(1, n)`` tokens; lazy, as a model's is."""
        self.append(cache, tokens[0].tolist())

    def append(self, prompt_cache: list[Any], tokens: Sequence[int]) -> None:
        """One chunk, not evaluated."""
        start = self.layers[0].length(prompt_cache[0])
        for layer, cache in zip(self.layers, prompt_cache, strict=True):
            layer.grow(cache, tokens, start)

    def grow(self, prompt_cache: list[Any], tokens: Sequence[int], chunk: int | None = None) -> None:
        """Appends ``tokens`` in chunks, each evaluated, as a prefill or a generation does."""
        step = chunk or max(1, len(tokens))
        for start in range(0, len(tokens), step):
            self.append(prompt_cache, tokens[start : start + step])
            mx.eval(list(held(prompt_cache)))

    def filled(self, tokens: Sequence[int], chunk: int | None = None) -> list[Any]:
        """A fresh prompt cache that ran ``tokens``."""
        prompt_cache = self.make_cache()
        self.grow(prompt_cache, tokens, chunk)
        return prompt_cache

    def read(self, prompt_cache: list[Any]) -> list[int]:
        """The tokens that the span layers hold; all of them must hold the same."""
        assert len(prompt_cache) == len(self.layers)
        pairs = zip(self.layers, prompt_cache, strict=True)
        found = [tokens for layer, cache in pairs if (tokens := layer.tokens(cache)) is not None]
        assert found, "no layer of this model can be read back without knowing the tokens"
        assert all(tokens == found[0] for tokens in found), "layers hold different tokens"
        return found[0]

    def check(self, prompt_cache: list[Any], tokens: Sequence[int]) -> None:
        """Asserts that each layer holds exactly ``tokens``, at their positions."""
        assert len(prompt_cache) == len(self.layers)
        for layer, cache in zip(self.layers, prompt_cache, strict=True):
            layer.check(cache, tokens)


def nbytes(prompt_cache: Any) -> int:
    """Bytes of all arrays, over-allocated rows included."""
    return sum(array.nbytes for array in held(prompt_cache))
