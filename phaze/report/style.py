"""How figures look."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

INK, MUTED, GRID = "#1c2430", "#5d6875", "#e4e8ec"
BLUE, SKY, AMBER, SAND, GREY, SILVER = "#0b5394", "#5b9bd5", "#d07a12", "#f0c27f", "#77828e", "#c3cad1"
RED, PURPLE, TEAL = "#b3261e", "#7b5ea7", "#2a8c82"
LIMITS = {
    "compute": BLUE,
    "vector": SKY,
    "global_buffer": PURPLE,
    "hbm": AMBER,
    "network": RED,
    "none": SILVER,
}
"""Colours of what binds an operator."""

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
"""Inches across the page."""


def axes(
    width: float, height: float, rows: int = 1, columns: int = 1, *, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure of that size in inches and its axes in reading order."""
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex)
    return figure, list(grid.flat)


def panels(
    count: int, columns: int, head: float, height: float, *, sharex: bool = False
) -> tuple[Figure, list[Axes]]:
    """Return a figure across the page and as many axes in its columns, of that height each below a head."""
    rows = -(-count // columns)
    figure, every = axes(WIDE, head + height * rows, rows, columns, sharex=sharex)
    for ax in every[count:]:
        ax.set_visible(False)
    return figure, every[:count]


def legend_above(figure: Figure, ax: Axes, columns: int = 6, title: str | None = None) -> Figure:
    """Return the figure with the legend of an axes above it, so that it covers nothing, below a title."""
    handles, labels = ax.get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside upper left", ncols=columns, title=title, alignment="left"
    )
    legend.get_title().set_fontweight("bold")
    return figure


def stacked_bars(
    ax: Axes, labels: list[str], parts: dict[str, tuple[list[float], str]], *, height: float = 0.66
) -> None:
    """Draw horizontal bars from the top down, each made of the parts (values for every bar, colour)."""
    left = [0.0] * len(labels)
    positions = list(range(len(labels)))
    for part, (values, colour) in parts.items():
        ax.barh(positions, values, height, left=left, color=colour, label=part)
        left = [a + b for a, b in zip(left, values, strict=True)]
    name_rows(ax, labels)


def name_rows(ax: Axes, labels: Sequence[str]) -> None:
    """Name the horizontal bars, from the top down."""
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(axis="x")


def bars_beside(ax: Axes, values: pd.Series, number: int, of: int, colour: str, label: str) -> np.ndarray:
    """Draw one upright bar for every group, the `number`-th `of` those beside it; return where they stand."""
    width = 0.84 / of
    at: np.ndarray = np.arange(len(values)) - 0.42 + width * (number + 0.5)
    ax.bar(at, values, width * 0.94, color=colour, label=label)
    return at


def name_groups(ax: Axes, labels: Sequence[str]) -> None:
    """Name the groups of upright bars."""
    ax.set_xticks(range(len(labels)), labels)
    ax.set_xlim(-0.55, len(labels) - 0.45)
    ax.grid(axis="y")
