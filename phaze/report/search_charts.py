"""Figures of the search: strategies side by side, and the walk down the areas (the paper's Figures 8, 9)."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phaze.base.arrays import Floats
from phaze.base.ranking import Ranks
from phaze.base.units import UM2_PER_MM2
from phaze.report.style import AMBER, BLUE, GREY, INK, PURPLE, RED, TEAL, WIDE, axes, legend_above

WALK = "hysteresis-"
"""Beginning of the name of a walk down the areas; the level follows."""
MOST_POINTS = 90
"""Points of a curve, evenly spread over the logarithm of the evaluations."""
_CHANCE = {"random": TEAL, "bayesian": PURPLE}


def strategies(trials: pd.DataFrame, optimum: float, tolerance: float) -> Figure:
    """Draw the best found by every strategy after so many exact evaluations, relative to the optimum."""
    figure, (ax,) = axes(WIDE, 4.0)
    by_name = {str(name): mine for name, mine in trials.groupby("strategy")}
    for name, colour in _CHANCE.items():
        if name in by_name:
            _draw_runs(ax, name, [run / optimum for run in curves(by_name[name])], colour)
    levels = sorted(int(name.removeprefix(WALK)) for name in by_name if name.startswith(WALK))
    if levels:
        ends = {level: len(by_name[f"{WALK}{level}"]) for level in levels}
        longest = next(curves(by_name[f"{WALK}{levels[-1]}"])) / optimum
        _draw_walk(ax, longest, ends)
    sure = next(curves(by_name["certified"])) / optimum
    ax.plot(
        np.arange(1, len(sure) + 1), sure, color=BLUE, lw=2.4, marker="o", ms=6, markevery=[-1],
        label="certified, to its proof", zorder=4,
    )  # fmt: skip
    ax.axhline(1.0, color=INK, lw=0.8, label="certified optimum")
    ax.axhline(1.0 - tolerance, color=INK, lw=0.8, ls=":", label=f"within {tolerance:.0%} of it")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_ylim(0, 1.06)
    ax.set_xlabel("exact evaluations")
    ax.set_ylabel("best found over the optimum")
    ax.grid()
    legend_above(figure, ax, 3)
    return figure


def _draw_runs(ax: Axes, name: str, runs: list[Floats], colour: str) -> None:
    """Draw median and range over seeds; a run that has ended keeps what it found."""
    at = _logarithmic(max(map(len, runs)))
    found = np.array([run[np.minimum(at, len(run)) - 1] for run in runs])
    ax.fill_between(at, found.min(axis=0), found.max(axis=0), color=colour, alpha=0.18, lw=0)
    label = f"{name}, median and range of {len(runs)} seeds"
    ax.plot(at, np.median(found, axis=0), color=colour, lw=1.8, label=label)


def _logarithmic(most: int) -> Ranks:
    """Return numbers of evaluations from 1 to the most."""
    spread = np.rint(np.geomspace(1, most, MOST_POINTS))
    return np.unique(spread.astype(np.int64))


def _draw_walk(ax: Axes, walk: Floats, ends: dict[int, int]) -> None:
    """Draw the walk down the areas, with the levels that end at each mark; near ends share a label."""
    at = np.union1d(_logarithmic(len(walk)), list(ends.values()))
    ax.plot(at, walk[at - 1], color=AMBER, lw=1.8, label="hysteresis, marks: where levels 1 to 8 end")
    groups: list[tuple[int, list[int]]] = []
    for level, end in ends.items():
        ax.plot(end, walk[end - 1], "s", color=AMBER, ms=5, zorder=5)
        if groups and end < 1.25 * groups[-1][0]:
            groups[-1][1].append(level)
        else:
            groups.append((end, [level]))
    for end, levels in groups:
        words = str(levels[0]) if len(levels) == 1 else f"{levels[0]}–{levels[-1]}"
        ax.annotate(
            words, (end, walk[end - 1]), (4, -12), textcoords="offset points", ha="left",
            fontsize=8, color=AMBER, fontweight="bold",
        )  # fmt: skip


def levels(walks: dict[str, pd.DataFrame]) -> Figure:
    """Draw Figure 8: what every hysteresis level visits and reaches; walks by what they search."""
    figure, (visited, reached) = axes(WIDE, 2.9, 1, 2)
    for (label, rows), (form, colour, size) in zip(
        walks.items(), (("o-", BLUE, 8), ("s--", TEAL, 4)), strict=False
    ):
        visited.plot(rows["hysteresis"], rows["visited"], form, color=colour, ms=size, label=label)
        reached.plot(rows["hysteresis"], rows["relative"], form, color=colour, ms=size, label=label)
    visited.set_yscale("log")
    visited.yaxis.set_major_formatter("{x:,.0f}")
    visited.set_title("architectures visited")
    reached.set_ylim(0, 1.06)
    reached.axhline(1.0, color=INK, lw=0.8)
    reached.set_title("throughput over the certified optimum")
    for ax in (visited, reached):
        ax.set_xticks(range(1, 1 + int(max(rows["hysteresis"].max() for rows in walks.values()))))
        ax.set_xlabel("hysteresis level")
        ax.grid()
    legend_above(figure, visited, 2)
    return figure


def walk(visits: pd.DataFrame, walks: pd.DataFrame, optimum: float, limit_um2: float) -> Figure:
    """Draw Figure 9: area, throughput and size of a tensor core of every architecture visited."""
    figure, (ax,) = axes(WIDE, 3.9)
    _draw_visits(ax, visits.drop_duplicates(["area_um2", "pes", "samples_per_s"]))
    _draw_chosen(ax, walks)
    ax.axhline(optimum, color=INK, lw=0.8, label="certified optimum")
    ax.axvline(limit_um2 / UM2_PER_MM2, color=GREY, lw=0.9, ls=":", label="area limit")
    ax.invert_xaxis()
    ax.set_xlabel("area, mm² (the walk goes to the right)")
    ax.set_ylabel("samples/s")
    ax.grid()
    legend_above(figure, ax, 4)
    return figure


def _draw_visits(ax: Axes, shown: pd.DataFrame) -> None:
    """Draw a dot for every architecture, the darker the larger its tensor cores."""
    sizes = sorted(shown["pes"].unique())
    shades = mpl.colormaps["viridis_r"](np.linspace(0.1, 0.95, len(sizes)))
    for pes, shade in zip(sizes, shades, strict=True):
        some = shown[shown["pes"] == pes]
        area_mm2 = some["area_um2"] / UM2_PER_MM2
        label = f"{pes:,} PEs a tensor core"
        ax.plot(area_mm2, some["samples_per_s"], "o", color=shade, ms=3.5, mew=0, label=label)


def _draw_chosen(ax: Axes, walks: pd.DataFrame) -> None:
    """Draw a ring around every architecture that some hysteresis levels choose."""
    for number, (_, rows) in enumerate(walks.groupby("architecture", sort=False)):
        chosen = rows.iloc[0]
        levels = ", ".join(str(level) for level in rows["hysteresis"])
        marker = "osD^vP*X"[number % 8]
        ax.plot(
            chosen["area_um2"] / UM2_PER_MM2, chosen["samples_per_s"], marker, ms=10, mfc="none", mec=RED,
            mew=1.6, label=f"chosen at hysteresis {levels}",
        )  # fmt: skip


def curves(trials: pd.DataFrame) -> Iterator[Floats]:
    """Yield for every seed the best throughput after 1, 2, … evaluations."""
    for _, run in trials.groupby("seed"):
        yield run.sort_values("evaluation")["best_samples_per_s"].to_numpy(np.float64)
