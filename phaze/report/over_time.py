"""Drawings of pipelines over time: the jobs of stages, and the memory of their devices.

Jobs are rows with resource, kind, stage, microbatch, start_s and end_s, as in table tiled_jobs. A transfer is
a job of the resource that receives the tensor. A resource with forward passes is a worker, and a row of the
drawing. Jobs concurrent with its passes (transfers and jobs of ports) are thin lines below them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from phaze.report.style import AMBER, BLUE, GREY, INK, PURPLE, RED, SAND, SKY, TEAL

Profile = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Memory over time: times in s, and the bytes in use from each time on."""

KINDS = {
    "forward": BLUE, "recompute": SKY, "backward": TEAL, "input gradient": TEAL, "weight gradient": GREY,
    "update": PURPLE, "gather": SAND, "synchronise": RED, "transfer": AMBER,
}  # fmt: skip
MICROBATCH_JOBS = ("forward", "recompute", "backward", "input gradient", "weight gradient")
"""Kinds of jobs of a microbatch: its passes."""
_LABELS = {"synchronise": "synchronisation"}
_LINES = (BLUE, AMBER, TEAL, RED, PURPLE, SKY, GREY, SAND)
MOST_LINES = len(_LINES)
"""Maximum number of stages whose memory is drawn: one per colour."""
_PASS, _BESIDE = (-0.44, 0.22), (0.25, 0.44)
"""Vertical ranges of passes and of concurrent jobs within a row."""
FONT = 7
_POINTS_PER_DIGIT, _POINTS_AROUND, _POINTS_HIGH = 0.64 * FONT, 2.0, FONT + 2.0


def cells(jobs: pd.DataFrame) -> pd.DataFrame:
    """Jobs by worker, with columns `row` (from 0) and `beside` (True for jobs concurrent with passes)."""
    pairs = jobs.loc[jobs["kind"] == "forward", ["stage", "resource"]].drop_duplicates()
    own = jobs["resource"].isin(pairs["resource"])
    columns = ["resource", "kind", "stage", "microbatch", "start_s", "end_s"]
    ports = jobs.loc[~own, columns[1:]].merge(pairs, on="stage")[columns]
    every = jobs.loc[own, columns]
    every = pd.concat([every, ports], ignore_index=True) if len(ports) else every
    beside = (every["kind"] == "transfer").to_numpy() | (np.arange(len(every)) >= int(own.sum()))
    rows = {resource: row for row, resource in enumerate(sorted(pairs["resource"].unique()))}
    return every.assign(row=every["resource"].map(rows), beside=beside)


def draw_pipeline(ax: Axes, drawn: pd.DataFrame, window_s: tuple[float, float]) -> None:
    """Draw the cells of a time window, coloured by kind; row r is centred on y = r."""
    start, end = window_s
    seen = drawn[(drawn["start_s"] < end) & (drawn["end_s"] > start)]
    for kind, colour in KINDS.items():
        mine = seen[(seen["kind"] == kind) & (seen["end_s"] > seen["start_s"])]
        if (drawn["kind"] == kind).any():
            label, edge = _LABELS.get(kind, kind), 0.0 if kind == "transfer" else 0.25
            # One outline for all cells of a kind: thousands of separate ones would make the page large.
            outline = Path.make_compound_path_from_polys(_corners(mine, window_s))
            ax.add_patch(PathPatch(outline, facecolor=colour, edgecolor="white", linewidth=edge, label=label))
    ax.set_xlim(start, end)
    ax.set_ylim(drawn["row"].max() + 0.6, -0.6)


def _corners(mine: pd.DataFrame, window_s: tuple[float, float]) -> NDArray[np.float64]:
    """Corners of cells, clipped to a time window, (cells, 4, 2)."""
    left, right = (mine[end].to_numpy(float).clip(*window_s) for end in ("start_s", "end_s"))
    top, bottom = (
        mine["row"].to_numpy(float) + np.where(mine["beside"], beside, work)
        for work, beside in zip(_PASS, _BESIDE, strict=True)
    )
    across, down = np.stack([left, right, right, left], axis=1), np.stack([top, top, bottom, bottom], axis=1)
    return np.stack([across, down], axis=2)


def draw_numbers(
    ax: Axes, drawn: pd.DataFrame, window_s: tuple[float, float], width_in: float, row_in: float
) -> None:
    """Write microbatch numbers, from 1, into the passes of a window that are wide enough.

    The window is drawn `width_in` inches wide, each row `row_in` inches high.
    """
    start, end = window_s
    if row_in * 72 * (_PASS[1] - _PASS[0]) < _POINTS_HIGH:
        return
    passes = drawn[drawn["kind"].isin(MICROBATCH_JOBS) & ~drawn["beside"]]
    left = passes["start_s"].to_numpy(float).clip(start, end)
    right = passes["end_s"].to_numpy(float).clip(start, end)
    numbers = (passes["microbatch"] + 1).astype(str)
    needed = numbers.str.len().to_numpy(float) * _POINTS_PER_DIGIT + _POINTS_AROUND
    wide = (right - left) / (end - start) * width_in * 72 >= needed
    places = zip((left + right) / 2, passes["row"].to_numpy(float), strict=True)
    for fits, (x, row), number, kind in zip(wide, places, numbers, passes["kind"], strict=True):
        if fits:
            ax.text(
                x, row + sum(_PASS) / 2, number, fontsize=FONT, ha="center", va="center_baseline",
                color=INK if kind == "recompute" else "white",
            )  # fmt: skip


def draw_memory(ax: Axes, held: Mapping[int, Profile], unit_bytes: float) -> None:
    """Draw the memory of a device of each stage over time, in units of `unit_bytes`."""
    for (stage, (time_s, held_bytes)), colour in zip(held.items(), _LINES, strict=False):
        ax.step(time_s, held_bytes / unit_bytes, where="post", lw=1, color=colour, label=f"stage {stage}")
    ax.set_ylim(0)
    ax.grid(axis="y")
