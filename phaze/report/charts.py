"""Figures over all workloads: bars, utilisations, memory sizes, and accelerators by area."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phaze.base.units import UM2_PER_MM2
from phaze.report import style
from phaze.report.words import times

GEOMETRIC_MEAN = "geometric mean"
Looks = Mapping[str, tuple[str, str]]
"""Label and colour of each drawn column of a table."""
AREA_PARTS: Looks = {
    "tensor": ("tensor cores", style.BLUE), "vector": ("vector cores", style.SKY),
    "l2": ("L2 buffers", style.TEAL), "glb": ("global buffer", style.PURPLE),
}  # fmt: skip
ENERGY_PARTS: Looks = {
    "mac": ("MAC", style.BLUE), "register": ("registers", style.SKY), "l2": ("L2", style.TEAL),
    "glb": ("global buffer", style.PURPLE), "hbm": ("HBM", style.AMBER), "link": ("link", style.RED),
    "leakage": ("leakage", style.SILVER),
}  # fmt: skip
TIME_PARTS: Looks = {
    "forward_s": ("forward", style.SKY), "backward_s": ("backward", style.BLUE),
    "transfer_s": ("stage transfers", style.TEAL), "fill_s": ("pipeline fill", style.SAND),
    "sync_s": ("gradient sync", style.RED),
}  # fmt: skip
STAGES: Looks = {
    "extract": ("extract", style.SILVER), "estimate": ("estimate", style.AMBER),
    "screen": ("screen", style.SAND), "schedule": ("schedule", style.BLUE), "place": ("place", style.TEAL),
}  # fmt: skip
PLANNERS: Looks = {
    "phaze": ("Phaze", style.BLUE), "piper": ("Piper", style.AMBER), "equal": ("equal stages", style.GREY),
    "expert": ("experts", style.SILVER),
}  # fmt: skip
"""Display name and colour of each planner."""
_HUES = (style.BLUE, style.AMBER, style.TEAL, style.PURPLE, style.SKY, style.SAND)


def stacked(
    table: pd.DataFrame,
    parts: Looks,
    what: str,
    row_in: float = 0.34,
    columns: int = 6,
    *,
    limit: float | None = None,
    peak: pd.Series | None = None,
) -> Figure:
    """Draw a horizontal bar per row, stacked from the columns in `parts`.

    A dotted line marks a limit of all rows. A mark in each row shows its value at peak.
    """
    figure, (ax,) = style.axes(style.WIDE, 0.9 + row_in * len(table))
    left = np.zeros(len(table))
    for part, (name, colour) in parts.items():
        if part in table:
            ax.barh(range(len(table)), table[part], 0.66, left=left, color=colour, label=name)
            left = left + table[part].to_numpy()
    style.name_rows(ax, list(table.index))
    ax.set_xlabel(what)
    if limit is not None:
        ax.axvline(limit, color=style.GREY, lw=1, ls=":")
    if peak is not None:
        ax.plot(peak, range(len(peak)), "|", color=style.INK, ms=17, mew=1.8, label="at peak (MFU)")
    return style.legend_above(figure, ax, columns)


def rows_beside(table: pd.DataFrame, what: str, origin: float, *, said: bool = False) -> Figure:
    """Draw a group of horizontal bars per row, one bar per column, starting at an origin.

    With `said`, bars are labelled with their values.
    """
    figure, (ax,) = style.axes(style.WIDE, 0.9 + 0.18 * table.size)
    height = 0.8 / max(1, len(table.columns))
    for number, column in enumerate(table.columns):
        at = np.arange(len(table)) - 0.4 + height * (number + 0.5)
        colour = _HUES[number % len(_HUES)]
        bars = ax.barh(at, table[column] - origin, height * 0.9, left=origin, color=colour, label=column)
        if said:
            ax.bar_label(
                bars,
                [times(value) if np.isfinite(value) else "–" for value in table[column]],
                padding=3,
                fontsize=7.5,
            )
            ax.margins(x=0.1)
    style.name_rows(ax, list(table.index))
    ax.axvline(origin, color=style.INK, lw=0.9)
    ax.set_xlabel(what)
    return style.legend_above(figure, ax)


def columns_beside(ax: Axes, table: pd.DataFrame, looks: Looks) -> dict[str, np.ndarray]:
    """Draw a group of vertical bars per row and a line at 1; returns the bar positions by column."""
    at = {
        column: style.bars_beside(ax, table[column], number, len(looks), colour, label)
        for number, (column, (label, colour)) in enumerate(looks.items())
    }
    ax.axhline(1, color=style.GREY, lw=0.8)
    style.name_groups(ax, table.index)
    return at


def planner_ratios(table: pd.DataFrame, looks: Looks) -> Figure:
    """Draw the throughput of planners over Phaze's planner, one group of bars per workload."""
    figure, (ax,) = style.axes(style.WIDE, 3.4)
    columns_beside(ax, table, looks)
    ax.set_ylabel("throughput over Phaze's planner")
    return style.legend_above(figure, ax, 5)


