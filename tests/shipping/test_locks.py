"""The lock files: they fit what pyproject.toml asks for, have hashes, and come from no private index."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.shipping.conftest import ROOT

LOCKS = ("dev.txt", "cpu.txt", "oldest.txt")
PIN = re.compile(
    r"^([a-z0-9-]+)==(\S+)(?: ; ([^\\\n]+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
    re.MULTILINE,
)


def _pins(name: str) -> dict[str, list[Version]]:
    found: dict[str, list[Version]] = {}
    for package, version, _, _ in PIN.findall((ROOT / "requirements" / name).read_text()):
        found.setdefault(package, []).append(Version(version))
    return found


PINS = _pins("dev.txt")


@pytest.mark.parametrize("name", LOCKS)
def test_nothing_but_pins_hashes_and_comments(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    rest = PIN.sub("", text)
    assert not [line for line in rest.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert "://" not in text
    assert "index" not in text


def test_every_requirement_is_pinned_to_what_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *extras["dev"], *extras["bench"], *extras["docs"]]:
        requirement = Requirement(line)
        versions = PINS.get(canonicalize_name(requirement.name))
        assert versions, f"{line} is not in requirements/dev.txt: make lock"
        assert all(requirement.specifier.contains(version) for version in versions), f"{line}: make lock"


def test_linux_has_the_same_mlx_as_a_mac() -> None:
    assert _pins("cpu.txt") == {"mlx": PINS["mlx"], "mlx-cpu": PINS["mlx"]}
    assert PINS["mlx-metal"] == PINS["mlx"]


def test_the_build_backend_is_the_locked_one() -> None:
    (build,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert Requirement(build).specifier.contains(PINS["maturin"][0])


@pytest.mark.parametrize("name", ["Cargo.lock", "benches/peers/Cargo.lock"])
def test_crates_come_from_crates_io(name: str) -> None:
    packages = tomllib.loads((ROOT / name).read_text())["package"]
    assert packages
    sources = {package["source"] for package in packages if "source" in package}
    assert sources <= {"registry+https://github.com/rust-lang/crates.io-index"}
    assert all("checksum" in package for package in packages if "source" in package)


def test_the_oldest_is_as_old_as_pyproject_allows() -> None:
    """`make test-oldest` would otherwise test something newer than what is promised."""
    oldest = _pins("oldest.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in project["dependencies"]:
        requirement = Requirement(line)
        (version,) = oldest[canonicalize_name(requirement.name)]
        lowest = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
        assert [version] == lowest, line
