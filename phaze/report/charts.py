"""Figures over all workloads: throughput, memory, area, energy, what binds, where time goes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phaze.base.units import UM2_PER_MM2
from phaze.report.style import (
    AMBER,
    BLUE,
    GREY,
    INK,
    LIMITS,
    PURPLE,
    RED,
    SAND,
    SILVER,
    SKY,
    TEAL,
    WIDE,
    axes,
    bars_beside,
    legend_above,
    name_groups,
    name_rows,
    panels,
    stacked_bars,
)
from phaze.report.words import LIMITS as WORDS
from phaze.report.words import times

GEOMETRIC_MEAN = "geometric mean"
_PARTS = {
    "mac": BLUE,
    "register": SKY,
    "l2": TEAL,
    "glb": PURPLE,
    "hbm": AMBER,
    "link": RED,
    "leakage": SILVER,
}
_PART_NAMES = {"mac": "MAC", "register": "registers", "l2": "L2", "glb": "global buffer", "hbm": "HBM"}
_AREA_PARTS = {
    "tensor": ("tensor cores", BLUE),
    "vector": ("vector cores", SKY),
    "l2": ("L2 buffers", TEAL),
    "glb": ("global buffer", PURPLE),
}
_TIME_PARTS = {"forward": SKY, "backward": BLUE, "transfer": TEAL, "fill": SAND, "sync": RED}
_STAGE_COLOURS = {
    "extract": SILVER,
    "estimate": AMBER,
    "screen": SAND,
    "schedule": BLUE,
    "place": TEAL,
}


def wrapped(name: str, width: int = 10) -> str:
    """Return a name in lines of that many letters, broken at hyphens and spaces."""
    lines = [""]
    for piece in re.split(r"(?<=[- ])", name):
        if lines[-1] and len(lines[-1] + piece.rstrip("- ")) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip("- ") for line in lines)


def speedups(
    table: pd.DataFrame, colours: Mapping[str, str], published: Mapping[tuple[str, str], float]
) -> Figure:
    """Draw Figure 4: throughput over the baseline with the experts' placement; `published` are diamonds.

    `table` has a row for every model and one for the geometric mean, and a column for every design.
    """
    figure, (ax,) = axes(WIDE, 3.7)
    for number, (design, colour) in enumerate(colours.items()):
        at = bars_beside(ax, table[design], number, len(colours), colour, design)
        _mark_published(ax, at, [published.get((model, design)) for model in table.index])
    if published:
        ax.plot([], [], "D", mfc="white", mec=RED, ms=4.5, label="printed in the paper")
    ax.axhline(1, color=GREY, lw=0.8)
    ax.axvline(len(table) - 1.5, color=SILVER, lw=0.8)
    name_groups(ax, [wrapped(model) for model in table.index])
    ax.set_ylabel("throughput over baseline expert")
    legend_above(figure, ax, 5)
    return figure


def _mark_published(ax: Axes, at: np.ndarray, values: list[float | None]) -> None:
    found = [(x, value) for x, value in zip(at, values, strict=True) if value is not None]
    if found:
        ax.plot(*zip(*found, strict=True), "D", mfc="white", mec=RED, mew=1.1, ms=4.5, zorder=5)


def utilisations(ours: pd.DataFrame, theirs: pd.DataFrame) -> Figure:
    """Draw Table 5: model FLOPs utilisation, ours filled, theirs hollow; rows models, columns designs."""
    figure, (ax,) = axes(WIDE, 0.8 + 0.42 * len(ours))
    for number, design in enumerate(ours.columns):
        colour = (GREY, AMBER, BLUE)[number % 3]
        rows = np.arange(len(ours)) + 0.24 * (number - (len(ours.columns) - 1) / 2)
        ax.plot(100 * ours[design], rows, "o", color=colour, ms=6, label=design)
        if design in theirs:
            printed = 100 * theirs[design].reindex(ours.index)
            ax.hlines(rows, 100 * ours[design], printed, color=colour, lw=0.8)
            ax.plot(printed, rows, "D", mfc="white", mec=colour, ms=4.5)
    ax.plot([], [], "D", mfc="white", mec=INK, ms=4.5, label="printed in the paper")
    name_rows(ax, list(ours.index))
    ax.set_xlim(left=0)
    ax.set_xlabel("model FLOPs utilisation, %")
    legend_above(figure, ax, 4)
    return figure


def memories(table: pd.DataFrame) -> Figure:
    """Draw the throughput with every HBM capacity relative to the best; the chosen one in full colour."""
    models = list(dict.fromkeys(table["model"]))
    figure, (ax,) = axes(WIDE, 2.9)
    sizes = sorted(table["hbm_gib"].unique())
    width = 0.8 / len(sizes)
    for number, size in enumerate(sizes):
        rows = table[table["hbm_gib"] == size].set_index("model").reindex(models)
        at = np.arange(len(models)) - 0.4 + width * (number + 0.5)
        relative = rows["relative"].fillna(0.0)
        colours = [BLUE if chosen is True else SILVER for chosen in rows["chosen"].tolist()]
        ax.bar(at, 100 * relative, width * 0.92, color=colours)
        for x, value in zip(at, relative, strict=True):
            ax.text(
                x, 2, f"{size:g}", ha="center", va="bottom", color="white" if value else INK, fontsize=7.5
            )
    ax.bar([0], [0], color=BLUE, label="chosen: smallest within the tolerance")
    ax.bar([0], [0], color=SILVER, label="other capacities, in GiB")
    ax.set_xticks(range(len(models)), [wrapped(model) for model in models])
    ax.set_xlim(-0.6, max(len(models), 4) - 0.4)
    ax.set_ylabel("throughput, % of best")
    ax.grid(axis="y")
    legend_above(figure, ax)
    return figure


def frontiers(clouds: Mapping[str, pd.DataFrame], limit_um2: float) -> Figure:
    """Draw area against throughput of every architecture that was placed, one panel a model.

    A cloud has area_um2, relative (throughput over the best), kind ('', 'best', 'smallest', 'baseline').
    """
    columns = min(4, len(clouds))
    figure, every = panels(len(clouds), columns, 0.6, 1.75, sharex=True)
    for ax, (model, cloud) in zip(every, clouds.items(), strict=True):
        _draw_cloud(ax, cloud)
        ax.axvline(limit_um2 / UM2_PER_MM2, color=GREY, lw=0.8, ls=":")
        ax.set_title(model)
        ax.set_ylim(0, 1.09)
        ax.grid()
    every[0].set_ylabel("throughput over best")
    every[max(0, len(clouds) - columns)].set_xlabel("area, mm²")
    legend_above(figure, every[0])
    return figure


_MARKS = {
    "": (SILVER, "o", 3.0),
    "baseline": (RED, "s", 5.5),
    "smallest": (AMBER, "^", 6.5),
    "best": (BLUE, "*", 10),
}


def _draw_cloud(ax: Axes, cloud: pd.DataFrame) -> None:
    for kind, (colour, marker, size) in _MARKS.items():
        some = cloud[cloud["kind"] == kind]
        label = {"": "placed", "smallest": "smallest within the tolerance"}.get(kind, kind)
        area_mm2 = some["area_um2"] / UM2_PER_MM2
        ax.plot(area_mm2, some["relative"], marker, color=colour, ms=size, label=label)


def limits(bindings: pd.DataFrame) -> Figure:
    """Draw the part of the busy time that each limit binds, one bar a model."""
    share = bindings.pivot_table(
        index="model", columns="limit", values="share", aggfunc="sum", fill_value=0.0, sort=False
    )
    parts = {
        WORDS[name]: ((100 * share[name]).tolist(), colour)
        for name, colour in LIMITS.items()
        if name in share and share[name].sum() > 0
    }
    figure, (ax,) = axes(WIDE, 0.9 + 0.36 * len(share))
    stacked_bars(ax, list(share.index), parts)
    ax.set_xlabel("part of the time in operators, %")
    legend_above(figure, ax)
    return figure


def areas(table: pd.DataFrame, limit_um2: float) -> Figure:
    """Draw the area of accelerators by part; `table` has a column `label`."""
    wide = table.pivot_table(index="label", columns="part", values="area_um2", sort=False) / UM2_PER_MM2
    parts = {name: (wide[part].tolist(), colour) for part, (name, colour) in _AREA_PARTS.items()}
    figure, (ax,) = axes(WIDE, 0.9 + 0.34 * len(wide))
    stacked_bars(ax, list(wide.index), parts)
    ax.axvline(limit_um2 / UM2_PER_MM2, color=GREY, lw=1, ls=":")
    ax.set_xlabel("area, mm²; dotted: area limit")
    legend_above(figure, ax)
    return figure


def energies(table: pd.DataFrame, baseline: str) -> Figure:
    """Draw energy per sample by part, relative to the baseline's of the same model."""
    total = table[table["design"] == baseline].groupby("model")["joules_per_sample"].sum()
    relative = table.assign(relative=100 * table["joules_per_sample"] / table["model"].map(total))
    relative["label"] = relative["model"] + ", " + relative["design"]
    wide = relative.pivot_table(index="label", columns="part", values="relative", sort=False).fillna(0.0)
    figure, (ax,) = axes(WIDE, 0.9 + 0.27 * len(wide))
    parts = {_PART_NAMES.get(p, p): (wide[p].tolist(), c) for p, c in _PARTS.items() if p in wide}
    stacked_bars(ax, list(wide.index), parts)
    ax.set_xlabel(f"energy per sample, % of {baseline}")
    legend_above(figure, ax, 7)
    return figure


