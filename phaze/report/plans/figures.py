"""Figures of the plans: throughput over the best, times for every number of devices, running times."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from phaze.report.plans.inputs import PLANNER_NAMES, by_values, planners_of, relative
from phaze.report.style import (
    AMBER,
    BLUE,
    GREY,
    PURPLE,
    RED,
    SAND,
    SKY,
    TEAL,
    WIDE,
    axes,
    bars_beside,
    legend_above,
    panels,
)

_COLOURS = {
    "piper": BLUE,
    "no-dp": RED,
    "no-tp": TEAL,
    "no-ar": PURPLE,
    "equi": AMBER,
    "equi-no-tp": SAND,
}
_SIZES = (SKY, TEAL, AMBER, PURPLE, BLUE, RED, GREY)


def throughputs(cases: pd.DataFrame) -> Figure:
    """Draw Figure 1: throughput over the best against devices, a panel for each memory and N."""
    rows = cases.assign(relative=relative(cases))
    parts = list(by_values(rows, "memory_gib", "microbatches"))
    columns = min(2, len(parts))
    figure, every = panels(len(parts), columns, 0.6, 1.9)
    for ax, ((memory, microbatches), some) in zip(every, parts, strict=True):
        _bars(ax, some)
        ax.set_title(f"{memory:g} GB a device, N = {microbatches:.0f}")
    for ax in every[::columns]:
        ax.set_ylabel("throughput over best")
    for ax in every[-columns:]:
        ax.set_xlabel("devices")
    legend_above(figure, every[0])
    return figure


def _bars(ax: Axes, rows: pd.DataFrame) -> None:
    devices = sorted(rows["devices"].unique())
    planners = planners_of(rows)
    for number, planner in enumerate(planners):
        mine = rows[rows["planner"] == planner].set_index("devices")["relative"].reindex(devices).fillna(0.0)
        at = bars_beside(ax, mine, number, len(planners), _COLOURS[planner], PLANNER_NAMES[planner])
        without = mine.to_numpy() == 0
        ax.plot(at[without], np.full(int(without.sum()), 0.03), "x", color=_COLOURS[planner], ms=3, mew=1)
    ax.set_xticks(range(len(devices)), [str(k) for k in devices])
    ax.set_ylim(0, 1.05)
    ax.grid(axis="y")


def curves(table: pd.DataFrame, scale_s: float, *, every_k: bool) -> Figure:
    """Draw Figure 2: time per sample against devices, a panel for each memory and N; dots are plans."""
    parts = list(by_values(table, "memory_gib", "microbatches"))
    figure, every = panels(len(parts), min(2, len(parts)), 0.6, 2.9)
    for ax, ((memory, microbatches), some) in zip(every, parts, strict=True):
        _lines(ax, some, scale_s, every_k)
        ax.axvline(microbatches, color=GREY, lw=0.8, ls=":")
        ax.set_title(f"N = {microbatches:.0f}, {memory:g} GB a device")
        ax.set_xlabel("devices k; dotted: k = N")
    every[0].set_ylabel("time per sample, s")
    legend_above(figure, every[0])
    return figure


def _lines(ax: Axes, rows: pd.DataFrame, scale_s: float, every_k: bool) -> None:
    most = int(rows["most_devices"].max())
    for planner in reversed(PLANNER_NAMES):
        mine = rows[rows["planner"] == planner].sort_values("devices")
        if mine.empty:
            continue
        at = np.append(mine["devices"], most)
        times = np.append(mine["time_per_sample"], mine["time_per_sample"].min()) * scale_s
        wide = 2.0 if planner == "piper" else 1.2
        style = "steps-post" if every_k else "default"
        ax.plot(
            at, times, color=_COLOURS[planner], lw=wide, label=PLANNER_NAMES[planner],
            drawstyle=style, marker="" if every_k else "o", ms=2.5,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = [2**i for i in range(1, int(math.log2(most)) + 1, 2)]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid()


def running_times(durations: pd.DataFrame) -> Figure:
    """Draw Figure 3: processor time against devices, a line for each size, a panel for each N."""
    parts = list(by_values(durations, "microbatches"))
    figure, every = axes(WIDE, 3.4, 1, len(parts))
    most = durations["seconds"].max()
    for ax, ((microbatches,), some) in zip(every, parts, strict=True):
        for colour, ((blocks,), mine) in zip(_SIZES, by_values(some, "blocks"), strict=False):
            spread = mine.groupby("devices")["seconds"].agg(["mean", "std"]).fillna(0.0)
            ax.errorbar(
                spread.index, spread["mean"], spread["std"], color=colour, marker="o", ms=3, lw=1.3,
                capsize=2, label=f"{blocks:.0f} layers" if blocks else "as given",
            )  # fmt: skip
        ax.set_title(f"N = {microbatches:.0f}")
        ax.set_xscale("log", base=2)
        ticks = sorted(some["devices"].unique())
        ax.set_xticks(ticks, [str(tick) for tick in ticks])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_ylim(0, 1.1 * most)
        ax.set_xlabel("devices")
        ax.grid()
    every[0].set_ylabel("processor time, s")
    legend_above(figure, every[0])
    return figure


assert set(_COLOURS) == set(PLANNER_NAMES)
