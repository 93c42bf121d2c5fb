"""A tiny random Llama with a byte-level tokenizer, as a folder that mlx-lm loads: no download."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LAYERS, HEADS, HEAD_WIDTH = 2, 2, 32
TOKEN_BYTES = 2 * LAYERS * HEADS * HEAD_WIDTH * 4


def write_model(folder: Path, seed: int = 7, **options: object) -> Path:
    """Writes config, weights and tokenizer; a text's tokens are its bytes. Options go to the config."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.llama import Model, ModelArgs
    from tokenizers.pre_tokenizers import ByteLevel

    from kvcache.cli.gguf import build_tokenizer

    vocabulary = [*SPECIAL, *sorted(ByteLevel.alphabet())]
    config = {
        "model_type": "llama",
        "hidden_size": HEADS * HEAD_WIDTH,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 64,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "rms_norm_eps": 1e-5,
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 8192,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        **options,
    }
    folder.mkdir(parents=True, exist_ok=True)
    mx.random.seed(seed)
    model = Model(ModelArgs.from_dict(config))
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"}
    )
    tokenizer = build_tokenizer(vocabulary, [], SPECIAL)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
