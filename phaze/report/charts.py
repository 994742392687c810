"""Figures over all workloads: throughput, memory, area, energy, what binds, where time goes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from phaze.base.units import UM2_PER_MM2
from phaze.report import style
from phaze.report.words import LIMITS as WORDS
from phaze.report.words import times

GEOMETRIC_MEAN = "geometric mean"
AREA_PARTS = {
    "tensor": ("tensor cores", style.BLUE),
    "vector": ("vector cores", style.SKY),
    "l2": ("L2 buffers", style.TEAL),
    "glb": ("global buffer", style.PURPLE),
}
"""Parts of an area, for readers, with their colours."""
ENERGY_PARTS = {
    "mac": ("MAC", style.BLUE),
    "register": ("registers", style.SKY),
    "l2": ("L2", style.TEAL),
    "glb": ("global buffer", style.PURPLE),
    "hbm": ("HBM", style.AMBER),
    "link": ("link", style.RED),
    "leakage": ("leakage", style.SILVER),
}
"""Parts of an energy, for readers, with their colours."""
_TIME_PARTS = {
    "forward": ("forward", style.SKY),
    "backward": ("backward", style.BLUE),
    "transfer": ("stage transfers", style.TEAL),
    "fill": ("pipeline fill", style.SAND),
    "sync": ("gradient sync", style.RED),
}
_STAGES = {
    "extract": style.SILVER, "estimate": style.AMBER, "screen": style.SAND, "schedule": style.BLUE,
    "place": style.TEAL,
}  # fmt: skip


def _stacked(
    wide: pd.DataFrame, parts: Mapping[str, tuple[str, str]], row_in: float, what: str
) -> tuple[Figure, Axes]:
    """Return horizontal bars, one a row of the table, that are made of the parts that are its columns."""
    figure, (ax,) = style.axes(style.WIDE, 0.9 + row_in * len(wide))
    shown = {name: (wide[part].tolist(), colour) for part, (name, colour) in parts.items() if part in wide}
    style.stacked_bars(ax, list(wide.index), shown)
    ax.set_xlabel(what)
    return figure, ax


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
    figure, (ax,) = style.axes(style.WIDE, 3.7)
    for number, (design, colour) in enumerate(colours.items()):
        at = style.bars_beside(ax, table[design], number, len(colours), colour, design)
        _mark_published(ax, at, [published.get((model, design)) for model in table.index])
    if published:
        ax.plot([], [], "D", mfc="white", mec=style.RED, ms=4.5, label="printed in the paper")
    ax.axhline(1, color=style.GREY, lw=0.8)
    ax.axvline(len(table) - 1.5, color=style.SILVER, lw=0.8)
    style.name_groups(ax, [wrapped(model) for model in table.index])
    ax.set_ylabel("throughput over baseline expert")
    return style.legend_above(figure, ax, 5)


def _mark_published(ax: Axes, at: np.ndarray, values: list[float | None]) -> None:
    found = [(x, value) for x, value in zip(at, values, strict=True) if value is not None]
    if found:
        ax.plot(*zip(*found, strict=True), "D", mfc="white", mec=style.RED, mew=1.1, ms=4.5, zorder=5)


def utilisations(ours: pd.DataFrame, theirs: pd.DataFrame) -> Figure:
    """Draw Table 5: model FLOPs utilisation, ours filled, theirs hollow; rows models, columns designs."""
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
    """Draw the throughput with every HBM capacity relative to the best; the chosen one in full colour."""
    models = list(dict.fromkeys(table["model"]))
    figure, (ax,) = style.axes(style.WIDE, 2.9)
    sizes = sorted(table["hbm_gib"].unique())
    width = 0.8 / len(sizes)
    for number, size in enumerate(sizes):
        rows = table[table["hbm_gib"] == size].set_index("model").reindex(models)
        at = np.arange(len(models)) - 0.4 + width * (number + 0.5)
        relative = rows["relative"].fillna(0.0)
        colours = [style.BLUE if chosen is True else style.SILVER for chosen in rows["chosen"].tolist()]
        ax.bar(at, 100 * relative, width * 0.92, color=colours)
        for x, value in zip(at, relative, strict=True):
            colour = "white" if value else style.INK
            ax.text(x, 2, f"{size:g}", ha="center", va="bottom", color=colour, fontsize=7.5)
    ax.bar([0], [0], color=style.BLUE, label="chosen: smallest within the tolerance")
    ax.bar([0], [0], color=style.SILVER, label="other capacities, in GiB")
    ax.set_xticks(range(len(models)), [wrapped(model) for model in models])
    ax.set_xlim(-0.6, max(len(models), 4) - 0.4)
    ax.set_ylabel("throughput, % of best")
    ax.grid(axis="y")
    return style.legend_above(figure, ax)


def frontiers(clouds: Mapping[str, pd.DataFrame], limit_um2: float) -> Figure:
    """Draw area against throughput of every architecture that was placed, one panel a model.

    A cloud has area_um2, relative (throughput over the best), kind ('', 'best', 'smallest', 'baseline').
    """
    columns = min(4, len(clouds))
    figure, every = style.panels(len(clouds), columns, 0.6, 1.75, sharex=True)
    for ax, (model, cloud) in zip(every, clouds.items(), strict=True):
        _draw_cloud(ax, cloud)
        ax.axvline(limit_um2 / UM2_PER_MM2, color=style.GREY, lw=0.8, ls=":")
        ax.set_title(model)
        ax.set_ylim(0, 1.09)
        ax.grid()
    every[0].set_ylabel("throughput over best")
    every[max(0, len(clouds) - columns)].set_xlabel("area, mm²")
    return style.legend_above(figure, every[0])


_MARKS = {
    "": (style.SILVER, "o", 3.0),
    "baseline": (style.RED, "s", 5.5),
    "smallest": (style.AMBER, "^", 6.5),
    "best": (style.BLUE, "*", 10),
}


def _draw_cloud(ax: Axes, cloud: pd.DataFrame) -> None:
    for kind, (colour, marker, size) in _MARKS.items():
        some = cloud[cloud["kind"] == kind]
        label = {"": "placed", "smallest": "smallest within the tolerance"}.get(kind, kind)
        area_mm2 = some["area_um2"] / UM2_PER_MM2
        ax.plot(area_mm2, some["relative"], marker, color=colour, ms=size, label=label)


def limits(bindings: pd.DataFrame) -> Figure:
    """Draw the part of the busy time that each limit binds, one bar a model."""
    share = 100 * bindings.pivot_table(
        index="model", columns="limit", values="share", aggfunc="sum", fill_value=0.0, sort=False
    )
    parts = {name: (WORDS[name], colour) for name, colour in style.LIMITS.items()}
    share = share.loc[:, share.sum() > 0]
    figure, ax = _stacked(share, parts, 0.36, "part of the time in operators, %")
    return style.legend_above(figure, ax)


def areas(table: pd.DataFrame, limit_um2: float) -> Figure:
    """Draw the area of accelerators by part; `table` has a column `label`."""
    wide = table.pivot_table(index="label", columns="part", values="area_um2", sort=False) / UM2_PER_MM2
    figure, ax = _stacked(wide, AREA_PARTS, 0.34, "area, mm²; dotted: area limit")
    ax.axvline(limit_um2 / UM2_PER_MM2, color=style.GREY, lw=1, ls=":")
    return style.legend_above(figure, ax)


def energies(table: pd.DataFrame, baseline: str) -> Figure:
    """Draw energy per sample by part, relative to the baseline's of the same model."""
    total = table[table["design"] == baseline].groupby("model")["joules_per_sample"].sum()
    relative = table.assign(relative=100 * table["joules_per_sample"] / table["model"].map(total))
    relative["label"] = relative["model"] + ", " + relative["design"]
    wide = relative.pivot_table(index="label", columns="part", values="relative", sort=False).fillna(0.0)
    figure, ax = _stacked(wide, ENERGY_PARTS, 0.27, f"energy per sample, % of {baseline}")
    return style.legend_above(figure, ax, 7)


