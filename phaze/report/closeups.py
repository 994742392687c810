"""Figures of one placement: the schedule of a layer, the pipeline at work, the memory of its stages."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from phaze.base.units import GIB
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.trace import job_rows
from phaze.report.style import AMBER, BLUE, GREY, PURPLE, RED, SAND, SILVER, SKY, WIDE, axes, legend_above
from phaze.report.words import digits, operator

HALF = 5.2
CORES = {"tensor": BLUE, "vector": SKY, "fused": PURPLE, "network": RED, "none": SILVER}
_MEMORY_PARTS = {"weight": BLUE, "gradient": SKY, "optimizer": PURPLE, "activation": AMBER, "stashed": SAND}
MOST_SLOTS = 900
"""Passes drawn of a pipeline: beyond them a picture shows nothing more."""


def gantt(operators: pd.DataFrame, title: str) -> Figure:
    """Draw the schedule of one layer, forward above backward; a lane is all cores of a type, or one."""
    figure, panels = axes(
        WIDE, 0.5 + sum(0.32 + 0.2 * len(_lanes(rows)) for rows in _passes(operators)), 2, 1
    )
    for ax, rows, direction in zip(panels, _passes(operators), ("forward", "backward"), strict=True):
        unit = _draw_lanes(ax, rows)
        ax.set_title(f"{title}, {direction}, {unit}", fontweight="normal")
    for core, colour in CORES.items():
        if (operators["core"] == core).any() and core != "none":
            panels[0].barh([0], [0], color=colour, label=core)
    return legend_above(figure, panels[0])


def _passes(operators: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    busy = operators[operators["core"] != "none"]
    return busy[busy["direction"] == "forward"], busy[busy["direction"] == "backward"]


def _lanes(rows: pd.DataFrame) -> list[tuple[str, int]]:
    """Return (core type, index) of every lane, all cores first, in the order of core types."""
    kinds = list(CORES)
    lanes = {(str(core), int(index)) for core, index in zip(rows["core"], rows["core_index"], strict=True)}
    return sorted(lanes, key=lambda lane: (kinds.index(lane[0]), lane[1]))


def _draw_lanes(ax: Axes, rows: pd.DataFrame) -> str:
    """Draw the bars of one pass; return the unit of its time axis."""
    lanes = _lanes(rows)
    span = float(rows["end_s"].max()) if len(rows) else 1.0
    scale, unit = (1e3, "ms") if span >= 1e-3 else (1e6, "µs")
    for y, (core, index) in enumerate(lanes):
        mine = rows[(rows["core"] == core) & (rows["core_index"] == index)]
        starts, lengths = mine["start_s"] * scale, mine["latency_s"] * scale
        ax.broken_barh(
            list(zip(starts, lengths, strict=True)), (y - 0.42, 0.84), color=CORES[core], ec="white", lw=0.6
        )
        for name, start, length in zip(mine["name"], starts, lengths, strict=True):
            _label(ax, operator(name), float(start), float(length), y, span * scale)
    ax.set_yticks(range(len(lanes)), [_lane_name(core, index) for core, index in lanes])
    ax.set_ylim(len(lanes) - 0.5, -0.5)
    ax.set_xlim(0, span * scale)
    return unit


def _lane_name(core: str, index: int) -> str:
    if core == "network":
        return "link"
    return f"all {core}" if index < 0 else f"{core} {index}"


def _label(ax: Axes, name: str, start: float, length: float, y: int, span: float) -> None:
    """Write the operator's name into its bar where there is room for most of it."""
    room = int(length / span * 115)
    if room >= 5:
        text = name if len(name) <= room else name[: room - 1] + "…"
        ax.text(start + length / 2, y, text, ha="center", va="center", color="white", fontsize=6.5)


def one_forward_one_backward(
    forward_s: list[float], backward_s: list[float], microbatches: int
) -> pd.DataFrame:
    """Return every pass of a 1F1B pipeline: stage, microbatch, backward, start_s and end_s."""
    stages = tuple(map(StageCost, forward_s, backward_s))
    jobs = pd.DataFrame(job_rows(simulate(Pipeline(stages, microbatches))))
    passes: pd.DataFrame = jobs[jobs["kind"].isin(["forward", "backward"])]
    return passes.assign(backward=passes["kind"] == "backward")


def pipeline(stages: pd.DataFrame, microbatches: int) -> Figure:
    """Draw the 1F1B pipeline with the stages' own times, for as many microbatches as a picture can hold."""
    depth = len(stages)
    shown = min(microbatches, max(4, MOST_SLOTS // (2 * depth)), depth + 8)
    half_s = stages["transfer_s"] / 2
    forward_s, backward_s = stages["forward_s"] + half_s, stages["backward_s"] + half_s
    passes = one_forward_one_backward(forward_s.to_list(), backward_s.to_list(), shown)
    figure, (ax,) = axes(HALF, 0.85 + max(0.07 * depth, 0.28 * min(depth, 4)))
    end_s = passes["end_s"].max()
    scale, unit = (1.0, "s") if end_s >= 1 else (1e3, "ms")
    for backward, name, colours in (
        (False, "forward", (SKY, "#9cc4e8")),
        (True, "backward", (BLUE, "#3f7fb8")),
    ):
        for parity, colour in enumerate(colours):
            some = passes[(passes["backward"] == backward) & (passes["microbatch"] % 2 == parity)]
            label = name if parity == 0 else None
            ax.add_patch(PathPatch(_boxes(some, scale), fc=colour, lw=0, label=label))
    ax.set_xlim(0, end_s * scale)
    ax.set_ylim(depth - 0.5, -0.5)
    step = max(1, depth // 4)
    ax.set_yticks(range(0, depth, step), [str(i + 1) for i in range(0, depth, step)])
    ax.set_ylabel("stage")
    ax.set_xlabel(f"{unit}; {shown} of {microbatches} microbatches of a pipeline")
    return legend_above(figure, ax)


def _boxes(passes: pd.DataFrame, scale: float) -> Path:
    """Return all boxes as one path, which keeps the page small."""
    left, right = passes["start_s"].to_numpy() * scale, passes["end_s"].to_numpy() * scale
    top, bottom = passes["stage"].to_numpy() - 0.44, passes["stage"].to_numpy() + 0.44
    corners = [(left, top), (left, bottom), (right, bottom), (right, top), (left, top)]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(passes)
    return Path(np.moveaxis(np.array(corners), 2, 0).reshape(-1, 2), np.array(codes, dtype=np.uint8))


def stage_memory(stages: pd.DataFrame, hbm_gib: float) -> Figure:
    """Draw the memory of every stage by what it holds, under the HBM capacity."""
    figure, (ax,) = axes(HALF, 2.0)
    at = np.arange(1, len(stages) + 1)
    bottom = np.zeros(len(stages))
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
