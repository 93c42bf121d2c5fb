"""Namespaces: different models, adapters, quantisations and tenants never share one."""

from __future__ import annotations

import itertools

import mlx.core as mx
import pytest
from mlx import nn

from kvcache import ConfigError, model_namespace


def model(seed: int = 0, width: int = 8) -> nn.Module:
    mx.random.seed(seed)
    built = nn.Sequential(nn.Linear(width, width), nn.RMSNorm(width))
    mx.eval(built.parameters())
    return built


def test_everything_that_must_not_mix_is_told_apart() -> None:
    names = ["org/model@1", "org/model@2"]
    adapters = [None, "lora@v1", "lora@v2"]
    bits = [None, 4, 8]
    salts = ["", "tenant a", "tenant b"]
    made = [
        model_namespace(name, adapter=adapter, kv_bits=kv_bits, salt=salt)
        for name, adapter, kv_bits, salt in itertools.product(names, adapters, bits, salts)
    ]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"adapter": "a", "salt": "b"}, {"adapter": "b", "salt": "a"}),
        ({"adapter": "ab"}, {"adapter": "a", "salt": "b"}),
        ({"adapter": "null"}, {"adapter": None}),
        ({"salt": '"], ["'}, {"salt": ""}),
    ],
)
def test_parts_cannot_be_shifted_into_each_other(first: dict[str, str], second: dict[str, str]) -> None:
    assert model_namespace("m", **first) != model_namespace("m", **second)


def test_equal_weights_share_and_any_other_weight_does_not() -> None:
    base = model()
    assert model_namespace(base) == model_namespace(model())
    assert model_namespace(base) != model_namespace(model(seed=1))
    assert model_namespace(base) != model_namespace(model(width=16))
    name = model_namespace(base)
    base.layers[0].weight[3, 5] += 1e-6
    assert model_namespace(base) != name


def test_swapped_rows_are_other_weights() -> None:
    base, swapped = model(), model()
    rows = mx.array([1, 0, *range(2, 8)])
    swapped.layers[0].weight = swapped.layers[0].weight[rows]
    assert model_namespace(base) != model_namespace(swapped)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_every_dtype_is_read(dtype: mx.Dtype) -> None:
    typed = model()
    typed.set_dtype(dtype)
    assert model_namespace(typed) == model_namespace(typed)
    assert dtype == mx.float32 or model_namespace(typed) != model_namespace(model())


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="empty str"):
        model_namespace("")
    with pytest.raises(TypeError, match="must be a str or an mlx module, found int"):
        model_namespace(7)