def breakdowns(table: pd.DataFrame) -> Figure:
    """Draw where the time of a batch goes, one bar a model, with the time at peak as a mark."""
    spent = table.set_index("model")[[f"{part}_s" for part in _TIME_PARTS]]
    total = spent.sum(axis=1)
    share = 100 * spent.div(total, axis=0)
    parts = {f"{part}_s": named for part, named in _TIME_PARTS.items()}
    figure, ax = _stacked(share, parts, 0.36, "part of the time per batch, %")
    useful = 100 * table.set_index("model")["useful_s"] / total
    ax.plot(useful, range(len(useful)), "|", color=style.INK, ms=17, mew=1.8, label="at peak (MFU)")
    return style.legend_above(figure, ax)


def sensitivities(table: pd.DataFrame) -> Figure:
    """Draw the throughput under every variation relative to the study's; rows models, columns variations."""
    figure, (ax,) = style.axes(style.WIDE, 0.9 + 0.16 * table.size)
    colours = (style.AMBER, style.SAND, style.BLUE, style.SKY, style.PURPLE, style.TEAL)
    list(_beside(ax, table, colours, left=1))
    ax.axvline(1, color=style.INK, lw=0.9)
    ax.set_xlabel("throughput over the study's")
    return style.legend_above(figure, ax)


def stage_times(table: pd.DataFrame, stages: tuple[str, ...]) -> Figure:
    """Draw Figures 6 and 7: processor time of the stages, one bar a model."""
    wide = table.pivot_table(index="model", columns="stage", values="cpu_s", sort=False, fill_value=0.0)
    parts = {stage: (stage, _STAGES[stage]) for stage in stages}
    figure, ax = _stacked(wide, parts, 0.34, "processor time of all jobs, s")
    return style.legend_above(figure, ax)


def _beside(
    ax: Axes, table: pd.DataFrame, colours: tuple[str, ...], left: float
) -> Iterator[tuple[str, BarContainer]]:
    """Draw for every row a bar a column from the top down, from the left on; yield what was drawn."""
    height = 0.8 / max(1, len(table.columns))
    for number, column in enumerate(table.columns):
        at = np.arange(len(table)) - 0.4 + height * (number + 0.5)
        colour = colours[number % len(colours)]
        bars = ax.barh(at, table[column] - left, height * 0.9, left=left, color=colour, label=column)
        yield str(column), bars
    style.name_rows(ax, list(table.index))


def scenarios(table: pd.DataFrame) -> Figure:
    """Draw the throughput of every model in every scenario relative to the first; rows models."""
    figure, (ax,) = style.axes(style.WIDE, 0.9 + 0.2 * table.size)
    colours = (style.BLUE, style.AMBER, style.TEAL, style.PURPLE, style.GREY)
    for scenario, bars in _beside(ax, table, colours, left=0):
        ax.bar_label(bars, [times(value) for value in table[scenario]], padding=3, fontsize=7.5)
    ax.set_xlabel(f"throughput over {table.columns[0]}")
    return style.legend_above(figure, ax)
