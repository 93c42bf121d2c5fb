"""The picture of the parts is up to date, and its arrows are imports."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "python"


def _script() -> Any:
    path = ROOT / "docs/_extensions/parts_drawing.py"
    spec = importlib.util.spec_from_file_location("parts_drawing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "parts_drawing", module)
        spec.loader.exec_module(module)
    return module


DRAWING = _script()
PYTHON = {name: box.modules for name, box in DRAWING.BOXES.items() if box.modules}


def _files(modules: tuple[str, ...]) -> list[Path]:
    """The files of modules and packages by name; the extension has none."""
    found = []
    for module in modules:
        path = SOURCE / module.replace(".", "/")
        found += [path.with_suffix(".py")] if path.with_suffix(".py").exists() else list(path.rglob("*.py"))
    return found


def _imports(source: str, target: str) -> bool:
    """Whether a file of one part imports from another."""
    names: set[str] = set()
    for path in _files(PYTHON[source]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    return any(name == module or name.startswith(f"{module}.") for name in names for module in PYTHON[target])


def test_the_picture_is_what_the_script_draws() -> None:
    assert DRAWING.TARGET.read_text(encoding="utf-8") == DRAWING.draw(), (
        "draw it again: python docs/_extensions/parts_drawing.py"
    )


@pytest.mark.parametrize(
    ("source", "target"),
    [(source, target) for source, target, _ in DRAWING.ARROWS if source in PYTHON and target in PYTHON],
)
def test_an_arrow_is_an_import_and_goes_one_way(source: str, target: str) -> None:
    assert _imports(source, target)
    assert not _imports(target, source)


def test_every_part_in_the_picture_exists() -> None:
    for modules in PYTHON.values():
        assert _files(modules) or modules == ("kvcache._core",)
    core = ROOT / "rust/core/src"
    for name in ("verbs", "trees", "nodes"):
        for part in DRAWING.BOXES[name].title.split(" · "):
            assert (core / part.rstrip("/")).is_dir() or (core / f"{part}.rs").is_file(), part


def test_an_arrow_that_is_no_import_is_seen() -> None:
    assert not _imports("layers", "operations")
    assert not _imports("storage", "memory")
