"""What imports what, and that the public names are those of the API."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from dataclasses import fields
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kvcache
from kvcache import errors
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(kvcache.__file__).parent
# From the top down, each module in exactly one level: it imports from the levels below its own, and from
# its own only within one folder. A folder's name stands for all its modules that have no line of theirs.
LEVELS = (
    ("kvcache.__main__",),
    ("kvcache.cli",),
    ("kvcache.integrations",),
    ("kvcache.replay",),
    ("kvcache",),
    ("kvcache.cache",),
    ("kvcache.session",),
    ("kvcache.operations.store",),
    (
        "kvcache.operations.fetch",
        "kvcache.operations.reserve",
        "kvcache.operations.pin",
        "kvcache.operations.drop",
    ),
    ("kvcache.operations.plan", "kvcache.operations.compact"),
    ("kvcache.operations.allocate", "kvcache.operations.copy"),
    ("kvcache.operations.evict",),
    ("kvcache.operations.context",),
    ("kvcache.operations",),
    ("kvcache.ranks.matching",),
    ("kvcache.ranks",),
    ("kvcache.storage", "kvcache.progress"),
    ("kvcache.layers",),
    ("kvcache.memory", "kvcache.running", "kvcache.processors"),
    ("kvcache.request", "kvcache.stats", "kvcache.namespaces"),
    ("kvcache.results", "kvcache.fingerprint"),
    ("kvcache.media", "kvcache.sizes", "kvcache.arrays"),
    ("kvcache.arguments",),
    ("kvcache.errors",),
    ("kvcache.eviction",),
    ("kvcache._core",),
)


def _name(path: Path) -> str:
    parts = ["kvcache", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in ROOT.rglob("*.py")} | {"kvcache._core": None}


def _level(module: str) -> int:
    """The level of the longest name that the module has or is inside of."""
    names = {name: level for level, group in enumerate(LEVELS) for name in group}
    while module not in names:
        module = module.rpartition(".")[0]
    return names[module]


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports: also those inside functions, and those for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from _imports(node)


def _imported(path: Path | None) -> set[str]:
    found = set()
    for node in _imports(ast.parse(path.read_text())) if path else ():
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"a relative import in {path}"
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inside or {str(node.module)}
    return {name for name in found if name.split(".")[0] == "kvcache"}


GRAPH = {module: _imported(path) for module, path in MODULES.items()}


def test_every_module_has_a_level() -> None:
    named = {name for group in LEVELS for name in group}
    assert named <= MODULES.keys()
    loose = {name for name in MODULES if name.count(".") == 1 and name not in named}
    assert not loose


def test_imports_go_down() -> None:
    up = [
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        for other in others
        if _level(other) < _level(module)
        or (_level(other) == _level(module) and other.split(".")[:2] != module.split(".")[:2])
    ]
    assert not up


def test_no_module_imports_itself_in_a_circle() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(f"imports in a circle: {error.args[1]}")


def test_the_tests_above_see_imports() -> None:
    """An empty graph has no faults."""
    assert {"kvcache._core", "kvcache.operations.context"} <= GRAPH["kvcache.cache"]
    assert "kvcache.storage.contents" in GRAPH["kvcache.operations.evict"]
    assert "kvcache.cache" not in GRAPH["kvcache.session"]
    assert "kvcache.results" in GRAPH["kvcache.request"] | GRAPH["kvcache.session"]
    assert set().union(*GRAPH.values()) <= MODULES.keys()


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        ("import kvcache", {"mlx", "mlx_lm", "transformers", "numpy"}),
        (
            "from kvcache import PrefixIndex; PrefixIndex().insert([1, 2, 3])",
            {"mlx", "mlx_lm", "transformers"},
        ),
        ("from kvcache import *", {"mlx_lm", "transformers"}),
        ("import kvcache; kvcache.KVPrefixCache(max_bytes='1MB').peek([1, 2])", {"mlx_lm", "transformers"}),
    ],
)
def test_what_an_import_does_not_bring(statement: str, without: set[str]) -> None:
    code = f"{statement}\nimport sys\nprint(sorted({without} & {{*sys.modules}}))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert result.stdout.strip() == "[]"


def test_logging_is_silent_until_it_is_asked_for() -> None:
    code = """
