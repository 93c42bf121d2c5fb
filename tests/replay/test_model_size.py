"""`--model`: bytes of a token, from configurations and against the caches that mlx-lm makes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcache.cli import main
from kvcache.errors import ConfigError
from kvcache.replay.model_size import model_size
from tests.architectures.shared import TINY
from tests.architectures.tiny_models import ARGUMENTS, build

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "torch_dtype": "bfloat16",
}


def _write(folder: Path, config: Any) -> Path:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "nbytes"),
    [
        (LLAMA, 131_072),
        (LLAMA | {"torch_dtype": "float32"}, 262_144),
        (LLAMA | {"head_dim": 64}, 65_536),
        (LLAMA | {"num_key_value_heads": None}, 524_288),
        (LLAMA | {"quantization": {"bits": 4}}, 131_072),
        ({"model_type": "some_vl", "text_config": LLAMA}, 131_072),
        (LLAMA | {"layer_types": ["full_attention", "sliding_attention"] * 16}, 65_536),
        (LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 32 * 576 * 2),
        (LLAMA | {"hybrid_override_pattern": "M-M*M-M*"}, 2 * 2048 * 2),
    ],
)
def test_configurations(tmp_path: Path, config: dict[str, Any], nbytes: int) -> None:
    folder = _write(tmp_path, config)
    assert model_size(folder).bytes_per_token == nbytes
    assert model_size(folder / "config.json") == model_size(folder)


@pytest.mark.parametrize("nested", [False, True])
def test_a_guessed_dtype_is_said_to_be_one(tmp_path: Path, nested: bool) -> None:
    """Nothing in such a configuration says whether a token takes this or twice that."""
    silent = {name: value for name, value in LLAMA.items() if name != "torch_dtype"}
    wrapped = [{"model_type": "some_vl", "text_config": each} if nested else each for each in (silent, LLAMA)]
    guessed, said = (model_size(_write(tmp_path, each)) for each in wrapped)
    assert guessed.bytes_per_token == said.bytes_per_token == 131_072
    assert "names no dtype" in guessed.assumed
    assert "dtype" not in said.assumed


@pytest.mark.parametrize(
    "architecture",
    ["llama", "qwen3", "gemma3_text", "gpt_oss", "qwen3_next", "jamba", "nemotron_h", "deepseek_v3", "lfm2"],
)
def test_as_mlx_lm_keeps_it(tmp_path: Path, architecture: str) -> None:
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache, make_prompt_cache

    config = TINY | {"model_type": architecture, "dtype": "float32"} | ARGUMENTS[architecture]
    model = build(architecture)
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([[1, 2, 3]]), cache=cache))
    growing = [layer for layer in cache if type(layer) is KVCache]
    rows = sum(layer.keys[..., 0, :].nbytes + layer.values[..., 0, :].nbytes for layer in growing)
    assert model_size(_write(tmp_path, config)).bytes_per_token == rows


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("{", "is no JSON"),
        ("[]", "holds no JSON object"),
        ({}, "num_hidden_layers is missing"),
        (LLAMA | {"num_hidden_layers": "many"}, "num_hidden_layers is 'many'"),
        (LLAMA | {"num_attention_heads": 0}, "num_attention_heads is 0"),
        (LLAMA | {"torch_dtype": "int8"}, "its dtype is 'int8'"),
        (LLAMA | {"head_dim": 1.5}, "head_dim is no whole number"),
        (LLAMA | {"layer_types": ["odd_attention"] * 32}, "layers of type 'odd_attention'"),
        (LLAMA | {"layer_types": ["mamba"] * 32}, "no layer keeps KV for every token"),
        (LLAMA | {"index_head_dim": 128}, "models with index_head_dim"),
        (LLAMA | {"model_type": "rwkv7"}, "model_type rwkv7"),
    ],
)
def test_configurations_that_do_not_tell(tmp_path: Path, config: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        model_size(_write(tmp_path, config))


def test_the_command_takes_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("[1, 2, 3]\n[1, 2, 4]\n")
    folder = _write(tmp_path, LLAMA)
    assert main(["replay", str(trace), "--model", str(folder), "--budget", "1MB", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out.splitlines()[-1])
    assert "32 of 32 layers" in report["bytes_per_token_assumes"]
    assert report["bytes_per_token_assumes"] in captured.err
    (study,) = report["traces"]
    assert study["bytes_per_token"] == 131_072
    assert [row["budget_tokens"] for row in study["budgets"]] == [7]


def test_the_command_without_a_usable_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        assert main(["replay", "x", "--model", str(path)]) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("kvcache: --model: there is no ")
        assert line.endswith("give --bytes-per-token instead.")
