"""Namespaces: strings that keep apart what must never share KV."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from kvcache.arguments import is_whole, text
from kvcache.errors import ConfigError


def model_namespace(
    model: Any, *, adapter: str | None = None, kv_bits: int | None = None, salt: str = ""
) -> str:
    """A namespace that different models, adapters, KV quantisations and tenants never share.

    Args:
        model: A text that names model *and revision* (free), or the model itself: then whatever its
            forward pass may read is in the result: the class and the attributes of every module
            (adapter scales, quantisation, rope settings), its arguments, and every array's name, shape,
            dtype and content. Equal models get equal names, in any process that runs the same code.
            That reads all weights once, at memory speed; keep the result.
        adapter: Names an adapter and its version.
        kv_bits: Bits of KV quantisation, where engines mix them for one model.
        salt: Separates tenants: their prompts never meet, so response times reveal nothing about
            the prompts of others.

    Raises:
        TypeError: ``model`` is neither a text nor an mlx module; another argument of another type.
        ConfigError: ``model`` is an empty text; a text with lone surrogates.
    """
    if adapter is not None:
        text("adapter", adapter)
    if kv_bits is not None and not is_whole(kv_bits):
        raise TypeError(f"kv_bits must be an int or None, found {type(kv_bits).__name__}")
    text("salt", salt)
    if isinstance(model, str):
        if not model:
            raise ConfigError("model must name model and revision, found an empty text")
        name, identity = text("model", model), model
    elif callable(getattr(model, "parameters", None)):
        from kvcache.fingerprint import fingerprint

        name, identity = type(model).__name__, fingerprint(model).hex()
    else:
        raise TypeError(f"model must be a text or an mlx module, found {type(model).__name__}")
    parts = [[identity], adapter, kv_bits, salt]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{name}#{digest[:32]}"
