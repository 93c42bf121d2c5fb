"""Every block of the documentation does what the page says."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sybil.example import SybilFailure

from tests.docs.pages import PAGES, ROOT, Page, compare, fences, tree_of_files
from tests.docs.shell import Shell
from tests.integrations.mlx_lm.tiny import write_model

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which pages run."""
    folder = tmp_path_factory.mktemp("page")
    write_model(folder / "path/to/model")
    layers = ["sliding_attention", "full_attention"]
    write_model(folder / "path/to/sliding", layer_types=layers, sliding_window=16)
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture
def shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with Shell(folder) as shell:
        yield shell


def given(name: str) -> dict[str, Any]:
    """What a page takes as the reader's own."""
    if name != "README.md":
        return {}
    import mlx.core as mx

    def prefill(tokens: list[int], prompt_cache: list[Any]) -> mx.array:
        import mlx_lm

        return mlx_lm.load("path/to/model")[0](mx.array([tokens]), cache=prompt_cache)

    return {"prompt": list(range(3, 40)), "prefill": prefill}


def blocks(name: str) -> Counter[str]:
    """The blocks that are no directives, by language."""
    found = Counter(language for language, _ in fences(name) if not language.startswith("{"))
    # What has no language is a tree of files, checked below.
    return found - Counter({"": 1}) if name == "CONTRIBUTING.md" else found


@pytest.mark.parametrize("name", [name for name in PAGES if blocks(name)])
def test_every_block_of_a_page_runs(name: str, shell: Shell) -> None:
    run(name, shell)


def run(name: str, shell: Shell) -> dict[str, Any]:
    """Evaluates a page, and compares what was evaluated with what another parser finds in it."""
    page = Page(name, shell)
    names = page.run(given(name))
    assert Counter(page.evaluated) == blocks(name)
    return names


def test_the_readme_answers_and_reuses(shell: Shell) -> None:
    names = run("README.md", shell)
    messages = [{"role": "user", "content": "hello"}]
    before = names["cache"].stats().hit_tokens
    first = "".join(names["answer"](messages))
    assert "".join(names["answer"](messages)) == first
    assert names["cache"].stats().hit_tokens > before


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```rust\nfn main() {}\n```", AssertionError),
        ("```\nno language\n```", AssertionError),
        ("    indented\n", AssertionError),
        ("```python\nassert False\n```", AssertionError),
        ("```python\nprint(1)\n```\n\n```text\n2\n```", SybilFailure),
        ("```text\nof nothing\n```", SybilFailure),
        ("```console\n$ rm file\n```", AssertionError),
        ("```console\n$ make nonsense\n```", AssertionError),
        ("```console\n$ kvcache --version\n1\n```", SybilFailure),
    ],
)
def test_a_page_that_is_wrong_fails(text: str, error: type[Exception], shell: Shell, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}\n")
    with pytest.raises(error):
        run(str(page), shell)


def test_every_make_target_that_is_named_exists(shell: Shell) -> None:
    named = {
        target
        for name in PAGES
        for target in re.findall(r"`make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    for target in named:
        shell.run(f"make {target}")


def test_the_tree_of_files_is_there() -> None:
    (tree,) = (content for language, content in fences("CONTRIBUTING.md") if not language)
    paths = list(tree_of_files(tree))
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("printed", ["one\n2 three\n", "one\n\n2 three", "one\nand\nmore\n2 two three"])
def test_dots_stand_for_anything(printed: str) -> None:
    assert compare("one\n…\n2 …three\n", printed) is None


@pytest.mark.parametrize("printed", ["", "one\n", "one\n2 three\n4", "one\n3 three\n"])
def test_other_output_is_noticed(printed: str) -> None:
    assert compare("one\n2 …three", printed)
