"""The directive ``command-help``: what ``kvcache COMMAND --help`` prints, taken from its parser."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from kvcache.cli import _parser

if TYPE_CHECKING:
    from collections.abc import Callable

    from sphinx.application import Sphinx

_COLUMNS = 88


class CommandHelp(SphinxDirective):
    """One argument: the subcommand; none is the command itself."""

    optional_arguments = 1
    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {}

    def run(self) -> list[nodes.Node]:
        """A block of text, as a terminal of 88 columns without colours shows it."""
        # Python 3.14 colours the help of a terminal.
        with mock.patch.dict(os.environ, {"COLUMNS": str(_COLUMNS), "NO_COLOR": "1"}):
            text = _find(_parser(), *self.arguments).format_help()
        return [nodes.literal_block(text, text, language="text")]


def _find(parser: argparse.ArgumentParser, *names: str) -> argparse.ArgumentParser:
    for name in names:
        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = commands.choices[name]
    return parser


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directive. Its text is of this build's Python, so nothing is kept from the last."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
