"""Tiny models with random weights, built from mlx-lm's own ModelArgs.

Nothing here imports kvcache: the cold side of every comparison stands on this module.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_map

from .attention import ATTENTION
from .recurrent import RECURRENT
from .shared import TINY

ARGUMENTS: Final = ATTENTION | RECURRENT


def build(architecture: str, dtype: mx.Dtype = mx.float32, seed: int = 0, **changed: Any) -> Any:
    """The model of that name; the same weights in every process.

    Args:
        architecture: A module of ``mlx_lm.models``.
        dtype: Of the weights.
        seed: Other weights for other numbers.
        changed: Arguments that differ from the ones listed.
    """
    module = import_module(f"mlx_lm.models.{architecture}")
    given = ARGUMENTS[architecture]
    args = given if "text_config" in given else TINY | given
    mx.random.seed(zlib.crc32(f"{architecture} {seed}".encode()))
    model = module.Model(module.ModelArgs.from_dict({"model_type": architecture} | args | changed))
    model.set_dtype(dtype)
    # Some weights begin as zeros or ones, which would hide what depends on them.
    model.update(tree_map(_stir, model.parameters()))
    model.eval()
    # Constants that are no parameters too: what is still lazy can be evaluated by this thread only.
    mx.eval([value for module in model.modules() for value in module.values() if isinstance(value, mx.array)])
    return model


def _stir(weight: mx.array) -> mx.array:
    if not mx.issubdtype(weight.dtype, mx.floating):
        return weight
    return weight + 0.1 * mx.random.normal(weight.shape, weight.dtype)