def breakdowns(table: pd.DataFrame) -> Figure:
    """Draw where the time of a batch goes, one bar a model, with the time at peak as a mark."""
    spent = table.set_index("model")[[f"{part}_s" for part in _TIME_PARTS]]
    total = spent.sum(axis=1)
    share = 100 * spent.div(total, axis=0)
    names = {"fill": "pipeline fill", "sync": "gradient sync", "transfer": "stage transfers"}
    parts = {names.get(p, p): (share[f"{p}_s"].tolist(), colour) for p, colour in _TIME_PARTS.items()}
    figure, (ax,) = axes(WIDE, 0.9 + 0.36 * len(share))
    stacked_bars(ax, list(share.index), parts)
    useful = 100 * table.set_index("model")["useful_s"] / total
    ax.plot(useful, range(len(useful)), "|", color=INK, ms=17, mew=1.8, label="at peak (MFU)")
    ax.set_xlabel("part of the time per batch, %")
    legend_above(figure, ax)
    return figure


def sensitivities(table: pd.DataFrame) -> Figure:
    """Draw the throughput under every variation relative to the study's; rows models, columns variations."""
    figure, (ax,) = axes(WIDE, 0.9 + 0.16 * table.size)
    height = 0.8 / max(1, len(table.columns))
    for number, variation in enumerate(table.columns):
        at = np.arange(len(table)) - 0.4 + height * (number + 0.5)
        colour = (AMBER, SAND, BLUE, SKY, PURPLE, TEAL)[number % 6]
        ax.barh(at, table[variation] - 1, height * 0.9, left=1, color=colour, label=variation)
    ax.axvline(1, color=INK, lw=0.9)
    name_rows(ax, list(table.index))
    ax.set_xlabel("throughput over the study's")
    legend_above(figure, ax)
    return figure


