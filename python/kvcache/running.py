"""Running the caller's models for a session: fresh layer caches, and forward passes over a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx

from kvcache.arguments import shown, whole
from kvcache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

# The quantisations that MLX supports.
_BITS: Final = (2, 3, 4, 5, 6, 8)
_GROUPS: Final = (32, 64, 128)


@dataclass(frozen=True)
class Options:
    """How the engine runs its models; names as in mlx-lm.

    Raises:
        ConfigError: A value is out of range.
        TypeError: A value is not an int.
    """

    prefill_step_size: int = 2048
    max_kv_size: int | None = None
    kv_bits: int | None = None
    kv_group_size: int = 64
    quantized_kv_start: int = 5000

    def __post_init__(self) -> None:
        whole("prefill_step_size", self.prefill_step_size, least=1)
        if self.max_kv_size is not None:
            # mlx-lm always keeps the first four tokens.
            whole("max_kv_size", self.max_kv_size, least=5)
        bits, group = self.kv_bits, self.kv_group_size
        if bits is not None and not _one_of(bits, _BITS):
            raise ConfigError(f"kv_bits must be None or one of {_BITS}, found {shown(bits)}")
        if not _one_of(group, _GROUPS):
            raise ConfigError(f"kv_group_size must be one of {_GROUPS}, found {shown(group)}")
        whole("quantized_kv_start", self.quantized_kv_start)


def _one_of(value: Any, known: tuple[int, ...]) -> bool:
    """Whether the value is an integer of any type and one of these."""
    return isinstance(value, Integral) and not isinstance(value, bool) and value in known


class Runner:
    """The model and the draft model of one session.

    Args:
        models: The models passed; may be empty.
        options: How the engine runs them.
    """

    def __init__(self, models: Sequence[Any], options: Options) -> None:
        self._models = list(models)
        self._options = options
        self._counts: list[int] = []
        self._fresh: list[Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._models)

    def require_layers(self, held: int, namespace: str) -> None:
        """Checks that stored caches of ``held`` layers fit the models.

        Raises:
            ConfigError: The models have another number of layers.
        """
        fresh = len(self.make_fresh())
        if fresh and fresh != held:
            raise ConfigError(
                f"the namespace {namespace!r} holds caches of {held} layers, this model makes {fresh}; pass "
                "namespace=kvcache.model_namespace(model)"
            )

    def prompt_cache(self, fetched: list[Any] | None, namespace: str) -> list[Any]:
        """The prompt cache to run on: the fetched one, or after a miss a fresh one.

        Raises:
            ConfigError: The fetched one does not fit the models, or there is no model to make one for.
        """
        fresh = self.make_fresh()
        if fetched is not None:
            self.require_layers(len(fetched), namespace)
        elif not fresh:
            raise ConfigError("nothing is stored for this prompt and no model was given; pass model=")
        self._fresh = None
        return fresh if fetched is None else fetched

    def make_fresh(self) -> list[Any]:
        """Empty layer caches, the draft model's after the model's; made once."""
        if self._fresh is None:
            by_model = [self._make(model) for model in self._models]
            self._counts = [len(layers) for layers in by_model]
            self._fresh = [layer for layers in by_model for layer in layers]
        return self._fresh

    def _make(self, model: Any) -> list[Any]:
        from mlx_lm.models.cache import make_prompt_cache

        # mlx-lm ignores `max_kv_size` with a draft model, since such caches cannot be rewound.
        if not hasattr(model, "make_cache") and not hasattr(model, "layers"):
            raise TypeError(f"model must be an mlx-lm model, found {type(model).__name__}")
        size = self._options.max_kv_size if len(self._models) == 1 else None
        return list(make_prompt_cache(model, max_kv_size=size))

    def run(self, chunk: mx.array, prompt_cache: list[Any]) -> None:
        """Runs and evaluates a forward pass of all models over a chunk of shape ``(1, tokens)``."""
        first = 0
        for model, count in zip(self._models, self._counts, strict=True):
            last = first + count
            # A single model gets the caller's own list: some models replace its members.
            model(chunk, cache=prompt_cache if len(self._models) == 1 else prompt_cache[first:last])
            first = last
        self._quantize(prompt_cache)
        mx.eval([getattr(layer, "state", ()) for layer in prompt_cache])

    def _quantize(self, prompt_cache: list[Any]) -> None:
        """Quantises layers as mlx-lm does after each pass, except those that MLX cannot quantise."""
        bits, group = self._options.kv_bits, self._options.kv_group_size
        if bits is None:
            return
        for number, layer in enumerate(prompt_cache):
            if not hasattr(layer, "to_quantized") or layer.offset < self._options.quantized_kv_start:
                continue
            widths = [side.shape[-1] for side in (layer.keys, layer.values) if side is not None]
            if any(width % group for width in widths):
                continue
            try:
                prompt_cache[number] = layer.to_quantized(group_size=group, bits=bits)
            except NotImplementedError:
                # A window layer: mlx-lm's own generator fails on it when it tries.
                continue
