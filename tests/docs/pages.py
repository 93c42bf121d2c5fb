"""Pages as tests: every fenced block is evaluated, in order, in one namespace a page.

- ``python`` is executed. What it prints is what a ``text`` block behind it shows.
- ``console``: each line behind ``$`` is run (``shell``); lines below are what it prints.
- ``text``: what the block before printed. A line of ``…`` stands for any lines, ``…`` in a line for any
  characters.
- no language: a tree of files, of which each has to exist. Only CONTRIBUTING.md has one.
- ``{name}`` is a directive, which the Sphinx build evaluates.

A page runs in a folder of its own, in which ``path/to/model`` is a tiny Llama and ``path/to/sliding`` one
with a sliding window, both with random weights, and ``examples`` the repository's.
"""

from __future__ import annotations

import io
import itertools
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sybil import Example
    from sybil.document import Document

    from tests.docs.shell import Shell

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(
    str(path.relative_to(ROOT))
    for path in sorted(
        [
            *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
            *(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
        ]
    )
)


class Page:
    """One page's blocks and the state between them."""

    def __init__(self, name: str, shell: Shell) -> None:
        self._shell = shell
        self._printed: str | None = None
        self.evaluated: list[str] = []
        evaluators = {"python": self._python, "console": self._console, "text": self._text}
        parsers = [
            CodeBlockParser(language, self._counting(language, run)) for language, run in evaluators.items()
        ]
        self.document: Document = Sybil(parsers).parse(ROOT / name)

    def run(self, namespace: dict[str, Any]) -> dict[str, Any]:
        """Evaluates all blocks. Returns what the page has defined."""
        self.document.namespace.update(namespace)
        for example in self.document.examples():
            example.evaluate()
        return self.document.namespace

    def _counting(self, language: str, run: Any) -> Any:
        def evaluate(example: Example) -> str | None:
            self.evaluated.append(language)
            return run(example)

        return evaluate

    def _python(self, example: Example) -> None:
        printed = io.StringIO()
        with redirect_stdout(printed):
            PythonEvaluator()(example)
        self._printed = printed.getvalue()

    def _console(self, example: Example) -> str | None:
        wrong = None
        for command, shown in commands(example.parsed):
            self._printed = self._shell.run(command)
            if shown:
                wrong = wrong or compare(shown, self._printed)
        return wrong

    def _text(self, example: Example) -> str | None:
        if self._printed is None:
            return "nothing before this block prints"
        return compare(example.parsed, self._printed)


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output shown below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
    assert not parts[0].strip(), "a console block begins with a command"
    for part in parts[1:]:
        command, _, shown = re.sub(r"\\\n\s*", "", part).partition("\n")
        yield command, shown


def compare(shown: str, printed: str) -> str | None:
    """What differs; None where the page shows what is printed."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "…" else r".*".join(map(re.escape, line.rstrip().split("…"))) + r"\n"
        for line in shown.rstrip().splitlines()
    )
    if re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())):
        return None
    return f"the page shows\n{shown}\nand what is printed is\n{printed}"


def fences(name: str) -> list[tuple[str, str]]:
    """Language and content of each fenced block, found another way than sybil's; indented ones have none."""
    found: list[tuple[str, list[str]]] = []
    inside = False
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
            if inside:
                found.append((line.strip(" `"), []))
        elif inside:
            found[-1][1].append(line)
        elif line.startswith("    "):
            found.append(("", [line]))
    return [(language, "\n".join(lines)) for language, lines in found]


def tree_of_files(block: str) -> Iterator[Path]:
    """The paths of a tree drawn by indentation; braces and several names a line are taken apart."""
    parents: dict[int, Path] = {}
    for line in block.splitlines():
        indent = len(line) - len(line.lstrip())
        parent = next((parents[at] for at in sorted(parents, reverse=True) if at < indent), Path())
        names = itertools.takewhile(
            lambda word: re.fullmatch(r"[\w.{},/-]*([./][\w.{},/-]*)", word), line.split()
        )
        for name in names:
            paths = [parent / each for each in _braces(name)]
            yield from paths
            # A second name of a line stands beside the first.
            parent = paths[-1].parent
            parents = {at: path for at, path in parents.items() if at < indent} | {indent: paths[-1]}


def _braces(name: str) -> list[str]:
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
    return [name] if found is None else [f"{found[1]}{each}{found[3]}" for each in found[2].split(",")]
