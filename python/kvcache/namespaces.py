"""Namespaces: strings that keep apart what must never share KV."""

from __future__ import annotations

import hashlib
import json
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from kvcache.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Elements summed at a time: the work needs a few times as many bytes.
_CHUNK: Final = 1 << 24


def model_namespace(
    model: Any, *, adapter: str | None = None, kv_bits: int | None = None, salt: str = ""
) -> str:
    """A namespace that different models, adapters, KV quantisations and tenants never share.

    Args:
        model: A text that names model *and revision* (free), or the model itself: then its class,
            arguments and every parameter's name, shape, dtype and content are in the result, loaded
            adapter layers included. That reads all weights once, at memory speed; keep the result.
        adapter: Names an adapter and its version.
        kv_bits: Bits of KV quantisation, where engines mix them for one model.
        salt: Separates tenants: their prompts never meet, so response times tell nothing about
            the prompts of others.

    Raises:
        TypeError: ``model`` is neither a text nor an mlx module.
        ConfigError: ``model`` is an empty text.
    """
    if isinstance(model, str):
        if not model:
            raise ConfigError("model must name model and revision, found an empty text")
        name, identity = model, [model]
    elif callable(getattr(model, "parameters", None)):
        name, identity = type(model).__name__, list(_fingerprint(model))
    else:
        raise TypeError(f"model must be a text or an mlx module, found {type(model).__name__}")
    parts = [identity, adapter, kv_bits, salt]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{name}#{digest[:32]}"


def _fingerprint(model: Any) -> Iterator[str]:
    """Class, arguments and parameters, a line each."""
    from mlx.utils import tree_flatten

    yield f"{type(model).__module__}.{type(model).__qualname__}"
    arguments = getattr(model, "args", None)
    if is_dataclass(arguments):
        yield repr(arguments)
    parameters: Any = tree_flatten(model.parameters())
    for path, array in parameters:
        yield f"{path} {array.shape} {array.dtype} {_checksum(array)}"


def _checksum(array: Any) -> str:
    """Two sums over the raw bits, one of them weighted by position; exact whatever the order."""
    import mlx.core as mx

    words = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint32}[array.dtype.size]
    bits = mx.contiguous(array.reshape(-1)).view(words) if array.size else mx.array([], dtype=words)
    plain = weighted = 0
    for start in range(0, bits.size, _CHUNK):
        chunk = bits[start : start + _CHUNK].astype(mx.uint32)
        places = mx.arange(start, start + chunk.size, dtype=mx.uint32) * 2654435761 + 1
        plain += cast("int", mx.sum(chunk).item())
        weighted += cast("int", mx.sum(chunk * places).item())
    return f"{plain & 0xFFFFFFFF:08x}{weighted & 0xFFFFFFFF:08x}"
