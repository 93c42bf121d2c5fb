"""Layers and layouts as data: written down, read back through JSON, here and in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache

from kvcache import ConfigError, KVPrefixCache, layers
from kvcache.arrays import detach
from kvcache.layers import Image, Refusal
from kvcache.layers.base import SpanAdapter
from kvcache.layers.layout import ImageLeaf, Layout
from kvcache.layers.prompt_cache import Prompt
from tests.support.failures import assert_settled
from tests.support.layers import KV, Recurrent
from tests.support.models import MODELS, prompt
from tests.support.patience import PATIENCE
from tests.support.poskv import PosKV

N = 20


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of the test's own, in which the unknown class of tests/support is known."""
    monkeypatch.setattr(layers.registry, "_registered", {Recurrent: layers.registry._OPAQUE})


def through_json(data: Any) -> Any:
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again == data
    return again


def details(layout: Layout) -> list[Any]:
    """What equality leaves out as well."""
    return [
        (leaf.cls, leaf.static, leaf.signature, type(leaf.static), leaf.adapter) for leaf in layout.leaves
    ]


def rebuilt(prompt_cache: list[Any], cut: int | None = None) -> list[Any]:
    """The same from a layout and images that went through JSON."""
    read = Prompt(prompt_cache)
    layout = Layout.from_data(through_json(read.layout().to_data()))
    images = iter(read.images())
    made = []
    for leaf, cache in zip(layout.leaves, read.caches, strict=True):
        if isinstance(leaf, ImageLeaf):
            image = next(images)
            assert cut is None or image.trimmable
            views = [array if cut is None else array[..., :cut, :] for array in image.arrays]
            meta = through_json(image.meta)
            made.append(leaf.adapter.build(leaf.cls, leaf.static, meta, list(map(detach, views)), cut))
            assert image.meta == meta, "build changed the meta that it was given"
        else:
            held = len(prompt(N)) if cut is None else cut
            views = [detach(array[..., :held, :]) for array in leaf.adapter.arrays(cache)]
            made.append(leaf.adapter.build(leaf.cls, leaf.static, views, held))
    return layout.group(made)


@settings(max_examples=60)
@given(name=st.sampled_from(sorted(MODELS)), chunk=st.sampled_from([1, 3, 7, N]))
def test_layers_of_every_kind_go_on_from_data_as_if_they_had_run_on(name: str, chunk: int) -> None:
    model = MODELS[name]()
    found = rebuilt(model.filled(prompt(N), chunk=chunk))
    model.check(found, prompt(N))
    model.grow(found, prompt(9, first=1), chunk=chunk)
    model.check(found, prompt(N) + prompt(9, first=1))


@pytest.mark.parametrize("cut", [1, 5])
@pytest.mark.parametrize("layer", ["rotating", "rotating-keep", "chunked"])
def test_windows_that_had_not_turned_are_cut_from_data(layer: str, cut: int) -> None:
    model = MODELS[layer]()
    found = rebuilt(model.filled(prompt(7)), cut)
    model.check(found, prompt(cut))
    model.grow(found, prompt(9, first=1), chunk=4)
    model.check(found, prompt(cut) + prompt(9, first=1))


@pytest.mark.parametrize("name", MODELS)
def test_a_layout_comes_back(name: str) -> None:
    layout = Prompt(MODELS[name]().filled(prompt(N))).layout()
    found = Layout.from_data(through_json(layout.to_data()))
    assert found == layout
    assert hash(found) == hash(layout)
    assert details(found) == details(layout)
    assert found.list_cls is layout.list_cls
    assert found.to_data() == layout.to_data()
    figures = layout.token_bytes, layout.segment_buffers, layout.checkpointed, layout.spans
    assert (found.token_bytes, found.segment_buffers, found.checkpointed, found.spans) == figures


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_dtypes_come_back(dtype: mx.Dtype) -> None:
    layer = KVCache()
    layer.update_and_fetch(mx.ones((1, 2, 3, 4), dtype), mx.ones((1, 2, 3, 6), dtype))
    layout = Prompt([layer]).layout()
    found = Layout.from_data(through_json(layout.to_data()))
    assert found == layout
    assert [array[2] for array in found.spans[0].arrays] == [dtype, dtype]
    assert found.token_bytes == 2 * 10 * dtype.size


