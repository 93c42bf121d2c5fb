"""The reference has every public name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kvcache
from kvcache.cli import _SUBCOMMANDS

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference").glob("*.md")}
EVERYTHING = "\n".join(PAGES.values())


@pytest.mark.parametrize("name", [name for name in kvcache.__all__ if name not in ("__version__", "layers")])
def test_every_public_name_has_an_entry(name: str) -> None:
    assert re.search(rf"^\.\. (auto\w+|py:data):: {name}$", EVERYTHING, re.MULTILINE)


@pytest.mark.parametrize("name", ["Match", "Inserted", "Evicted", "IndexStats"])
def test_every_attribute_of_native_results_has_a_row(name: str) -> None:
    stub = ast.parse((ROOT / "python/kvcache/_core.pyi").read_text())
    (cls,) = (node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == name)
    attributes = [node.name for node in cls.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    entry = PAGES["prefix-index.md"].split(f".. autoclass:: {name}\n")[1].split(".. autoclass::")[0]
    assert re.findall(r"^\| `(\w+)`", entry, re.MULTILINE) == attributes


def test_every_reason_has_a_row() -> None:
    from typing import get_args

    from kvcache.results import Reason, StoreReason

    rows = re.findall(r"^\| `(\w+)` \|", PAGES["results.md"], re.MULTILINE)
    assert rows == [*[reason for reason in get_args(Reason) if reason != "hit"], *get_args(StoreReason)]


def test_every_command_has_its_help() -> None:
    named = re.findall(r"^```\{command-help\} ?(\w*)$", PAGES["command-line.md"], re.MULTILINE)
    assert named == ["", *(module.__name__.rpartition(".")[2] for module in _SUBCOMMANDS)]