def stage_times(table: pd.DataFrame, stages: tuple[str, ...]) -> Figure:
    """Draw Figures 6 and 7: processor time of the stages, one bar a model."""
    wide = table.pivot_table(index="model", columns="stage", values="cpu_s", sort=False, fill_value=0.0)
    parts = {s: (wide[s].tolist(), _STAGE_COLOURS.get(s, PURPLE)) for s in stages if s in wide}
    figure, (ax,) = axes(WIDE, 0.9 + 0.34 * len(wide))
    stacked_bars(ax, list(wide.index), parts)
    ax.set_xlabel("processor time of all jobs, s")
    legend_above(figure, ax)
    return figure


def scenarios(table: pd.DataFrame) -> Figure:
    """Draw the throughput of every model in every scenario relative to the first; rows models."""
    figure, (ax,) = axes(WIDE, 0.9 + 0.2 * table.size)
    height = 0.8 / len(table.columns)
    for number, scenario in enumerate(table.columns):
        at = np.arange(len(table)) - 0.4 + height * (number + 0.5)
        colour = (BLUE, AMBER, TEAL, PURPLE, GREY)[number % 5]
        bars = ax.barh(at, table[scenario], height * 0.9, color=colour, label=scenario)
        ax.bar_label(bars, [times(value) for value in table[scenario]], padding=3, fontsize=7.5)
    name_rows(ax, list(table.index))
    ax.set_xlabel(f"throughput over {table.columns[0]}")
    legend_above(figure, ax)
    return figure
