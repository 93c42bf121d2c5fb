"""What a model's namespace is made of: all that a forward pass may read."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_map
from mlx_lm.models import llama
from mlx_lm.tuner.utils import linear_to_lora_layers

from kvcache import ConfigError, model_namespace

if TYPE_CHECKING:
    from collections.abc import Callable

ARGUMENTS: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def model(**changed: Any) -> Any:
    mx.random.seed(1)
    made = llama.Model(llama.ModelArgs.from_dict(ARGUMENTS | changed))
    made.eval()
    mx.eval(made.parameters())
    return made


def adapted(kind: str = "lora", scale: float = 10.0) -> Any:
    made = model()
    if kind == "quantised lora":
        nn.quantize(made, group_size=32, bits=4)
    config = {"rank": 2, "dropout": 0.0, "scale": scale}
    linear_to_lora_layers(made, 2, config, use_dora=kind == "dora")
    made.eval()
    mx.eval(made.parameters())
    return made


def quantised(**how: Any) -> Any:
    made = model()
    # Alike weights, so that the settings alone tell them apart.
    made.update(tree_map(mx.zeros_like, made.parameters()))
    nn.quantize(made, **how)
    return made


def scaled(by: float) -> Callable[[float], float]:
    return lambda value: value * by


class Layer(nn.Module):
    """Attributes of all kinds."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.weight = mx.ones((2, 2))
        for name, value in attributes.items():
            setattr(self, name, value)


class Other(Layer):
    window = 4


class Wider(Layer):
    window = 8


Other.__qualname__ = Wider.__qualname__ = "Same"

CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "lora scale": (adapted, lambda: adapted(scale=0.0)),
    "dora scale": (lambda: adapted("dora"), lambda: adapted("dora", 1.0)),
    "quantised lora scale": (lambda: adapted("quantised lora"), lambda: adapted("quantised lora", 1.0)),
    "kind of adapter": (adapted, lambda: adapted("dora")),
    "adapter or none": (model, adapted),
    "group size": (lambda: quantised(group_size=32, bits=4), lambda: quantised(group_size=64, bits=4)),
    "bits": (lambda: quantised(group_size=32, bits=4), lambda: quantised(group_size=32, bits=8)),
    "rope base": (model, lambda: model(rope_theta=500.0)),
    "rope traditional": (model, lambda: model(rope_traditional=True)),
    "rope scaling": (model, lambda: model(rope_scaling={"type": "linear", "factor": 2.0})),
    "norm": (model, lambda: model(rms_norm_eps=1e-6)),
    "number": (lambda: Layer(scale=1.0), lambda: Layer(scale=2.0)),
    "int or float": (lambda: Layer(scale=1), lambda: Layer(scale=1.0)),
    "text": (lambda: Layer(mode="a"), lambda: Layer(mode="b")),
    "flag": (lambda: Layer(causal=True), lambda: Layer(causal=False)),
    "none": (lambda: Layer(window=None), Layer),
    "name": (lambda: Layer(a=1), lambda: Layer(b=1)),
    "list": (lambda: Layer(kinds=["full", "slide"]), lambda: Layer(kinds=["slide", "full"])),
    "nested": (lambda: Layer(config={"a": [1, {"b": 2}]}), lambda: Layer(config={"a": [1, {"b": 3}]})),
    "config": (
        lambda: Layer(config=SimpleNamespace(rope=SimpleNamespace(base=1))),
        lambda: Layer(config=SimpleNamespace(rope=SimpleNamespace(base=2))),
    ),
    "private array": (lambda: Layer(_freqs=mx.ones(3)), lambda: Layer(_freqs=mx.zeros(3))),
    "hidden array": (lambda: Layer(held=(mx.ones(3),)), lambda: Layer(held=(mx.zeros(3),))),
    "function": (lambda: Layer(act=nn.relu), lambda: Layer(act=nn.silu)),
    "closure": (lambda: Layer(act=scaled(2)), lambda: Layer(act=scaled(3))),
    "partial": (
        lambda: Layer(act=functools.partial(nn.leaky_relu, negative_slope=0.1)),
        lambda: Layer(act=functools.partial(nn.leaky_relu, negative_slope=0.2)),
    ),
    "method": (lambda: Layer(act=Layer(a=1).train), lambda: Layer(act=Layer(a=2).train)),
    "method in C": (lambda: Layer(act={"a": 1}.get), lambda: Layer(act={"a": 2}.get)),
    "class attribute": (Other, Wider),
    "dtype": (lambda: Layer(dtype=mx.float16), lambda: Layer(dtype=mx.bfloat16)),
    "set": (lambda: Layer(stop={"a", "b"}), lambda: Layer(stop={"a", "c"})),
    "cycle": (lambda: cyclic(1), lambda: cyclic(2)),
}


