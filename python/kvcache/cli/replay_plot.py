"""Hit rate against budget, a panel for each trace. Needs matplotlib, which the extra `bench` brings."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kvcache.cli.console import CliError, quote

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcache.replay.study import Study

_COLUMNS: Final = 3
_PANEL: Final = (4.2, 3.4)
_BLUE: Final = "#1f6fb4"
_GREY: Final = "#777777"


def check(path: Path) -> None:
    """Finds out before anything is replayed whether the plot can be drawn.

    Raises:
        CliError: matplotlib is missing, the folder is, or the suffix is none it knows.
    """
    known = _figure().canvas.get_supported_filetypes()
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in known:
        raise CliError(f"--plot takes a file ending in .png, .svg or .pdf, found {path}.")
    if not path.absolute().parent.is_dir():
        raise CliError(f"There is no folder {path.parent} to put the plot into.")


def draw(studies: Sequence[Study], path: Path) -> None:
    """Draws the studies' rows into a file.

    Raises:
        CliError: The file cannot be written.
    """
    columns = min(_COLUMNS, len(studies))
    rows = -(-len(studies) // columns)
    figure = _figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, study in zip(panels, studies, strict=False):
        _panel(panel, study)
    for panel in panels[len(studies) :]:
        panel.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise CliError(f"The plot {path} cannot be written ({quote(error.strerror or error)}).") from error


def _panel(panel: Any, study: Study) -> None:
    sized = study.bytes_per_token is not None
    hits, optimum = {}, {}
    for row in study.rows:
        at = (row.nbytes or 0) / 1e9 if sized else 100 * row.tokens / max(1, study.unique_tokens)
        hits[at] = 100 * study.rate(row.outcome.hit_tokens)
        optimum[at] = 100 * study.rate(row.optimal_tokens)
    panel.axhline(100 * study.unlimited_rate, color=_GREY, linewidth=1, linestyle=":", label="unlimited")
    panel.plot(*zip(*optimum.items(), strict=True), color=_GREY, linestyle="--", label="offline optimum")
    panel.plot(*zip(*hits.items(), strict=True), color=_BLUE, marker="o", markersize=4, label="LRU")
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_xlabel("budget, GB" if sized else "budget, % of the unique tokens")
    panel.set_ylabel("token hit rate, %")
    panel.set_ylim(0, 100)
    # Names come from files: a dollar sign in one is no formula.
    panel.set_title(study.name, fontsize=10, parse_math=False)
    panel.grid(visible=True, color="#e6e6e6", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def _figure(**options: Any) -> Any:
    # By name: the type checker need not have it installed.
    try:
        module = import_module("matplotlib.figure")
    except ImportError as error:
        raise CliError(
            "--plot needs matplotlib, which is not installed: pip install 'kvcache[bench]'."
        ) from error
    return module.Figure(**options)
