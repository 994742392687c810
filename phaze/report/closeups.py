"""Figures of one placement: the schedule of a layer, the pipeline over time, the memory of its stages."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from phaze.base.units import GIB, digits
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.trace import job_rows
from phaze.report.over_time import cells, draw_pipeline
from phaze.report.style import AMBER, BLUE, GREY, PURPLE, RED, SAND, SKY, WIDE, axes, legend_above
from phaze.report.words import operator

HALF = 5.2
CORES = {"tensor": BLUE, "vector": SKY, "fused": PURPLE, "network": RED}
_MEMORY_PARTS = {"weight": BLUE, "gradient": SKY, "optimizer": PURPLE, "activation": AMBER, "stashed": SAND}
MOST_SLOTS = 900
"""Limit on the drawn passes of a pipeline; a figure with more is not legible."""


def gantt(operators: pd.DataFrame, title: str) -> Figure:
    """Draw the schedule of one layer, forward above backward; a lane is all cores of a type, or one core."""
    busy = operators[operators["core"] != "none"]
    passes = {name: busy[busy["direction"] == name] for name in ("forward", "backward")}
    lanes = {
        name: sorted({*zip(rows["core"], rows["core_index"], strict=True)}, key=_place)
        for name, rows in passes.items()
    }
    figure, panels = axes(WIDE, 0.5 + sum(0.32 + 0.2 * len(mine) for mine in lanes.values()), 2, 1)
    for ax, (direction, rows) in zip(panels, passes.items(), strict=True):
        _draw_lanes(ax, rows, lanes[direction], f"{title}, {direction}")
    for core, colour in CORES.items():
        if (busy["core"] == core).any():
            panels[0].barh([0], [0], color=colour, label=core)
    return legend_above(figure, panels[0])


def _place(lane: tuple[str, int]) -> tuple[int, int]:
    """Sort key of a lane: by core type, with the lane of all cores before single cores."""
    return list(CORES).index(lane[0]), lane[1]


def _draw_lanes(ax: Axes, rows: pd.DataFrame, lanes: list[tuple[str, int]], title: str) -> None:
    span = float(rows["end_s"].max()) if len(rows) else 1.0
    scale, unit = (1e3, "ms") if span >= 1e-3 else (1e6, "µs")
    names = []
    for y, (core, index) in enumerate(lanes):
        mine = rows[(rows["core"] == core) & (rows["core_index"] == index)]
        bars = list(zip(mine["start_s"] * scale, mine["latency_s"] * scale, strict=True))
        ax.broken_barh(bars, (y - 0.42, 0.84), color=CORES[core], ec="white", lw=0.6)
        for name, (start, length) in zip(mine["name"].map(operator), bars, strict=True):
            room = int(length / (span * scale) * 115)  # letters that fit into a bar
            if room >= 5:
                text = name if len(name) <= room else name[: room - 1] + "…"
                ax.text(start + length / 2, y, text, ha="center", va="center", color="white", fontsize=6.5)
        names.append("link" if core == "network" else f"all {core}" if index < 0 else f"{core} {index}")
    ax.set_yticks(range(len(lanes)), names)
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    ax.set_xlim(0, span * scale)
    ax.set_title(f"{title}, {unit}", fontweight="normal")


def pipeline(stages: pd.DataFrame, microbatches: int) -> Figure:
    """Draw the 1F1B pipeline with the times of its stages, for a legible number of microbatches."""
    depth = len(stages)
    shown = min(microbatches, max(4, MOST_SLOTS // (2 * depth)), depth + 8)
    half_s = stages["transfer_s"] / 2
    costs = tuple(map(StageCost, stages["forward_s"] + half_s, stages["backward_s"] + half_s))
    jobs = pd.DataFrame(job_rows(simulate(Pipeline(costs, shown))))
    passes = cells(jobs[jobs["kind"].isin(["forward", "backward"])])
    figure, (ax,) = axes(HALF, 0.85 + max(0.07 * depth, 0.28 * min(depth, 4)))
    draw_pipeline(ax, passes, (0.0, float(passes["end_s"].max())))
    step = max(1, depth // 4)
    ax.set_yticks(range(0, depth, step), [str(i + 1) for i in range(0, depth, step)])
    ax.set_ylabel("stage")
    ax.xaxis.set_major_formatter(EngFormatter("s"))
    ax.set_xlabel(f"{shown} of {microbatches} microbatches of a pipeline")
    return legend_above(figure, ax)


def stage_memory(stages: pd.DataFrame, hbm_gib: float) -> Figure:
    """Draw the memory breakdown of each stage, and the HBM capacity."""
    figure, (ax,) = axes(HALF, 2.0)
    at, bottom = np.arange(1, len(stages) + 1), np.zeros(len(stages))
    for part, colour in _MEMORY_PARTS.items():
        values = stages[f"{part}_bytes"].to_numpy() / GIB
        if values.any():
            ax.bar(at, values, 0.82, bottom=bottom, color=colour, label=part)
        bottom = bottom + values
    ax.axhline(hbm_gib, color=GREY, lw=1, ls=":")
    ax.text(0.5, hbm_gib, f" HBM {digits(hbm_gib, 2)} GiB", va="bottom", fontsize=7.5, color=GREY)
    ax.set_xlim(0.5, len(stages) + 0.5)
    ax.set_ylim(0, hbm_gib * 1.15)
    ax.set_xticks(range(1, len(stages) + 1, max(1, len(stages) // 8)))
    ax.set_xlabel("stage")
    ax.set_ylabel("GiB")
    return legend_above(figure, ax, 5)
