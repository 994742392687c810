"""Charts that compare planners: throughput over the best, and time by number of devices."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from phaze.report import style
from phaze.spec.names import Planner

PLANNER_NAMES: dict[Planner, str] = {
    "piper": "Piper",
    "no-dp": "no DP",
    "no-tp": "no TP",
    "no-ar": "no AR",
    "equi": "equi",
    "equi-no-tp": "equi, no TP",
}
"""Names of the planners in the paper."""
PANEL = ("blocks", "memory_gib", "microbatches")
"""Key columns of a panel: number of layers (if repeated), memory and N."""
GROUP = ["case", "blocks", "memory_gib", "microbatches", "mode"]
"""Columns that are constant within a panel."""
_COLOURS = {
    "piper": style.BLUE, "no-dp": style.RED, "no-tp": style.TEAL, "no-ar": style.PURPLE,
    "equi": style.AMBER, "equi-no-tp": style.SAND,
}  # fmt: skip


def throughputs(cases: pd.DataFrame) -> Figure:
    """Draw Figure 1: throughput over the best against devices, one panel per memory and N."""
    rows = cases.assign(relative=relative(cases))
    parts = list(by_values(rows, *PANEL))
    columns = min(2, len(parts))
    figure, every = style.panels(len(parts), columns, 0.6, 1.9)
    for ax, (panel, some) in zip(every, parts, strict=True):
        _bars(ax, some)
        ax.set_title(panel_name(panel))
    for ax in every[::columns]:
        ax.set_ylabel("throughput over best")
    for ax in every[-columns:]:
        ax.set_xlabel("devices")
    return style.legend_above(figure, every[0])


def _bars(ax: Axes, rows: pd.DataFrame) -> None:
    devices = sorted(rows["devices"].unique())
    planners = planners_of(rows)
    for number, planner in enumerate(planners):
        mine = rows[rows["planner"] == planner].set_index("devices")["relative"].reindex(devices).fillna(0.0)
        at = style.bars_beside(ax, mine, number, len(planners), _COLOURS[planner], PLANNER_NAMES[planner])
        without = mine.to_numpy() == 0
        ax.plot(at[without], np.full(int(without.sum()), 0.03), "x", color=_COLOURS[planner], ms=3, mew=1)
    ax.set_xticks(range(len(devices)), [str(k) for k in devices])
    ax.set_ylim(0, 1.05)
    ax.grid(axis="y")


def curves(table: pd.DataFrame, scale_s: float, *, every_k: bool) -> Figure:
    """Draw Figure 2: time per sample against devices, one panel per memory and N.

    Curves are steps with `every_k`; otherwise dots mark the plans.
    """
    parts = list(by_values(table, *PANEL))
    figure, every = style.panels(len(parts), min(2, len(parts)), 0.6, 2.9)
    for ax, (panel, some) in zip(every, parts, strict=True):
        _lines(ax, some, scale_s, every_k)
        ax.axvline(panel[-1], color=style.GREY, lw=0.8, ls=":")
        ax.set_title(panel_name(panel))
        ax.set_xlabel("devices k; dotted: k = N")
    every[0].set_ylabel("time per sample, s")
    return style.legend_above(figure, every[0])


def _lines(ax: Axes, rows: pd.DataFrame, scale_s: float, every_k: bool) -> None:
    most = int(rows["most_devices"].max())
    for planner in reversed(PLANNER_NAMES):
        mine = rows[rows["planner"] == planner].sort_values("devices")
        if mine.empty:
            continue
        at = np.append(mine["devices"], most)
        times = np.append(mine["time_per_sample"], mine["time_per_sample"].min()) * scale_s
        wide = 2.0 if planner == "piper" else 1.2
        drawn = "steps-post" if every_k else "default"
        ax.plot(
            at, times, color=_COLOURS[planner], lw=wide, label=PLANNER_NAMES[planner],
            drawstyle=drawn, marker="" if every_k else "o", ms=2.5,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = [2**i for i in range(1, int(math.log2(most)) + 1, 2)]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid()


assert set(_COLOURS) == set(PLANNER_NAMES)


def panel_name(values: tuple[float, ...]) -> str:
    """Title of a panel."""
    blocks, memory_gib, microbatches = values
    layers = f"{blocks:.0f} layers, " if blocks else ""
    return f"{layers}{memory_gib:g} GB a device, N = {microbatches:.0f}"


def planners_of(rows: pd.DataFrame) -> list[Planner]:
    """Planners of the rows, in display order."""
    return [planner for planner in PLANNER_NAMES if planner in set(rows["planner"])]


def relative(cases: pd.DataFrame) -> pd.Series:
    """Throughput of each row over the best on the same cluster; 0 without a plan."""
    best = cases.groupby([*GROUP, "devices"])["time_per_sample"].transform("min")
    share = best / cases["time_per_sample"]
    return share.where(np.isfinite(cases["time_per_sample"]), 0.0)


def by_values(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[float, ...], pd.DataFrame]]:
    """Yield the rows of a frame grouped by the values of some columns, in ascending order."""
    ordered = frame[list(columns)].drop_duplicates().sort_values(list(columns))
    for values in ordered.to_numpy(dtype=float).tolist():
        same = (frame[list(columns)] == values).all(axis=1)
        yield tuple(values), frame[same]
