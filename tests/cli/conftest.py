"""A Llama of two tiny layers as a GGUF file: all that conversion and demo need, without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, HEADS, KV_HEADS, FEED_FORWARD, LAYERS = 32, 4, 2, 64, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


@pytest.fixture
def tiny_metadata() -> dict[str, object]:
    import mlx.core as mx

    tokens = [*SPECIAL, *byte_alphabet(), "12", "he", "hel"]
    numbers = {
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.block_count": LAYERS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.context_length": 4096,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
    }
    return {
        "general.architecture": "llama",
        "llama.rope.freq_base": mx.array(10000.0),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["1 2", "h e", "he l"],
        "tokenizer.ggml.token_type": mx.array([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))),
        "tokenizer.chat_template": TEMPLATE,
        **{name: mx.array(number, dtype=mx.uint32) for name, number in numbers.items()},
    }


@pytest.fixture
def tiny_gguf(tmp_path: Path, tiny_metadata: dict[str, object]) -> Path:
    import mlx.core as mx

    head = WIDTH // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tiny_metadata["tokenizer.ggml.tokens"]), WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (WIDTH,),
            f"blk.{layer}.ffn_norm.weight": (WIDTH,),
            f"blk.{layer}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{layer}.attn_k.weight": (KV_HEADS * head, WIDTH),
            f"blk.{layer}.attn_v.weight": (KV_HEADS * head, WIDTH),
            f"blk.{layer}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_gate.weight": (FEED_FORWARD, WIDTH),
            f"blk.{layer}.ffn_up.weight": (FEED_FORWARD, WIDTH),
            f"blk.{layer}.ffn_down.weight": (WIDTH, FEED_FORWARD),
        }
    keys = mx.random.split(mx.random.key(7), len(shapes))
    arrays = {
        name: mx.random.normal(shape, key=key).astype(mx.float16)
        for (name, shape), key in zip(shapes.items(), keys, strict=True)
    }
    path = tmp_path / "tiny.gguf"
    mx.save_gguf(str(path), arrays, tiny_metadata)
    return path
