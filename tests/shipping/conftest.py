"""What `make wheel` builds, and environments that have nothing but what is installed into them."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# An outer `make test` must not lend its job server to the `make` below, nor this checkout its package.
FOREIGN = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX")


class Environment:
    """A virtual environment in a folder of its own."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.cache = cache
        venv.create(folder / "env", symlinks=True)
        self.bin = folder / "env" / "bin"

    def run(self, *command: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=900,
            env={name: value for name, value in os.environ.items() if name not in FOREIGN} | variables,
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result

    def install(self, *what: str, **variables: str) -> None:
        """With this interpreter's pip, which is quicker than giving each environment its own."""
        pip = (sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet")
        self.run(*pip, "--cache-dir", str(self.cache), "--no-compile", *what, **variables)

    def python(self, code: str) -> str:
        return self.run(str(self.bin / "python"), "-c", code).stdout.strip()

    def kvcache(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.bin / "kvcache"), *arguments, code=code)


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each package is fetched once."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make wheel` filled."""
    folder = tmp_path_factory.mktemp("dist")
    environ = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    command = ["make", "--silent", "wheel", f"DIST={folder}"]
    result = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=900, env=environ
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def sdist(built: Path) -> Path:
    (path,) = built.glob("*.tar.gz")
    return path