def cyclic(value: int) -> Layer:
    config = SimpleNamespace(value=value)
    config.parent = {"child": config}
    return Layer(config=config)


def _signs(bits: np.ndarray, distance: int) -> np.ndarray:
    """Where a weight and the one so far behind have different signs, both are turned round."""
    changed = bits.copy()
    pairs = np.flatnonzero((bits[:-distance] ^ bits[distance:]) >> 15)[:100]
    pairs = pairs[pairs < distance]
    changed[pairs] ^= 0x8000
    changed[pairs + distance] ^= 0x8000
    return changed


@pytest.mark.parametrize("rows", [1, 2, 16, 32])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16, mx.uint32, mx.uint8])
def test_weights_in_another_order_are_others(rows: int, dtype: mx.Dtype) -> None:
    """Rows exchanged, over distances that are powers of two, among values with few bits."""
    mx.random.seed(3)
    weight = (mx.random.normal((64, 4096)) * 100).astype(mx.bfloat16)
    weight = weight.view(mx.uint16).astype(dtype) if dtype in (mx.uint32, mx.uint8) else weight.astype(dtype)
    order = list(range(64))
    order[0], order[rows] = rows, 0
    assert model_namespace(Layer(held=weight)) != model_namespace(Layer(held=weight[mx.array(order)]))
    assert model_namespace(Layer(held=weight)) == model_namespace(Layer(held=mx.array(weight)))


@pytest.mark.parametrize("exponent", [12, 14, 16, 17])
def test_signs_exchanged_are_other_weights(exponent: int) -> None:
    bits = np.random.default_rng(3).integers(0, 1 << 16, 1 << 18, dtype=np.uint16)
    one, other = (mx.array(each).view(mx.bfloat16) for each in (bits, _signs(bits, 1 << exponent)))
    assert model_namespace(Layer(held=one)) != model_namespace(Layer(held=other))


@pytest.mark.parametrize("count", range(1, 18))
def test_the_last_bytes_count(count: int) -> None:
    names = {
        model_namespace(Layer(held=mx.array([*[7] * (count - 1), last], dtype=mx.uint8))) for last in range(5)
    }
    assert len(names) == 5


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_the_computation_changes_the_name(name: str) -> None:
    one, other = CHANGES[name]
    assert model_namespace(one()) != model_namespace(other())
    assert model_namespace(one()) == model_namespace(one())
    assert model_namespace(other()) == model_namespace(other())


def test_an_adapter_that_is_turned_off_and_on_again() -> None:
    made = adapted()
    on = model_namespace(made)
    layers = [layer for _, layer in made.named_modules() if hasattr(layer, "lora_a")]
    for layer in layers:
        layer.scale = 0.0
    off = model_namespace(made)
    for layer in layers:
        layer.scale = 10.0
    assert on != off
    assert model_namespace(made) == on


def test_what_a_forward_pass_leaves_alone_stays_the_same() -> None:
    made = model()
    name = model_namespace(made)
    made(mx.array([[1, 2, 3]]))
    made.freeze()
    assert model_namespace(made) == name


SCRIPT = """
from tests.cache.test_fingerprint import CHANGES, model_namespace
for name, pair in CHANGES.items():
    print(name, *(model_namespace(make()) for make in pair))
"""


def test_another_process_gives_the_same_names() -> None:
    """No address and no order of a set is in them."""
    told = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in (1, 2)
    ]
    assert told[0] == told[1]
    assert len(told[0].splitlines()) == len(CHANGES)


def test_the_work_is_linear_in_what_is_read() -> None:
    """Lists that hold each other twice have 2^60 paths and 60 members."""
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]
    assert model_namespace(Layer(config=shared)) != model_namespace(Layer(config=[]))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"model": "m\ud800"}, ConfigError, "^model must be a str without lone surrogates"),
        ({"model": "m", "adapter": "\udfff"}, ConfigError, "^adapter"),
        ({"model": "m", "salt": "\ud800"}, ConfigError, "^salt"),
        ({"model": "m", "salt": None}, TypeError, "^salt must be a str"),
        ({"model": "m", "adapter": 3}, TypeError, "^adapter must be a str"),
        ({"model": "m", "kv_bits": "4"}, TypeError, "^kv_bits must be an int or None"),
    ],
)
def test_bad_texts_are_named(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        model_namespace(**arguments)
