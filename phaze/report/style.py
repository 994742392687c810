"""Style of figures, and their export as small, deterministic SVG for embedding in a page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from phaze.base.files import atomic_path
from phaze.report import vega
from phaze.report.document import Chart
from phaze.report.marks import is_list, label_plainly, single_value

INK, MUTED, GRID = "#1c2430", "#5d6875", "#e4e8ec"
BLUE, SKY, AMBER, SAND, GREY, SILVER = "#0b5394", "#5b9bd5", "#d07a12", "#f0c27f", "#77828e", "#c3cad1"
RED, PURPLE, TEAL = "#b3261e", "#7b5ea7", "#2a8c82"
HUES = (BLUE, AMBER, TEAL, PURPLE, SKY, RED, SAND, GREY)
"""Colours of things without a colour of their own."""
LIMITS = {
    "compute": BLUE,
    "vector": SKY,
    "global_buffer": PURPLE,
    "hbm": AMBER,
    "network": RED,
    "none": SILVER,
}
"""Colours of the bottlenecks of operators."""
COLOURS = {
    "ink": INK, "muted": MUTED, "grid": GRID, "blue": BLUE, "sky": SKY, "amber": AMBER, "sand": SAND,
    "grey": GREY, "silver": SILVER, "red": RED, "purple": PURPLE, "teal": TEAL,
}  # fmt: skip
_VARIABLES = {colour: f"var(--{name}, {colour})" for name, colour in COLOURS.items()}
"""Colours as variables, for which a page may have other values on a dark screen."""

RC: dict[RcKeyType, object] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": SILVER,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": SILVER,
    "ytick.color": SILVER,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 1.1,
    "legend.columnspacing": 1.4,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "phaze",
}

WIDE = 9.0
"""Width of the page in inches."""


def axes(
    width: float, height: float, rows: int = 1, columns: int = 1, *, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """Figure of a size in inches, and its axes in reading order."""
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex)
    return figure, list(grid.flat)


def panels(
    count: int, columns: int, head: float, height: float, *, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """Figure as wide as the page, with `count` axes in columns.

    `height` is of each row and `head` is the space above them, in inches.
    """
    rows = -(-count // columns)
    figure, every = axes(WIDE, head + height * rows, rows, columns, sharex=sharex)
    for ax in every[count:]:
        ax.set_visible(False)
    return figure, every[:count]


def legend_above(figure: Figure, ax: Axes, columns: int = 6, title: str | None = None) -> Figure:
    """Add the legend of an axes above the figure, with a title, so that it covers nothing."""
    handles, labels = ax.get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside upper left", ncols=columns, title=title, alignment="left"
    )
    legend.get_title().set_fontweight("bold")
    return figure


def name_rows(ax: Axes, labels: Sequence[str]) -> None:
    """Label the horizontal bars, from the top down."""
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(axis="x")


def bars_beside(ax: Axes, values: pd.Series, number: int, of: int, colour: str, label: str) -> np.ndarray:
    """Draw the `number`-th of `of` vertical bars in each group; returns the bar positions."""
    width = 0.84 / of
    at: np.ndarray = np.arange(len(values)) - 0.42 + width * (number + 0.5)
    ax.bar(at, values, width * 0.94, color=colour, label=label)
    return at


def name_groups(ax: Axes, names: Iterable[object]) -> None:
    """Label the groups of vertical bars, wrapping long names."""
    labels = [wrapped(str(name)) for name in names]
    ax.set_xticks(range(len(labels)), labels)
    ax.set_xlim(-0.55, max(len(labels), 4) - 0.45)
    ax.grid(axis="y")


def wrapped(name: str, width: int = 10) -> str:
    """Wrap a name at hyphens and spaces into lines of `width` characters."""
    lines = [""]
    for piece in re.split(r"(?<=[- ])", name):
        if lines[-1] and len(lines[-1] + piece.rstrip("- ")) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip("- ") for line in lines)


PIXELS_PER_INCH = 96


NARROW = 4.2
"""Width of a figure for a narrow screen in inches."""


@dataclass(frozen=True)
class Drawn:
    """Drawn figure of a page, as SVG."""

    svg: str
    width_px: int
    narrow: str = ""
    """The same for a narrow screen; empty for a figure that does not fit one."""
    only: str = ""
    """Value of a figure that shows a single one, in its place; empty for other figures."""
    spec: str = ""
    """Specification of a chart that the browser draws; empty for a picture."""


def draw(chart: Chart) -> Drawn:
    """Draw a figure as SVG for a page, unless the browser draws it; a single value is not drawn."""
    with mpl.rc_context(RC):
        figure = chart.draw()
        if not isinstance(figure, Figure):
            spec = vega.spec_of(figure)
            only = vega.single_value(spec)
            return Drawn("", 0, only=only, spec="" if only else vega.as_json(spec))
        if only := single_value(figure):
            return Drawn("", 0, only=only)
        name, again = f"narrow-{chart.name}", chart.draw() if is_list(figure) else None
        narrow = _svg(_narrowed(again), name, chart.title) if isinstance(again, Figure) else ""
        width = round(figure.get_figwidth() * PIXELS_PER_INCH)
        return Drawn(_svg(figure, chart.name, chart.title), width, narrow)


def _narrowed(figure: Figure) -> Figure:
    """Figure of horizontal bars at the width of a narrow screen, with its legend in two columns."""
    (ax,) = figure.axes
    if ax.texts:
        ax.margins(x=0.3)
    for legend in figure.legends:
        entries, title = len(legend.get_texts()), legend.get_title().get_text()
        legend.remove()
        legend_above(figure, ax, 2, title or None)
        figure.set_size_inches(NARROW, figure.get_figheight() + 0.18 * (entries // 2))
    return figure


def _svg(figure: Figure, name: str, title: str) -> str:
    label_plainly(figure)
    _lay_out(figure)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return _inline(buffer.getvalue(), name, title)


def _lay_out(figure: Figure) -> None:
    """Run the layout engine once and remove it; with an engine, saving would draw the figure twice."""
    FigureCanvasSVG(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        with mpl.rc_context({"figure.constrained_layout.use": False}):
            figure.set_layout_engine(None)


def save(path: Path, draw: Callable[[], Figure]) -> None:
    """Write a figure in the format of the file's extension; SVG and PDF output is deterministic."""
    kind = path.suffix.removeprefix(".").lower()
    dates = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context(RC), atomic_path(path) as temporary:
        draw().savefig(temporary, format=kind, metadata=dates.get(kind, {}), dpi=200)


def _inline(svg: str, name: str, title: str) -> str:
    """Clean SVG for embedding in a page: no prologue, style or font, rounded numbers, unique ids."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", body, flags=re.S)
    body = re.sub(r"<defs>\s*</defs>", "", body)
    body = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), body)
    body = re.sub(r"font-family: [^;\"]*; | transform=\"rotate\(-?0 [^\"]*\"", "", body)
    body = body.replace("stroke: #ffffff", "stroke: var(--paper, #ffffff)")
    body = re.sub(r"(?<=: )#[0-9a-f]{6}", lambda found: _VARIABLES.get(found[0], found[0]), body)
    body = re.sub(r"\s+", " ", body).replace("> <", "><").replace("xlink:href", "href")
    body = re.sub(r' xmlns(:xlink)?="[^"]*"| version="[^"]*"', "", body)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{name}-", body)
    head, rest = body.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None, head
    label = escape(title, quote=True)
    return f'<svg {box[0]} role="img" aria-label="{label}"><title>{label}</title>{rest}'.strip()
