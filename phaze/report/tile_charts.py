"""Figures of tiled accelerators: throughput and occupancy by split, pipelines over time, maps of links."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from phaze.report import over_time, style

LAYOUTS = {"line": "line", "s-shaped": "S", "own": "own"}
"""Display names of the placement of stages."""
_MAPPED = (
    ("line", "near", style.SKY), ("line", "far", style.SILVER), ("s-shaped", "near", style.BLUE),
    ("s-shaped", "far", style.AMBER), ("own", "near", style.TEAL), ("own", "far", style.SAND),
)  # fmt: skip


def splits(runs: pd.DataFrame, best: dict[str, int]) -> Figure:
    """Draw Figure 10: throughput by TP × DP split, one panel per model; a triangle marks the paper's best."""
    models = list(dict.fromkeys(runs["model"]))
    figure, every = style.axes(style.WIDE, 2.9, 1, len(models))
    for ax, model in zip(every, models, strict=True):
        mine = runs[runs["model"] == model]
        _bars(ax, mine, "samples_per_s")
        ax.set_title(model)
        tensors = sorted(mine["tensor"].unique())
        if best.get(model) in tensors:
            ax.plot(
                tensors.index(best[model]), mine["samples_per_s"].max() * 1.06, "v", color=style.RED, ms=5
            )
    every[0].set_ylabel("samples/s")
    return style.legend_above(figure, every[0], 4)


def _bars(ax: Axes, runs: pd.DataFrame, column: str) -> None:
    tensors = sorted(runs["tensor"].unique())
    there = [(a, b, c) for a, b, c in _MAPPED if ((runs["layout"] == a) & (runs["placed"] == b)).any()]
    for number, (layout, placed, colour) in enumerate(there):
        mine = runs[(runs["layout"] == layout) & (runs["placed"] == placed)]
        values = mine.groupby("tensor")[column].max().reindex(tensors).fillna(0.0)
        style.bars_beside(ax, values, number, len(there), colour, f"{LAYOUTS[layout]}, {placed}")
    size = (runs["tensor"] * runs["data"]).iloc[0]
    ax.set_xticks(range(len(tensors)), [f"{t} × {size // t}" for t in tensors])
    ax.set_xlabel("TP × DP")
    ax.grid(axis="y")


def occupancy(runs: pd.DataFrame) -> Figure:
    """Draw Figure 9: busy time of links, and its share of the batch, by TP × DP split."""
    figure, (left, right) = style.axes(style.WIDE, 2.7, 1, 2)
    _bars(left, runs, "link_busy_s")
    left.set_ylabel("s a batch, mean over links")
    _bars(right, runs.assign(share=runs["link_busy_s"] / runs["time_s"]), "share")
    right.set_ylabel("share of the batch")
    return style.legend_above(figure, left, 4)


def pipeline(jobs: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the jobs of stages over time, one row per stage."""
    return over_time.pipeline(over_time.cells(jobs), [(0.0, float(jobs["end_s"].max()))], "seconds")


def memory(jobs: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the memory of a tile of the first, middle and last stage over time."""
    last = int(jobs["stage"].max())
    work = jobs[jobs["kind"].isin(["forward", "recompute", "backward"])].sort_values("start_s")
    chosen = {stage: work[work["stage"] == stage] for stage in sorted({0, last // 2, last})}
    held = {
        stage: (mine["start_s"].to_numpy(float), mine["held_bytes"].to_numpy(float))
        for stage, mine in chosen.items()
    }
    return over_time.memory(held, float(jobs["end_s"].max()), ("seconds", "GB a tile"), unit_bytes=1e9)


def heat(links: pd.DataFrame) -> Figure:
    """Draw the links of the mesh, coloured by busy share, with both directions next to each other."""
    rows, columns = links["source_row"].max() + 1, links["source_column"].max() + 1
    figure, (ax,) = style.axes(min(style.WIDE, 0.36 * columns + 1.6), 0.36 * rows + 0.6)
    across = links["target_row"] - links["source_row"], links["target_column"] - links["source_column"]
    dx, dy = 0.13 * across[0], 0.13 * across[1]
    segments = np.stack(
        [
            np.column_stack([links["source_column"] + dx, links["source_row"] + dy]),
            np.column_stack([links["target_column"] + dx, links["target_row"] + dy]),
        ],
        axis=1,
    )
    drawn = LineCollection(list(segments), cmap="magma_r", linewidths=2.2)
    drawn.set_array(100 * links["busy_share"].to_numpy())
    ax.add_collection(drawn)
    ax.set_xlim(-0.7, columns - 0.3)
    ax.set_ylim(rows - 0.3, -0.7)
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("column of tiles")
    ax.set_ylabel("row")
    bar = figure.colorbar(drawn, ax=ax, shrink=0.8)
    bar.set_label("% of the batch held")
    return figure


def congestion(rows: pd.DataFrame) -> Figure:
    """Draw Figure 7: underestimates of formulas by number of tasks, one panel per formula."""
    readings = list(dict.fromkeys(rows["reading"]))
    figure, every = style.axes(style.WIDE, 2.5, 1, len(readings))
    for ax, reading in zip(every, readings, strict=True):
        _congestion(ax, rows[rows["reading"] == reading])
        ax.set_xlabel(f"tasks of 8 MB, against the {reading}")
    every[0].set_ylabel("% that the formula is short")
    return style.legend_above(figure, every[0], 4)


def _congestion(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw the tasks of 8 MB, with kinds in turn and in all mixes; negative if a formula overestimates."""
    for group, colour in (
        ("turns", style.BLUE),
        ("most", style.RED),
        ("mean", style.GREY),
        ("least", style.SILVER),
    ):
        mine = rows[rows["group"] == group]
        if len(mine):
            parts = mine["setting"].str.extract(r"^(\d+) tasks of ([\d.]+) MB").astype(float)
            eight = mine.assign(tasks=parts[0], mb=parts[1])
            eight = eight[eight["mb"] == 8].sort_values("tasks")
            label = "kinds in turns" if group == "turns" else f"{group} of all mixes"
            ax.plot(eight["tasks"], 100 * eight["value"], "o-", ms=3, color=colour, label=label)
    ax.set_xticks(range(1, 6))
    ax.set_ylim(min(0, *(100 * rows["value"])), 100)
    ax.grid(axis="y")
