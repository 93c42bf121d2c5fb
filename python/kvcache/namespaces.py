"""Namespaces: strings that separate prompts that must never share KV."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from kvcache.arguments import is_whole, text
from kvcache.errors import ConfigError


def model_namespace(
    model: Any, *, adapter: str | None = None, kv_bits: int | None = None, salt: str = ""
) -> str:
    """Makes a namespace that different models, adapters, KV quantisations and tenants never share.

    Args:
        model: A str that names the model *and its revision*, which costs nothing; or the model itself. Then
            the namespace depends on everything that its forward pass may read: the class and attributes of
            every module (adapter scales, quantisation, rope settings), its arguments, and each array's name,
            shape, dtype and content. Equal models get equal namespaces in every process that runs the same
            code. This reads all weights once, at memory speed; keep the result.
        adapter: The name of an adapter and its version.
        kv_bits: Bits of KV quantisation, if engines use several for one model.
        salt: Separates tenants: they share no prompts, so response times reveal nothing about the prompts
            of others.

    Raises:
        TypeError: ``model`` is neither a str nor an mlx module, or another argument has the wrong type.
        ConfigError: ``model`` is empty, or a str has lone surrogates.
    """
    if adapter is not None:
        text("adapter", adapter)
    if kv_bits is not None and not is_whole(kv_bits):
        raise TypeError(f"kv_bits must be an int or None, found {type(kv_bits).__name__}")
    text("salt", salt)
    if isinstance(model, str):
        if not model:
            raise ConfigError("model must name a model and its revision, found an empty str")
        name, identity = text("model", model), model
    elif callable(getattr(model, "parameters", None)):
        from kvcache.fingerprint import fingerprint

        name, identity = type(model).__name__, fingerprint(model).hex()
    else:
        raise TypeError(f"model must be a str or an mlx module, found {type(model).__name__}")
    parts = [[identity], adapter, kv_bits, salt]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{name}#{digest[:32]}"
