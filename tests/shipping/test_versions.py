"""One version: the workspace's. Everything else repeats it or is read from it."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import kvcache
from kvcache import _core
from tests.shipping.conftest import ROOT

CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = CARGO["workspace"]["package"]["version"]


def test_the_workspace_says_it_and_the_rest_reads_it() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(-\w+(\.\d+)?)?", VERSION)
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    for member in CARGO["workspace"]["members"]:
        crate = tomllib.loads((ROOT / member / "Cargo.toml").read_text())["package"]
        assert crate["version"] == {"workspace": True}, member


def test_python_and_the_extension_carry_it() -> None:
    assert kvcache.__version__ == _core.__version__ == metadata.version("kvcache") == VERSION


def test_the_lock_file_has_it() -> None:
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    ours = {
        package["name"]: package["version"] for package in packages if package["name"].startswith("kvcache")
    }
    assert ours == dict.fromkeys(("kvcache-core", "kvcache-bindings", "kvcache-disk"), VERSION)


def test_the_newest_entry_of_the_changelog_is_about_it() -> None:
    headings = re.findall(r"^## \[([^\]]+)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version, date = headings[0]
    assert version == VERSION
    assert re.fullmatch(r"unreleased|\d{4}-\d\d-\d\d", date)
    for _, earlier in headings[1:]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", earlier)


def test_no_page_names_another_one() -> None:
    """Pages speak of the version only through the extension module."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md"), *(ROOT / "docs").glob("*.py")]
    for page in pages:
        for found in re.findall(r"kvcache(?:==|>=| version | )v?(\d+\.\d+\.\d+)", page.read_text()):
            assert found == VERSION, page


def test_the_supported_range_is_stated_once_and_repeated_rightly() -> None:
    required = {line.split(">")[0]: line for line in PROJECT["dependencies"]}
    for name in ("mlx", "mlx-lm"):
        series = re.search(r">=(\d+\.\d+)[.\d]*,<(\d+\.\d+)", required[name])
        assert series is not None, f"{name} has no upper bound"
        low, high = (tuple(map(int, bound.split("."))) for bound in series.groups())
        assert high == (low[0], low[1] + 1)
        assert f"{name} {series[1]}" in (ROOT / "README.md").read_text()
