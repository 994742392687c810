"""Figures of measured runs: predicted against measured times, and their ratios by source."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from phaze.report import style

COLOURS = (
    style.BLUE, style.AMBER, style.TEAL, style.RED, style.PURPLE, style.SKY, style.SAND, style.GREY,
    style.INK, style.SILVER,
)  # fmt: skip
MARKS = "osD^v"
NEAR = 0.15
"""Shaded band around the measured time, as a share of it."""


def scatter(runs: pd.DataFrame) -> Figure:
    """Draw predicted against measured times in s, one point per run, coloured by source."""
    figure, (ax,) = style.axes(6.5, 5.6)
    ends = np.array([runs["measured_s"].min() / 1.3, runs["measured_s"].max() * 1.3])
    ax.fill_between(ends, ends * (1 - NEAR), ends * (1 + NEAR), color=style.GRID, label="within 15 %")
    ax.plot(ends, ends, color=style.MUTED, linewidth=0.8)
    for number, (source, mine) in enumerate(_by_rows(runs)):
        ax.plot(
            mine["measured_s"], mine["predicted_s"], MARKS[number % len(MARKS)], ms=3, alpha=0.7,
            markeredgewidth=0, color=COLOURS[number % len(COLOURS)], label=source,
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("measured, seconds a batch")
    ax.set_ylabel("predicted")
    ax.grid(visible=True)
    return style.legend_above(figure, ax, 3)


def _by_rows(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Sources with their runs; the largest first, so that smaller ones are drawn on top."""
    each = [(str(source), mine) for source, mine in runs.groupby("source")]
    return sorted(each, key=lambda pair: -len(pair[1]))


def ratios(runs: pd.DataFrame) -> Figure:
    """Draw predicted over measured times, one row per source: each run, the median and the middle half."""
    sources = list(dict.fromkeys(runs["source"]))
    figure, (ax,) = style.axes(style.WIDE, 0.8 + 0.3 * len(sources))
    for row, source in enumerate(sources):
        mine = runs.loc[runs["source"] == source, "ratio"].to_numpy(float)
        spread = (np.arange(len(mine)) * 0.618) % 1 * 0.6 - 0.3  # even and deterministic
        ax.plot(100 * (mine - 1), row + spread, "o", ms=2, alpha=0.5, markeredgewidth=0, color=style.SKY)
        low, middle, high = 100 * (np.quantile(mine, [0.25, 0.5, 0.75]) - 1)
        ax.plot([low, high], [row, row], color=style.BLUE, linewidth=2)
        ax.plot([middle], [row], "|", color=style.RED, ms=9)
    ax.axvline(0, color=style.MUTED, linewidth=0.8)
    style.name_rows(ax, sources)
    ax.set_xlabel("% that the predicted time is above the measured")
    return figure
