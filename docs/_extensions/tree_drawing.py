"""The directive ``tree-drawing``: a scene of ``tree_scenes`` as SVG, drawn in each build.

The SVG is part of the page and uses ``currentColor``, so it is readable in the light and the dark theme.
Run as a script, it prints one scene: ``python tree_drawing.py split``.
"""

from __future__ import annotations

import sys
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Final

from docutils import nodes
from sphinx.util.docutils import SphinxDirective
from tree_scenes import SCENES, Frame, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from sphinx.application import Sphinx

_LETTER: Final = 15
_PADDING: Final = 10
_HEIGHT: Final = 30
_ROW: Final = 52
_GAP: Final = 34
_TITLE: Final = 54
_LEFT: Final = 66
_WIDTH: Final = 560


class TreeDrawing(SphinxDirective):
    """One argument: the scene. The content is a description for those who cannot see it."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Callable[[str], Any]]] = {}

    def run(self) -> list[nodes.Node]:
        """The drawing."""
        svg = draw(SCENES[self.arguments[0]](), " ".join(self.content))
        return [nodes.raw("", f'<div class="kvcache-drawing">{svg}</div>', format="html")]


def draw(frames: list[Frame], description: str) -> str:
    """One panel a frame, from top to bottom."""
    parts: list[str] = []
    top = 0
    for frame in frames:
        parts.append(_text(0, top + 18, frame.title, "font-weight='bold' font-family='monospace'"))
        parts.append(_text(0, top + 38, frame.note, "font-size='13' opacity='0.8'"))
        top += _TITLE
        middle = top + _HEIGHT / 2
        parts.append(_text(0, middle + 5, "root", "font-style='italic'"))
        rows = _nodes(frame.roots, _LEFT, top, (38, middle), parts)
        top += max(1, rows) * _ROW + 14
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {top}' width='{_WIDTH}' "
        f"height='{top}' role='img' fill='currentColor' font-family='sans-serif' font-size='15'>"
        f"<title>{escape(description)}</title>{''.join(parts)}</svg>"
    )


def _nodes(
    children: list[Node], left: float, top: float, start: tuple[float, float], parts: list[str]
) -> int:
    """Draws siblings below each other, their children to the right. Returns the rows taken."""
    rows = 0
    for node in children:
        y = top + rows * _ROW
        width = 2 * _PADDING + _LETTER * len(node.letters)
        middle = y + _HEIGHT / 2
        bend = (start[0] + left) / 2
        parts.append(
            f"<path d='M{start[0]} {start[1]} C{bend} {start[1]} {bend} {middle} {left} {middle}' "
            "fill='none' stroke='currentColor' opacity='0.6'/>"
        )
        parts.append(_box(node, left, y, width))
        below = _nodes(node.children, left + width + _GAP, y, (left + width, middle), parts)
        rows += max(1, below)
    return rows


def _box(node: Node, x: float, y: float, width: float) -> str:
    fill = "0.22" if node.is_new else "0"
    box = (
        f"<rect x='{x}' y='{y}' width='{width}' height='{_HEIGHT}' rx='5' stroke='currentColor' "
        f"fill='currentColor' fill-opacity='{fill}' stroke-width='1.5'/>"
    )
    letters = "".join(
        _text(
            x + _PADDING + _LETTER * (at + 0.5),
            y + 20,
            letter,
            "text-anchor='middle' font-family='monospace'",
        )
        for at, letter in enumerate(node.letters)
    )
    marks = ""
    if node.checkpoint:
        marks = f"<circle cx='{x + width}' cy='{y + _HEIGHT / 2}' r='6' fill='currentColor'/>"
    if node.age is not None:
        marks += _text(x + width / 2, y + _HEIGHT + 14, str(node.age), "text-anchor='middle' font-size='12'")
    return box + letters + marks


def _text(x: float, y: float, text: str, options: str) -> str:
    return f"<text x='{x:g}' y='{y:g}' {options}>{escape(text)}</text>"


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directive."""
    app.add_directive("tree-drawing", TreeDrawing)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    sys.stdout.write(draw(SCENES[sys.argv[1]](), sys.argv[1]) + "\n")
