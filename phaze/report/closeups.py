"""Figures of one placement: the schedule of a layer, the pipeline at work, the memory of its stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from phaze.base.units import GIB
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
    legend_above(figure, panels[0])
    return figure


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


@dataclass(frozen=True)
class Pass:
    """One pass of one microbatch through one stage."""

    stage: int
    microbatch: int
    backward: bool
    start_s: float
    end_s: float


def one_forward_one_backward(
    forward_s: list[float], backward_s: list[float], microbatches: int
) -> list[Pass]:
    """Return when every pass of a 1F1B pipeline runs: stage i does s - i forward passes, then alternates.

    Every pass starts when its stage is free and its input is there; transfers are part of the passes.
    """
    depth = len(forward_s)
    queues = [_order(depth - i, microbatches) for i in range(depth)]
    free = [0.0] * depth
    done: dict[tuple[int, int, bool], float] = {}
    passes: list[Pass] = []
    while any(queues):
        i = next(i for i, queue in enumerate(queues) if queue and _needs(i, depth, *queue[0]) <= done.keys())
        number, backward = queues[i].pop(0)
        ready = max((done[key] for key in _needs(i, depth, number, backward)), default=0.0)
        start = max(free[i], ready)
        end = start + (backward_s[i] if backward else forward_s[i])
        free[i] = done[i, number, backward] = end
        passes.append(Pass(i, number, backward, start, end))
    return passes


def _order(warm_up: int, microbatches: int) -> list[tuple[int, bool]]:
    """Return (microbatch, backward) in the order of a stage that starts with so many forward passes."""
    warm_up = min(warm_up, microbatches)
    order = [(m, False) for m in range(warm_up)]
    for number in range(microbatches):
        order.append((number, True))
        if warm_up + number < microbatches:
            order.append((warm_up + number, False))
    return order


def _needs(stage: int, depth: int, number: int, backward: bool) -> set[tuple[int, int, bool]]:
    """Return the passes that a pass waits for."""
    if backward:
        return {(stage, number, False)} | ({(stage + 1, number, True)} if stage + 1 < depth else set())
    return {(stage - 1, number, False)} if stage else set()


def pipeline(stages: pd.DataFrame, microbatches: int) -> Figure:
    """Draw the 1F1B pipeline with the stages' own times, for as many microbatches as a picture can hold."""
    depth = len(stages)
    shown = min(microbatches, max(4, MOST_SLOTS // (2 * depth)), depth + 8)
    half = (stages["transfer_s"] / 2).to_numpy()
    passes = one_forward_one_backward(
        (stages["forward_s"].to_numpy() + half).tolist(),
        (stages["backward_s"].to_numpy() + half).tolist(),
        shown,
    )
    figure, (ax,) = axes(HALF, 0.85 + max(0.07 * depth, 0.28 * min(depth, 4)))
    scale, unit = (1.0, "s") if passes[-1].end_s >= 1 else (1e3, "ms")
    for backward, name, dark, light in (
        (False, "forward", SKY, "#9cc4e8"),
        (True, "backward", BLUE, "#3f7fb8"),
    ):
        for parity, colour in enumerate((dark, light)):
            some = [p for p in passes if p.backward == backward and p.microbatch % 2 == parity]
            label = name if parity == 0 else None
            ax.add_patch(PathPatch(_boxes(some, scale), fc=colour, lw=0, label=label))
    ax.set_xlim(0, max(p.end_s for p in passes) * scale)
    ax.set_ylim(depth - 0.5, -0.5)
    step = max(1, depth // 4)
    ax.set_yticks(range(0, depth, step), [str(i + 1) for i in range(0, depth, step)])
    ax.set_ylabel("stage")
    ax.set_xlabel(f"{unit}; {shown} of {microbatches} microbatches of a pipeline")
    legend_above(figure, ax)
    return figure


def _boxes(passes: list[Pass], scale: float) -> Path:
    """Return all boxes as one path, which keeps the page small."""
    corners = np.array(
        [
            [(p.start_s * scale, p.stage + dy) for dy in (-0.44, 0.44)]
            + [(p.end_s * scale, p.stage + dy) for dy in (0.44, -0.44)]
            + [(p.start_s * scale, p.stage - 0.44)]
            for p in passes
        ]
    ).reshape(-1, 2)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(passes)
    return Path(corners, np.array(codes, dtype=np.uint8)) if passes else Path(np.zeros((0, 2)))


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
    ax.set_xticks(list(_few(len(stages))))
    ax.set_xlabel("stage")
    ax.set_ylabel("GiB")
    legend_above(figure, ax, 5)
    return figure


def _few(count: int) -> Iterator[int]:
    """Yield the numbers of some stages, the first among them."""
    yield from range(1, count + 1, max(1, count // 8))
