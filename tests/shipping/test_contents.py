"""What is inside the wheel and the sdist, and what must not be."""

from __future__ import annotations

import os
import re
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

import kvcache
from tests.shipping.conftest import ROOT
from tests.support.full import only_full

if TYPE_CHECKING:
    from email.message import Message


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Building takes longer than all that is asserted about what was built.
pytestmark = only_full


def _inside(path: Path) -> dict[str, bytes]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        found = {entry.name: archive.extractfile(entry) for entry in archive if entry.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


def _metadata(wheel: Path) -> Message:
    return message_from_bytes(_inside(wheel)[f"kvcache-{kvcache.__version__}.dist-info/METADATA"])


def test_one_wheel_for_all_interpreters(wheel: Path) -> None:
    name, version, _, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version)) == ("kvcache", kvcache.__version__)
    assert {(tag.interpreter, tag.abi) for tag in tags} == {("cp311", "abi3")}
    assert all(re.match("manylinux|macosx", tag.platform) for tag in tags)
    inside = message_from_bytes(_inside(wheel)[f"kvcache-{version}.dist-info/WHEEL"])
    assert set(inside.get_all("Tag", [])) == {str(tag) for tag in tags}


def test_the_wheel_has_what_it_needs_and_no_more(wheel: Path) -> None:
    inside = _inside(wheel)
    package = {str(path.relative_to(ROOT / "python")) for path in ROOT.glob("python/kvcache/**/*.py")}
    info = f"kvcache-{kvcache.__version__}.dist-info"
    assert set(inside) == package | {
        "kvcache/_core.abi3.so",
        "kvcache/_core.pyi",
        "kvcache/py.typed",
        *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")),
        f"{info}/licenses/LICENSE",
    }
    assert inside[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    for name in package:
        assert inside[name] == (ROOT / "python" / name).read_bytes(), name


def test_the_sdist_can_be_built_and_has_no_leftovers(sdist: Path) -> None:
    top = f"kvcache-{kvcache.__version__}/"
    names = {name.removeprefix(top) for name in _inside(sdist)}
    assert {"Cargo.toml", "Cargo.lock", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= names
    assert {"rust/bindings/src/lib.rs", "rust/core/src/lib.rs", "python/kvcache/py.typed"} <= names
    rest = {
        name for name in names if "/" in name and not re.match(r"python/kvcache/|rust/(core|bindings)/", name)
    }
    assert not rest
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_no_folder_of_the_machine_that_built_it(kind: str, request: pytest.FixtureRequest) -> None:
    built: Path = request.getfixturevalue(kind)
    folders = {ROOT, Path.home(), Path(os.environ.get("CARGO_HOME", "~/.cargo")).expanduser(), built.parent}
    found = [
        (name, folder)
        for name, content in _inside(built).items()
        for folder in folders
        if f"{folder}/".encode() in content
    ]
    assert not found


def test_metadata(wheel: Path) -> None:
    metadata = _metadata(wheel)
    assert metadata["Name"] == "kvcache"
    assert metadata["Version"] == kvcache.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata["Summary"] == PROJECT["description"]
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    assert metadata.get_payload(decode=True).decode().strip() == (ROOT / "README.md").read_text().strip()
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    for line in PROJECT["dependencies"]:
        assert Requirement(line) in required
    plain = [requirement for requirement in required if "extra" not in str(requirement.marker)]
    assert len(plain) == len(PROJECT["dependencies"])
