"""Growth, log-log: lookup time by prompt length and by stored sequences, index memory by tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.axes import Axes

    from benches.peers.python_side import Line

# (file, title, side, section, case, x axis, y axis, what a figure is multiplied by)
PLOTS = (
    (
        "lookup_length",
        "Lookup of a stored prompt (Python)",
        1,
        "lookup",
        "full hit",
        "tokens",
        "seconds",
        1e-9,
    ),
    (
        "lookup_stored",
        "Lookup of an 8,192-token prompt (Rust, warm)",
        0,
        "stored",
        "lookup of the 8K path, warm",
        "stored sequences",
        "seconds",
        1e-9,
    ),
    ("memory", "Index memory (Rust)", 0, "memory", "prompts of 8,192 tokens", "tokens stored", "bytes", None),
)
OURS = "#d62728"
LIMIT = "#7f7f7f"
OTHERS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf"]
DASHED = {"kvcache, list", "kvcache, index_bytes"}


def draw(folder: Path, rust: list[Line], python: list[Line]) -> None:
    """Writes each plot as PNG and SVG."""
    for name, title, side, section, case, x, y, factor in PLOTS:
        lines = [line for line in (rust, python)[side] if (line.section, line.case) == (section, case)]
        if not lines:
            continue
        figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
        axes.set_prop_cycle(color=OTHERS)
        curves(axes, lines, factor)
        axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y, title=title)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=8, frameon=False)
        for kind in ("png", "svg"):
            figure.savefig(
                folder / f"{name}.{kind}", dpi=130, metadata={"Date": None} if kind == "svg" else None
            )
        plt.close(figure)


def curves(axes: Axes, lines: Iterable[Line], factor: float | None) -> None:
    """One curve a contender: kvcache thick and red, the physical limit dashed and grey."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        # Memory is reported in bytes a token: times the tokens, it is bytes.
        found.setdefault(line.contender, []).append((line.size, line.median * (factor or line.size)))
    for name, points in found.items():
        xs, ys = zip(*sorted(points), strict=True)
        if name.startswith("kvcache"):
            style = "o--" if name in DASHED else "o-"
            axes.plot(xs, ys, style, label=name, linewidth=2.2, color=OURS)
        elif name.startswith("mem"):
            axes.plot(xs, ys, "--", label=f"{name} (limit)", color=LIMIT)
        else:
            axes.plot(xs, ys, "o-", label=name, linewidth=1, markersize=3)
