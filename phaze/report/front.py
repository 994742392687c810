"""The section on the Pareto front: what more area gives, and what a joule buys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from phaze.base.units import UM2_PER_MM2
from phaze.report.document import Block, Cell, Chart, Section, Sheet, sheet_of
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.style import AMBER, BLUE, GREY, RED, SILVER, TEAL, legend_above, panels
from phaze.report.winners import COMMON
from phaze.report.words import area
from phaze.tables.columns import layout_of

Draw = Callable[[Axes, pd.DataFrame, pd.DataFrame], None]
"""Draws one model on axes: its members at all area limits, and its results on other accelerators."""
OBJECTIVES = {
    "throughput": "throughput",
    "throughput_per_area": "throughput per area",
    "energy": "energy per sample",
}


def front(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on throughput, area and energy of the whole space."""
    fronts = findings.fronts
    if fronts.empty:
        return
    largest = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    several = fronts["area_limit_um2"].nunique() > 1
    designs, results = [inputs.study.architectures.baseline, "phaze-common", COMMON], findings.results
    others = results[results["design"].isin(designs) & (results["status"] == "placed")]
    blocks: list[Block] = [
        Chart(
            "front-area",
            "Best throughput against area limit",
            "The line is exact for every area limit at once, within the space of the largest. Dotted: the "
            "limits of the study; dots are the best of the spaces that smaller limits have."
            if several
            else "The line is exact for every area limit at once. Dotted: the limit of the study.",
            partial(_panels, fronts, others, _draw_area),
        ),
        Chart(
            "front-energy",
            "Throughput and energy per sample",
            "Grey: members of the front of time, area and energy. Blue: no other is better in throughput, "
            "throughput per area and energy per sample.",
            partial(_panels, fronts, others, _draw_energy),
        ),
        _members_sheet(
            "The best of the whole space by every objective",
            "objective",
            [
                (row, OBJECTIVES[flag])
                for _, members in largest.groupby("model", sort=False)
                for flag in OBJECTIVES
                for _, row in members[members[flag]].iterrows()
            ],
        ),
    ]
    if several:
        ordered = fronts[fronts["throughput"]].sort_values("area_limit_um2", ascending=False, kind="stable")
        blocks.append(
            _members_sheet(
                "The best throughput within every area limit, as a study of that limit finds it",
                "area limit",
                [
                    (row, area(row["area_limit_um2"]))
                    for model in dict.fromkeys(fronts["model"])
                    for _, row in ordered[ordered["model"] == model].iterrows()
                ],
            )
        )
    about = (
        "Every architecture, TMP width, microbatch, HBM size and recomputation that no other beats in time "
        f"per batch, area and energy per sample: {len(largest):,} in all, exact over the whole space."
    )
    yield Section("front", "Throughput, area and energy", about, tuple(blocks))


def _slices(row: pd.Series) -> str:
    return f"{layout_of(row).tp}, {layout_of(row).microbatch}"


def _members_sheet(caption: str, what: str, members: list[tuple[pd.Series, str]]) -> Sheet:
    """Return members of fronts by model, each with what it is the best of."""
    rows = pd.DataFrame([row.to_dict() | {"of": of} for row, of in members])
    again = rows["model"].duplicated()
    columns: dict[str, Cell] = {
        "workload": "{heading}", what: "{of}", "accelerator": "{architecture}", "area": "{area_um2:area}",
        "samples/s": "{samples_per_s:digits}", "samples/s/mm²": "{samples_per_s_per_mm2:digits}",
        "energy per sample": "{joules_per_sample:J}", "HBM": "{hbm_gib:g} GiB, {recompute:storing}",
        "t, b": _slices,
    }  # fmt: skip
    return sheet_of(caption, rows.assign(heading=rows["model"].mask(again, "")), columns, 3, source="fronts")


def _panels(fronts: pd.DataFrame, others: pd.DataFrame, draw: Draw) -> Figure:
    """Draw one panel a model."""
    models = list(dict.fromkeys(fronts["model"]))
    figure, every = panels(len(models), min(4, len(models)), 0.7, 1.85)
    for ax, model in zip(every, models, strict=True):
        draw(ax, fronts[fronts["model"] == model], others[others["model"] == model])
        ax.set_title(model)
        ax.grid()
        for axis in (ax.xaxis, ax.yaxis):
            _tick(axis)
    every[0].set_ylabel("samples/s")
    legend_above(figure, every[0])
    return figure


def _tick(axis: Axis) -> None:
    """Give a logarithmic axis as many ticks as have room for their labels."""
    low, high = axis.get_view_interval()
    if high < 100.0 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())


def _draw_area(ax: Axes, fronts: pd.DataFrame, others: pd.DataFrame) -> None:
    largest = fronts["area_limit_um2"].max()
    curve = curve_of(fronts[fronts["area_limit_um2"] == largest])
    ends = np.append(curve["area_um2"], largest) / UM2_PER_MM2
    best = np.append(curve["samples_per_s"], curve["samples_per_s"].max())
    ax.step(ends, best, where="post", color=BLUE, lw=1.4, label="best of every area limit")
    smaller = fronts[fronts["throughput"] & (fronts["area_limit_um2"] < largest)]
    if len(smaller):
        at = smaller["area_limit_um2"] / UM2_PER_MM2
        ax.plot(at, smaller["samples_per_s"], "o", color=TEAL, ms=4, label="best of a smaller limit")
    for limit in fronts["area_limit_um2"].unique():
        ax.axvline(limit / UM2_PER_MM2, color=GREY, lw=0.8, ls=":")
    _draw_others(ax, others, others["area_um2"] / UM2_PER_MM2)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("area, mm²")


def curve_of(front: pd.DataFrame) -> pd.DataFrame:
    """Return the members of one front that are faster than every smaller one, by area."""
    rows = front.sort_values(["area_um2", "samples_per_s"], ascending=[True, False])
    before = rows["samples_per_s"].cummax().shift(fill_value=0.0)
    curve: pd.DataFrame = rows[rows["samples_per_s"] > before]
    return curve


def _draw_energy(ax: Axes, fronts: pd.DataFrame, others: pd.DataFrame) -> None:
    rows = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    best = rows[rows["objectives"]]
    ax.plot(
        rows["joules_per_sample"], rows["samples_per_s"], "o", color=SILVER, ms=3, label="front with area"
    )
    ax.plot(best["joules_per_sample"], best["samples_per_s"], "o", color=BLUE, ms=4, label="objectives")
    _draw_others(ax, others, others["joules_per_sample"])
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("J/sample")


def _draw_others(ax: Axes, others: pd.DataFrame, at: pd.Series) -> None:
    looks = zip((RED, AMBER, GREY), "sD^", others.groupby("design"), strict=False)
    for colour, marker, (design, rows) in looks:
        ax.plot(at[rows.index], rows["samples_per_s"], marker, color=colour, ms=5, label=str(design))
