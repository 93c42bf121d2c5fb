"""Wheel and sdist, each into an environment that has nothing: installed, imported, used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import kvcache
from tests.shipping.conftest import Environment
from tests.support.full import only_full

if TYPE_CHECKING:
    from pathlib import Path


INDEX = """
import sys
from importlib.metadata import version
import kvcache
from kvcache import PrefixIndex
index = PrefixIndex(max_bytes=100)
index.insert([1, 2, 3])
assert index.match_prefix([1, 2, 9]).length == 2
index.validate()
assert not {"mlx", "mlx_lm", "transformers"} & set(sys.modules)
assert kvcache.__version__ == version("kvcache")
print(kvcache.__version__, kvcache.__file__)
"""
MISSING = """
try:
    from kvcache import KVPrefixCache
except ImportError as error:
    print(error)
"""
CACHE = """
import mlx.core as mx
from kvcache import KVPrefixCache
from mlx_lm.models.cache import KVCache
layer = KVCache()
layer.update_and_fetch(mx.ones((1, 2, 5, 4)), mx.zeros((1, 2, 5, 4)))
with KVPrefixCache(max_bytes="1MB") as cache:
    assert cache.store([1, 2, 3, 4, 5], [layer]).new_tokens == 5
    hit = cache.fetch([1, 2, 3, 9])
    assert (hit.length, hit.remaining, hit.prompt_cache[0].offset) == (3, [9], 3)
    assert mx.array_equal(hit.prompt_cache[0].keys[..., :3, :], mx.ones((1, 2, 3, 4)))
    cache.validate()
print("ok")
"""


def _check_index(environment: Environment) -> None:
    version, file = environment.python(INDEX).split()
    assert version == kvcache.__version__
    assert file.startswith(str(environment.folder))
    assert environment.kvcache("--version").stdout.strip() == f"kvcache {version}"


def _check_without_mlx(environment: Environment) -> None:
    said = environment.python(MISSING)
    assert len(said.splitlines()) == 1
    for part in ("MLX cannot be imported here", "kvcache.KVPrefixCache", "kvcache[cpu]", "kvcache[cuda13]"):
        assert part in said
    assert "kvcache[cpu]" in environment.kvcache("doctor").stdout
    failed = environment.kvcache("demo", code=1).stderr
    assert "kvcache[cpu]" in failed
    assert len(failed.splitlines()) == 1


@only_full
def test_wheel(wheel: Path, tmp_path: Path, downloads: Path) -> None:
    environment = Environment(tmp_path, downloads)
    environment.install(str(wheel))
    _check_index(environment)
    if sys.platform != "darwin":  # there MLX is a dependency
        _check_without_mlx(environment)
        environment.install(f"{wheel}[cpu]")
    assert environment.python(CACHE) == "ok"


@only_full
def test_sdist(sdist: Path, tmp_path: Path, downloads: Path) -> None:
    """pip builds it, with nothing but the build requirements that it declares.

    Nothing built before is used: the files of an sdist are all of one date, so Cargo cannot tell them apart.
    """
    environment = Environment(tmp_path, downloads)
    environment.install(f"{sdist}[cpu]", CARGO_TARGET_DIR=str(tmp_path / "target"))
    _check_index(environment)
    assert environment.python(CACHE) == "ok"
