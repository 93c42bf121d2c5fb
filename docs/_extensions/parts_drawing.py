"""The picture of the parts in DESIGN.md. Run as a script, it writes ``docs/parts.svg``.

GitHub shows the file as it is, so it brings its own colours for a light and a dark page. A test compares the
file with what this script draws, and the arrows with the imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

TARGET: Final = Path(__file__).parents[1] / "parts.svg"

_WIDTH: Final = 760
_HEIGHT: Final = 532
_STYLE: Final = (
    "svg{color:#1f2328;background:#ffffff}"
    "@media(prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}"
)
_DESCRIPTION: Final = (
    "Calls go down only. An engine calls KVPrefixCache and Session, or an integration, which calls "
    "KVPrefixCache. Both call operations; operations call ranks, storage, layers and memory; operations "
    "and memory call MLX. "
    "Storage calls the bindings, which call the Rust core. A router calls the bindings alone."
)


@dataclass(frozen=True)
class Box:
    """One part.

    Attributes:
        x: Left edge.
        y: Upper edge.
        width: Of the box.
        title: The part's name.
        lines: What it does.
        modules: The modules that it is, if it is Python of this repository.
        height: Of the box.
        outside: It is none of ours.
    """

    x: int
    y: int
    width: int
    title: str
    lines: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    height: int = 58
    outside: bool = False


BOXES: Final = {
    "engine": Box(20, 12, 500, "engine", height=34, outside=True),
    "router": Box(580, 12, 160, "router, scheduler", height=34, outside=True),
    "integrations": Box(
        20,
        82,
        150,
        "integrations/ · cli/",
        ("mlx-lm's server, exo", "the command line"),
        ("kvcache.integrations", "kvcache.cli"),
        68,
    ),
    "cache": Box(
        210, 82, 145, "KVPrefixCache", ("cache.py: the façade", "one method per verb"), ("kvcache.cache",), 68
    ),
    "session": Box(
        395,
        82,
        125,
        "Session",
        ("session.py: one", "request, as a block"),
        ("kvcache.session",),
        68,
    ),
    "operations": Box(
        20,
        190,
        500,
        "operations/",
        ("fetch · store · plan · reserve · pin · evict: one file per verb",),
        ("kvcache.operations",),
    ),
    "ranks": Box(20, 288, 105, "ranks/", ("agree first,", "then act"), ("kvcache.ranks",), 68),
    "storage": Box(
        145, 288, 125, "storage/", ("lock, index, arrays:", "one owner"), ("kvcache.storage",), 68
    ),
    "layers": Box(290, 288, 105, "layers/", ("what can be", "cut where"), ("kvcache.layers",), 68),
    "memory": Box(415, 288, 105, "memory/", ("limits, pressure,", "reclaim"), ("kvcache.memory",), 68),
    "mlx": Box(560, 288, 110, "MLX", ("arrays, buffer", "pool, counters"), height=68, outside=True),
    "core": Box(
        20,
        404,
        720,
        "kvcache._core (rust/bindings)",
        ("parses arguments, maps errors; CacheIndex and PrefixIndex",),
        ("kvcache._core",),
    ),
    "verbs": Box(20, 496, 226, "lookup/ · store/ · evict/", height=30),
    "trees": Box(268, 496, 226, "lease · trees/ · forest · order/", height=30),
    "nodes": Box(516, 496, 224, "radix/ · ledger · keys/", height=30),
}

# From, to, and the points in between: the first and the last are on the edges of the boxes.
ARROWS: Final = (
    ("engine", "integrations", ((95, 46), (95, 82))),
    ("engine", "cache", ((282, 46), (282, 82))),
    ("engine", "session", ((457, 46), (457, 82))),
    ("integrations", "cache", ((170, 116), (210, 116))),
    ("cache", "session", ((355, 116), (395, 116))),
    ("cache", "operations", ((282, 150), (282, 190))),
    ("session", "operations", ((457, 150), (457, 190))),
    ("operations", "ranks", ((72, 248), (72, 288))),
    ("operations", "storage", ((207, 248), (207, 288))),
    ("operations", "layers", ((342, 248), (342, 288))),
    ("operations", "memory", ((467, 248), (467, 288))),
    ("storage", "layers", ((270, 322), (290, 322))),
    ("operations", "mlx", ((520, 219), (615, 219), (615, 288))),
    ("memory", "mlx", ((520, 322), (560, 322))),
    ("storage", "core", ((207, 356), (207, 404))),
    ("router", "core", ((705, 46), (705, 404))),
    ("core", "verbs", ((133, 462), (133, 496))),
    ("verbs", "trees", ((246, 511), (268, 511))),
    ("trees", "nodes", ((494, 511), (516, 511))),
)

# Text beside the arrows: left edge, base line.
NOTES: Final = (
    (222, 377, "down: tokens, byte counts, ids, the caller's time"),
    (222, 393, "back, as return values: what matched, what to drop"),
    (625, 250, "copies"),
    (148, 484, "rust/core: no arrays, no clock, no I/O, no Python"),
)


def draw() -> str:
    """The picture, as the text of an SVG file."""
    parts = [_arrow(points) for _, _, points in ARROWS]
    parts += [_box(box) for box in BOXES.values()]
    parts += [_text(x, y, note, "font-size='12' opacity='0.8' font-style='italic'") for x, y, note in NOTES]
    head = (
        "<marker id='head' viewBox='0 0 8 8' refX='8' refY='4' markerWidth='8' markerHeight='8' "
        "orient='auto'><path d='M0 0 L8 4 L0 8 z' fill='currentColor'/></marker>"
    )
    lines = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' "
        f"height='{_HEIGHT}' role='img' fill='currentColor' font-family='sans-serif' font-size='13'>\n"
        f"<title>{escape(_DESCRIPTION)}</title>\n<style>{_STYLE}</style>\n<defs>{head}</defs>\n{lines}\n</svg>\n"
    )


def _arrow(points: tuple[tuple[int, int], ...]) -> str:
    way = " L".join(f"{x} {y}" for x, y in points)
    return f"<path d='M{way}' fill='none' stroke='currentColor' stroke-width='1.3' marker-end='url(#head)'/>"


def _box(box: Box) -> str:
    dashes = " stroke-dasharray='5 4'" if box.outside else ""
    middle = box.x + box.width / 2
    first = box.y + (box.height - 16 * len(box.lines)) / 2 + 5
    texts = [_text(middle, first, box.title, "text-anchor='middle' font-weight='bold'")]
    texts += [
        _text(middle, first + 16 * number, line, "text-anchor='middle' font-size='12'")
        for number, line in enumerate(box.lines, start=1)
    ]
    fill = "0" if box.outside else "0.06"
    return (
        f"<rect x='{box.x}' y='{box.y}' width='{box.width}' height='{box.height}' rx='5' "
        f"stroke='currentColor' fill-opacity='{fill}'{dashes}/>{''.join(texts)}"
    )


def _text(x: float, y: float, text: str, options: str) -> str:
    return f"<text x='{x:g}' y='{y:g}' {options}>{escape(text)}</text>"


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="utf-8")