def test_another_process_reads_a_layout_and_imports_nothing_that_it_names() -> None:
    data = Prompt(MODELS["list-state"]().filled(prompt(N))).layout().to_data()
    named = {**data, "leaves": [{**data["leaves"][0], "class": "antigravity.Cache"}]}
    code = f"""
import sys
from kvcache.layers import Refusal
from kvcache.layers.layout import Layout
assert "mlx_lm" not in sys.modules
try:
    Layout.from_data({named!r})
except Refusal as refusal:
    print(refusal.reason, "antigravity" in sys.modules, "mlx_lm" in sys.modules)
layout = Layout.from_data({data!r})
print(layout.to_data() == {data!r}, *[leaf.cls.__name__ for leaf in layout.leaves], layout.list_cls.__name__)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert run.stdout.splitlines() == [
        "unsupported_layer False False",
        "True ArraysCache KVCache ArraysCache KVCache CacheList",
    ]


def test_a_class_that_is_not_registered_is_refused_on_both_sides() -> None:
    layout = Prompt(MODELS["opaque"]().filled(prompt(N))).layout()
    data = layout.to_data()
    layers.registry._registered.clear()
    for refused in (layout.to_data, lambda: Layout.from_data(data)):
        with pytest.raises(Refusal, match=r"Recurrent.*register"):
            refused()
    layers.register(Recurrent, "state")
    assert Layout.from_data(data) == layout
    layers.register(Recurrent, "span")
    with pytest.raises(Refusal, match="another kind"):
        Layout.from_data(data)


def test_of_two_classes_of_one_name_the_last_has_it() -> None:
    def made() -> Any:
        class Mine(KVCache):
            pass

        layers.register(Mine, "span")
        layer = Mine()
        layer.update_and_fetch(mx.ones((1, 1, 2, 4)), mx.ones((1, 1, 2, 4)))
        return layer

    first, second = Prompt([made()]).layout(), Prompt([made()]).layout()
    with pytest.raises(Refusal, match="two classes"):
        first.to_data()
    assert Layout.from_data(second.to_data()) == second


@pytest.mark.parametrize(
    "changed", [{"shape": [9]}, {"shape": [-1]}, {"shape": [True]}, {"leaves": [{}]}, {"list": "os.x"}]
)
def test_a_layout_of_another_form_is_refused(changed: dict[str, Any]) -> None:
    data = Prompt(MODELS["kv"]().filled(prompt(N))).layout().to_data()
    for wrong in ({**data, **changed}, {}, [], None):
        with pytest.raises(Refusal):
            Layout.from_data(wrong)


# Adapters of users.


class Sums:
    """A recurrent layer of a user's: a running sum, and how many were summed."""

    def __init__(self) -> None:
        self.total = mx.zeros((1, 1))
        self.seen = 0


class SumsAdapter:
    def __init__(self, meta: Any = None) -> None:
        self.meta = meta
        self.images = 0

    def offset(self, cache: Any) -> int:
        return int(cache.seen)

    def static(self, cache: Any) -> Any:
        return ()

    def signature(self, cache: Any) -> Any:
        return (1,)

    def image(self, cache: Any) -> Image:
        self.images += 1
        return Image([cache.total], {"seen": cache.seen} if self.meta is None else self.meta)

    def build(self, cls: type, static: Any, meta: Any, arrays: list[Any], length: int | None) -> Any:
        cache: Any = cls()
        [cache.total], cache.seen = arrays, meta["seen"]
        return cache

    def clear(self, cache: Any) -> None:
        cache.total = None


def summed() -> Sums:
    layer = Sums()
    layer.total, layer.seen = mx.full((1, 1), 7.0), N
    return layer


def test_an_adapter_of_a_user_s_is_asked_once_a_store() -> None:
    adapter = SumsAdapter()
    layers.register(Sums, adapter)
    cache = KVPrefixCache()
    assert cache.store([*prompt(N), 5], [summed()]).length == N
    assert adapter.images == 1
    found = cache.fetch([*prompt(N), 1]).prompt_cache[0]
    assert (type(found), found.total.item(), found.seen) == (Sums, 7.0, N)
    layer = summed()
    assert cache.store(prompt(N, first=1), [layer], donate=True).length == N
    assert (adapter.images, layer.total) == (2, None)
    assert_settled(cache)


@pytest.mark.parametrize(
    "meta", [{"seen": (1,)}, {1: 2}, {"seen": float("nan")}, len, {"seen": mx.array(1)}, {}]
)
def test_meta_that_is_no_data_is_refused_at_the_store(meta: Any) -> None:
    layers.register(Sums, SumsAdapter(meta))
    cache, layer = KVPrefixCache(), summed()
    stored = cache.store(prompt(N), [layer], donate=True)
    assert (stored.reason, cache.nbytes) == ("unsupported_layer", 0)
    assert "Sums" in stored.detail
    assert layer.total is not None
    assert_settled(cache)


class Closures:
    """As adapters were written before images were data."""

    offset, static, signature = SumsAdapter.offset, SumsAdapter.static, SumsAdapter.signature
    image, clear = SumsAdapter.image, SumsAdapter.clear


class Narrow(SumsAdapter):
    def build(self, cls: type, arrays: list[Any]) -> Any:  # type: ignore[override]
        raise NotImplementedError


@pytest.mark.parametrize(
    ("adapter", "why"),
    [(Closures(), r"no build\(\)"), (Narrow(), "must take"), (SumsAdapter, "instance"), (3, "adapter")],
)
def test_an_adapter_that_does_not_fit_is_refused_when_it_is_registered(adapter: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        layers.register(Sums, adapter)
    assert Sums not in layers.registry._registered


def test_what_one_adapter_stored_is_never_built_by_another() -> None:
    class Other(SumsAdapter):
        def image(self, cache: Any) -> Image:
            return Image([cache.total], [cache.seen])

        def build(self, cls: type, static: Any, meta: Any, arrays: list[Any], length: int | None) -> Any:
            return super().build(cls, static, {"seen": meta[0]}, arrays, length)

    cache = KVPrefixCache()
    for number, adapter in enumerate([SumsAdapter(), Other()]):
        layers.register(Sums, adapter)
        assert cache.store(prompt(N, first=number), [summed()]).length == N
    for number in range(2):
        assert cache.fetch([*prompt(N, first=number), 1]).prompt_cache[0].seen == N


def test_span_layers_have_no_image() -> None:
    read = Prompt(PosKV(KV()).filled(prompt(N)))
    assert read.images() == []
    assert all(isinstance(adapter, SpanAdapter) for adapter in read.adapters)
