"""A Llama model in GGUF as an mlx-lm model folder with float32 weights.

Reads what `mx.load` reads: the types F32, F16, Q4_0, Q4_1 and Q8_0. float32, because on CPUs only float32
products use an optimised BLAS.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kvcache.cli.console import CliError, Steps, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_GROUP_SIZE = 32  # of every quantised GGUF type that mx.load reads
_SPECIAL_TOKEN = 3  # tokenizer.ggml.token_type of control tokens

_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf: Path, folder: Path) -> None:
    """Writes config.json, model.safetensors, tokenizer.json and tokenizer_config.json.

    Args:
        gguf: The model file.
        folder: An existing folder.

    Raises:
        CliError: The file cannot be read, is no Llama model with a byte-level BPE tokenizer, or the weights
            cannot be written.
        OSError: Another file cannot be written.
    """
    try:
        loaded: Any = mx.load(str(gguf), return_metadata=True)
        arrays, metadata = loaded
        config = model_config(metadata)
        tokenizer, tokenizer_config = _tokenizer(metadata)
        names = [name for name in arrays if not name.endswith((".scales", ".biases"))]
        renamed = {name: tensor_name(name) for name in names}
    except (RuntimeError, ValueError) as error:
        raise CliError(f"The model file {gguf.name} cannot be converted ({quote(error)}).") from error
    except KeyError as error:
        raise CliError(f"The model file {gguf.name} lacks {error}, which a Llama model needs.") from error
    config["tie_word_embeddings"] = "output.weight" not in renamed
    weights = {}
    with Steps(len(names) + 1) as steps:
        steps.begin("Converting the model to float32")
        for name in names:
            weights[renamed[name]] = _float32(arrays, name)
            steps.advance()
        try:
            mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
        except RuntimeError as error:
            raise CliError(
                f"The weights cannot be written to {folder} ({quote(error)}); make room there."
            ) from error
        steps.advance()
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_json(folder / "config.json", config)


def tensor_name(name: str) -> str:
    """The mlx-lm name of a GGUF tensor, e.g. `blk.3.attn_q.weight`.

    Raises:
        ValueError: A Llama model has no such tensor.
    """
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _OUTER_NAMES:
        return f"{_OUTER_NAMES[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal() and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise ValueError(f"unknown tensor {name}")


def model_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The `config.json` of the Llama model that GGUF metadata describes.

    Raises:
        KeyError: A field is missing.
        ValueError: It describes another architecture.
    """
    architecture = metadata["general.architecture"]
    if architecture != "llama":
        raise ValueError(f"its architecture is {architecture}, not llama")
    field = {key.removeprefix("llama."): value for key, value in metadata.items()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": int(field["embedding_length"]),
        "intermediate_size": int(field["feed_forward_length"]),
        "num_hidden_layers": int(field["block_count"]),
        "num_attention_heads": int(field["attention.head_count"]),
        "num_key_value_heads": int(field["attention.head_count_kv"]),
        "rms_norm_eps": float(field["attention.layer_norm_rms_epsilon"]),
        "max_position_embeddings": int(field["context_length"]),
        "rope_theta": float(field["rope.freq_base"]),
        # GGUF stores the rows of q and k in the order of interleaved rotary embeddings.
        "rope_traditional": True,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "bos_token_id": int(metadata["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(metadata["tokenizer.ggml.eos_token_id"]),
        "torch_dtype": "float32",
    }


def build_tokenizer(tokens: Sequence[str], merges: Sequence[str], special: Sequence[str]) -> Tokenizer:
    """A byte-level BPE tokenizer that splits numbers into single digits, as SmolLM2's does.

    Args:
        tokens: The vocabulary in order of ids.
        merges: The merges in order of rank, each "left right".
        special: Those tokens that text never spells, such as `<|im_end|>`.
    """
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _tokenizer(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    kind = metadata["tokenizer.ggml.model"]
    if kind != "gpt2":
        raise ValueError(f"its tokenizer is of kind {kind}, not byte-level BPE")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _SPECIAL_TOKEN]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(metadata["llama.context_length"]),
        "chat_template": metadata["tokenizer.chat_template"],
    }
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for role, name in roles.items():
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if number is not None:
            config[role] = tokens[int(number)]
    return build_tokenizer(tokens, metadata["tokenizer.ggml.merges"], special), config


def _float32(arrays: dict[str, mx.array], name: str) -> mx.array:
    weight = arrays.pop(name)
    stem = name.removesuffix(".weight")
    scales = arrays.get(f"{stem}.scales")
    if scales is None:
        weight = weight.astype(mx.float32)
    else:
        # 32-bit words hold a group's values: their count gives the bits, 4 or 8 within one file.
        bits = weight.shape[-1] * 32 // (scales.shape[-1] * _GROUP_SIZE)
        biases = arrays[f"{stem}.biases"].astype(mx.float32)
        weight = mx.dequantize(weight, scales.astype(mx.float32), biases, _GROUP_SIZE, bits)
    mx.eval(weight)
    return weight


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