def speedups(table: pd.DataFrame, colours: Mapping[str, str]) -> Figure:
    """Draw Figure 4: speedup over the baseline that uses the human experts' placement.

    `table` has a row per model and one for the geometric mean, and a column per design.
    """
    figure, (ax,) = style.axes(style.WIDE, 3.7)
    columns_beside(ax, table, {name: (name, of) for name, of in colours.items()})
    ax.axvline(len(table) - 1.5, color=style.SILVER, lw=0.8)
    ax.set_ylabel("throughput over baseline expert")
    return style.legend_above(figure, ax, 5)


def utilisations(ours: pd.DataFrame, theirs: pd.DataFrame) -> Figure:
    """Draw Table 5: model FLOPs utilisation by model (rows) and design (columns).

    Our values are filled, those printed in the paper are hollow.
    """
    figure, (ax,) = style.axes(style.WIDE, 0.8 + 0.42 * len(ours))
    for number, design in enumerate(ours.columns):
        colour = (style.GREY, style.AMBER, style.BLUE)[number % 3]
        rows = np.arange(len(ours)) + 0.24 * (number - (len(ours.columns) - 1) / 2)
        ax.plot(100 * ours[design], rows, "o", color=colour, ms=6, label=design)
        if design in theirs:
            printed = 100 * theirs[design].reindex(ours.index)
            ax.hlines(rows, 100 * ours[design], printed, color=colour, lw=0.8)
            ax.plot(printed, rows, "D", mfc="white", mec=colour, ms=4.5)
    ax.plot([], [], "D", mfc="white", mec=style.INK, ms=4.5, label="printed in the paper")
    style.name_rows(ax, list(ours.index))
    ax.set_xlim(left=0)
    ax.set_xlabel("model FLOPs utilisation, %")
    return style.legend_above(figure, ax, 4)


def memories(table: pd.DataFrame) -> Figure:
    """Draw the throughput of each HBM capacity relative to the best; the chosen one is in full colour."""
    models, sizes = list(dict.fromkeys(table["model"])), sorted(table["hbm_gib"].unique())
    figure, (ax,) = style.axes(style.WIDE, 2.9)
    for number, size in enumerate(sizes):
        rows = table[table["hbm_gib"] == size].set_index("model").reindex(models)
        share = 100 * rows["relative"].fillna(0.0)
        for chosen, colour in ((False, style.SILVER), (True, style.BLUE)):
            mine = share.where(rows["chosen"].eq(chosen), 0.0)
            at = style.bars_beside(ax, mine, number, len(sizes), colour, "_")
        for x, value in zip(at, share, strict=True):
            colour = "white" if value else style.INK
            ax.text(x, 2, f"{size:g}", ha="center", va="bottom", color=colour, fontsize=7.5)
    ax.plot([], [], "s", color=style.BLUE, label="chosen: smallest within the tolerance")
    ax.plot([], [], "s", color=style.SILVER, label="other capacities, in GiB")
    style.name_groups(ax, models)
    ax.set_ylabel("throughput, % of best")
    return style.legend_above(figure, ax)


_MARKS = {
    "": ("placed", style.SILVER, "o", 3.0),
    "baseline": ("baseline", style.RED, "s", 5.5),
    "smallest": ("smallest within the tolerance", style.AMBER, "^", 6.5),
    "best": ("best", style.BLUE, "*", 10),
}


def frontiers(clouds: Mapping[str, pd.DataFrame], limit_um2: float) -> Figure:
    """Draw throughput against area of all placed architectures, one panel per model.

    A cloud has area_um2, relative (throughput over the best), kind ('', 'best', 'smallest', 'baseline').
    """
    columns = min(4, len(clouds))
    figure, every = style.panels(len(clouds), columns, 0.6, 1.75, sharex=True)
    for ax, (model, cloud) in zip(every, clouds.items(), strict=True):
        for kind, (label, colour, marker, size) in _MARKS.items():
            some = cloud[cloud["kind"] == kind]
            area_mm2 = some["area_um2"] / UM2_PER_MM2
            ax.plot(area_mm2, some["relative"], marker, color=colour, ms=size, label=label)
        ax.axvline(limit_um2 / UM2_PER_MM2, color=style.GREY, lw=0.8, ls=":")
        ax.set_title(model)
        ax.set_ylim(0, 1.09)
        ax.grid()
    every[0].set_ylabel("throughput over best")
    every[max(0, len(clouds) - columns)].set_xlabel("area, mm²")
    return style.legend_above(figure, every[0])