import sys
from loguru import logger
from kvcache import KVPrefixCache
cache = KVPrefixCache()
cache.clear()
logger.enable("kvcache")
cache.clear()
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "evicted 0 tokens" in result.stderr


PUBLIC = {
    "AllocationError",
    "ClosedError",
    "ConfigError",
    "Eviction",
    "Hit",
    "InternalError",
    "KVCacheError",
    "KVPrefixCache",
    "MediaSpan",
    "Pin",
    "PrefixIndex",
    "PressureSource",
    "Session",
    "Stats",
    "Stored",
    "SystemMemoryPressure",
    "TokenError",
}
# Parameters and their defaults, as the API fixes them; "..." where there is no default.
METHODS = {
    "fetch": "tokens=..., *, namespace='', media=(), take=False",
    "peek": "tokens=..., *, namespace='', media=()",
    "store": "tokens=..., prompt_cache=..., *, namespace='', media=(), length=None, prompt_length=None, "
    "label='', donate=False",
    "session": "tokens=..., *, model=None, draft_model=None, namespace='', media=(), take=False, "
    "prefill_step_size=2048, max_kv_size=None, kv_bits=None, kv_group_size=64, quantized_kv_start=5000",
    "reserve": "nbytes=..., *, protect=None",
    "evict": "nbytes=...",
    "evict_idle": "seconds=...",
    "trim_to": "*, nbytes=None, tokens=None, sequences=None, entries=None",
    "pin": "tokens=..., *, namespace='', media=()",
    "drop": "namespace=...",
    "clear": "",
    "close": "",
    "stats": "namespace=None",
    "validate": "",
}
FIELDS = {
    "MediaSpan": "start length digest",
    "Hit": "length prompt_cache remaining reason matched checkpoint_at",
    "Stored": "length new_tokens nbytes reason evicted",
    "Eviction": "segments checkpoints tokens nbytes freed cycles seconds",
    "Stats": "lookups hits lookup_tokens hit_tokens misses_by_reason stores stored_tokens refused_by_reason "
    "evictions evicted_tokens evicted_bytes reclaim_cycles reclaim_seconds nbytes ntokens nodes segments "
    "checkpoints buffers index_bytes",
}


def test_public_names() -> None:
    assert set(kvcache.__all__) >= PUBLIC
    assert sorted(kvcache.__all__) == dir(kvcache)
    for name in kvcache.__all__:
        assert getattr(kvcache, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'NoSuchThing'"):
        _ = kvcache.NoSuchThing


@pytest.mark.parametrize("name", METHODS)
def test_signatures(name: str) -> None:
    signature = inspect.signature(getattr(kvcache.KVPrefixCache, name))
    shown, starred = [], False
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        default = "..." if parameter.default is parameter.empty else repr(parameter.default)
        shown.append(f"{parameter.name}={default}")
    assert ", ".join(shown) == METHODS[name]


def test_the_constructor_takes_names_only() -> None:
    parameters = list(inspect.signature(kvcache.KVPrefixCache).parameters.values())
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    defaults = {parameter.name: parameter.default for parameter in parameters}
    expected = {"max_bytes": None, "max_buffers": None, "memory_limit": None, "pressure": None}
    expected |= {"segment_tokens": 1024, "max_checkpoints": 8, "gc": "always"}
    assert defaults.items() >= expected.items()


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    cls = getattr(kvcache, name)
    assert {field.name for field in fields(cls)} >= set(FIELDS[name].split())
    assert cls.__dataclass_params__.frozen


def test_errors_can_be_caught_as_what_they_are() -> None:
    for name, bases in {
        "AllocationError": (MemoryError,),
        "TokenError": (ValueError,),
        "ConfigError": (ValueError,),
        "ClosedError": (),
        "InternalError": (),
    }.items():
        assert all(issubclass(getattr(kvcache, name), base) for base in (errors.KVCacheError, *bases))


def test_every_module_says_what_it_is() -> None:
    for name, path in MODULES.items():
        if path is not None and name != "kvcache.__main__":
            assert ast.get_docstring(ast.parse(path.read_text())), name
    assert (ROOT / "py.typed").exists()
    assert import_module("kvcache.layers") is kvcache.layers
