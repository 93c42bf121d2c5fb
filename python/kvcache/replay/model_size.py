"""Bytes of KV a token takes, read off a model's `config.json`; nothing is loaded.

Counted are the layers whose KV grows with every token, as mlx-lm's model classes keep it: keys and values of
all KV heads, or the latent vector of multi-head latent attention. Where a configuration does not say enough
the answer is an error and not a guess; only a missing dtype is taken as bfloat16, and the sentence says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvcache.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_GROWING: Final = frozenset({"full_attention", "attention"})
_BOUNDED: Final = frozenset(
    {"sliding_attention", "chunked_attention", "linear_attention", "mamba", "conv", "mlp", "moe"}
)
_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}
# Only every n-th layer sees everything, also where the configuration leaves n out.
_EVERY: Final = {
    "cohere2": 4,
    "gemma3": 6,
    "gemma3_text": 6,
    "qwen3_5": 4,
    "qwen3_5_moe": 4,
    "qwen3_5_moe_text": 4,
    "qwen3_5_text": 4,
    "qwen3_next": 4,
}
# Latent attention, but mlx-lm keeps the full heads.
_FULL_HEADS: Final = frozenset({"deepseek_v2", "minicpm3"})
# What these add to or leave out of the cache follows from code and not from the configuration.
_UNTOLD_MODELS: Final = frozenset(
    {
        "afm7",
        "deepseek_v41",
        "iquestloopcoder",
        "longcat_flash",
        "longcat_flash_ngram",
        "mamba",
        "mamba2",
        "plamo2",
        "rwkv7",
    }
)
_UNTOLD_MEMBERS: Final = (
    "attention_chunk_size",
    "block_configs",
    "block_types",
    "hybrid_layer_pattern",
    "index_head_dim",
    "layer_group_size",
    "linear_attn_config",
    "sliding_window_layers",
    "sparse_attention_config",
)


@dataclass(frozen=True)
class ModelSize:
    """Bytes of one token, and the sentence that says what they rest on."""

    bytes_per_token: int
    assumed: str


def model_size(path: Path) -> ModelSize:
    """Reads a model folder's `config.json`, or that file itself.

    Raises:
        ConfigError: It is missing, or does not determine the size.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"there is no {file}") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is no JSON") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} holds no JSON object")
    text = config.get("text_config")
    if isinstance(text, dict):
        config = config | text
    try:
        return _size(config)
    except ConfigError as error:
        raise ConfigError(f"{file} does not tell how large a token is: {error}") from error


def _size(config: dict[str, Any]) -> ModelSize:
    model_type = config.get("model_type")
    untold = [name for name in _UNTOLD_MEMBERS if config.get(name) is not None]
    if model_type in _UNTOLD_MODELS or untold:
        what = untold[0] if untold else f"model_type {model_type}"
        raise ConfigError(f"models with {what} keep more or less than it says")
    kinds = _growing(config)
    layers = sum(kinds)
    if not layers:
        raise ConfigError("no layer keeps KV for every token")
    width, shape = _width(config)
    said = config.get("dtype") or config.get("torch_dtype")
    dtype = said or "bfloat16"
    if dtype not in _BYTES:
        raise ConfigError(f"its dtype is {dtype!r}")
    assumed = f"{layers} of {len(kinds)} layers keep KV for every token, {shape}, {dtype}, KV not quantised"
    if not said:
        assumed += "; the config names no dtype, so bfloat16 is a guess: float32 takes twice that"
    if layers < len(kinds):
        assumed += "; checkpoints of the others are not counted, nor that hits end at one"
    return ModelSize(layers * width * _BYTES[dtype], assumed)


def _growing(config: dict[str, Any]) -> list[bool]:
    """For each layer that has a cache of its own, whether it keeps every token."""
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str | list) and pattern:
        return [kind == "*" for kind in pattern]
    count = _whole(config, "num_hidden_layers")
    count -= _whole(config, "num_kv_shared_layers", 0)
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(kinds, list):
        unknown = [kind for kind in kinds if kind not in _GROWING | _BOUNDED]
        if unknown:
            raise ConfigError(f"it has layers of type {unknown[0]!r}")
        return [kind in _GROWING for kind in kinds[:count]]
    if config.get("attn_layer_period") is not None:
        period, offset = _whole(config, "attn_layer_period"), _whole(config, "attn_layer_offset", 0)
        return [layer % period == offset for layer in range(count)]
    every = _whole(config, "full_attention_interval", _EVERY.get(str(config.get("model_type")), 1))
    if config.get("sliding_window") is not None:
        every = _whole(config, "sliding_window_pattern", every)
    return [(layer + 1) % every == 0 for layer in range(count)]


def _width(config: dict[str, Any]) -> tuple[int, str]:
    """Elements of one token in one layer, and how they come about."""
    heads = _whole(config, "num_attention_heads")
    if config.get("kv_lora_rank") is not None:
        latent, rope = _whole(config, "kv_lora_rank"), _whole(config, "qk_rope_head_dim")
        if config.get("model_type") not in _FULL_HEADS:
            return latent + rope, f"a latent vector of {latent} + {rope}"
        key = _whole(config, "qk_nope_head_dim") + rope
        value = _whole(config, "v_head_dim")
        return heads * (key + value), f"{heads} heads of {key} + {value}"
    kv_heads = _whole(config, "num_key_value_heads", heads)
    key = config.get("head_dim") or _whole(config, "hidden_size") // heads
    value = config.get("v_head_dim") or key
    if config.get("global_head_dim") is not None:
        key = value = _whole(config, "global_head_dim")
        if config.get("attention_k_eq_v"):
            kv_heads = _whole(config, "num_global_key_value_heads", kv_heads)
    if type(key) is not int or type(value) is not int:
        raise ConfigError("head_dim is no whole number")
    return kv_heads * (key + value), f"{kv_heads} KV heads of {key} + {value}"


def _whole(config: dict[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 0 or (value == 0 and default != 0):
        raise ConfigError(f"{name} is missing" if value is None else f"{name} is {value!r}")
    return value
