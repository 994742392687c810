"""Charts of pipelines over time: the jobs of stages, and the memory of their devices.

Jobs are rows with resource, kind, stage, microbatch, start_s and end_s, as in table tiled_jobs. A transfer is
a job of the resource that receives the tensor. A resource with forward passes is a worker, and a row of the
drawing. Jobs concurrent with its passes (transfers and jobs of ports) are thin lines below them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from phaze.base.units import GIB
from phaze.pages.charts import MOST_PX, ROW
from phaze.pages.style import AMBER, BLUE, GREY, HUES, PURPLE, RED, SAND, SKY, TEAL
from phaze.pages.vega import WIDTH, coloured

Profile = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Memory over time: times in s, and the bytes in use from each time on."""
Window = tuple[float, float]

KINDS = {
    "forward": BLUE, "recompute": SKY, "backward": TEAL, "input gradient": TEAL, "weight gradient": GREY,
    "update": PURPLE, "gather": SAND, "synchronise": RED, "transfer": AMBER,
}  # fmt: skip
MICROBATCH_JOBS = ("forward", "recompute", "backward", "input gradient", "weight gradient")
"""Kinds of jobs that are passes of a microbatch."""
MOST_LINES = len(HUES)
"""Maximum number of stages whose memory is drawn: one per colour."""
_PASS, _BESIDE = (0.06, 0.66), (0.7, 0.94)
"""Vertical extent of passes, and of jobs concurrent with them, within a row."""
MOMENTS = 240
"""Maximum number of points drawn of a memory profile: the peak of each interval."""
CLOSEST = 10
"""Maximum zoom, as a power of 2."""
_LEVELS = "pow(2, zoom)"


def cells(jobs: pd.DataFrame) -> pd.DataFrame:
    """Jobs with the `row` of their worker, from 0, and with `beside`: True if concurrent with passes."""
    pairs = jobs.loc[jobs["kind"] == "forward", ["stage", "resource"]].drop_duplicates()
    of_workers = jobs["resource"].isin(pairs["resource"])
    columns = ["resource", "kind", "stage", "microbatch", "start_s", "end_s"]
    # resources without passes, such as ports, serve a stage: their jobs are in the rows of all its replicas
    ports = jobs.loc[~of_workers, columns[1:]].merge(pairs, on="stage")[columns]
    placed = jobs.loc[of_workers, columns]
    placed = pd.concat([placed, ports], ignore_index=True) if len(ports) else placed
    beside = (placed["kind"] == "transfer").to_numpy() | (np.arange(len(placed)) >= int(of_workers.sum()))
    rows = {resource: row for row, resource in enumerate(sorted(pairs["resource"].unique()))}
    return placed.assign(row=placed["resource"].map(rows), beside=beside)


def pipeline(
    drawn: pd.DataFrame, windows: Sequence[Window], what: str, *, end_s: float | None = None
) -> alt.Chart:
    """Draw the jobs inside time windows as cells, coloured by kind, one row per worker.

    With `end_s`, the end of all windows, sliders choose the zoom and its place.
    """
    table = _corners(drawn, windows)
    rows, kinds = int(table["row"].max()) + 1, [kind for kind in KINDS if (drawn["kind"] == kind).any()]
    stages = drawn.groupby(drawn["row"].astype(int))["stage"].min()
    named = ", ".join(f"{row}: '{stage}'" for row, stage in stages.items())
    sliders = () if end_s is None else _zoom_sliders(windows[0], end_s)
    scale = alt.Scale(domain=[windows[0][0], windows[-1][1]], nice=False, zero=False)
    # a label is at the middle of its row; about 16 labels fit
    middles = [row + 0.5 for row in stages.index[:: max(1, rows // 16)]]
    labels = f"({{{named}}})[floor(datum.value)]"
    axis = alt.Axis(values=middles, grid=False, labelExpr=labels, ticks=False)
    marks = alt.Chart(table, width=WIDTH, height=max(60, min(ROW * rows, MOST_PX))).mark_rect(clip=True)
    chart: alt.Chart = marks.encode(
        alt.X("start:Q", title=what, scale=scale if end_s is None else _zoomed_scale(end_s)),
        alt.X2("end"),
        alt.Y("top:Q", title="stage", scale=alt.Scale(domain=[rows, 0], nice=False), axis=axis),
        alt.Y2("low"),
        coloured("kind", {kind: KINDS[kind] for kind in kinds}),
        tooltip=[
            "kind:N", "stage:Q", "microbatch:Q",
            alt.Tooltip("start:Q", title="start, s"), alt.Tooltip("end:Q", title="end, s"),
        ],
    ).add_params(*sliders)  # fmt: skip
    return chart


def _corners(drawn: pd.DataFrame, windows: Sequence[Window]) -> pd.DataFrame:
    """Corners of the cells to draw, for the jobs of nonzero duration inside the windows."""
    inside = [(drawn["start_s"] < end) & (drawn["end_s"] > start) for start, end in windows]
    seen = drawn[np.any(inside, axis=0) & (drawn["end_s"] > drawn["start_s"])]
    top, low = (
        seen["row"].astype(int) + np.where(seen["beside"], beside, work)
        for work, beside in zip(_PASS, _BESIDE, strict=True)
    )
    seen = seen.rename(columns={"start_s": "start", "end_s": "end"})
    table: pd.DataFrame = seen.assign(
        row=seen["row"].astype(int), microbatch=seen["microbatch"] + 1, top=top, low=low
    )
    return table[["stage", "row", "kind", "microbatch", "start", "end", "top", "low"]]


def _zoomed_scale(end_s: float) -> alt.Scale:
    """Time scale for the part of the time that the sliders select."""
    # the drawn part, end / 2^zoom long, goes from the beginning to the end as `at` goes from 0 to 1
    start = f"at * {end_s:.9g} * (1 - 1 / {_LEVELS})"
    end = f"{start} + {end_s:.9g} / {_LEVELS}"
    return alt.Scale(domainMin=alt.ExprRef(start), domainMax=alt.ExprRef(end), nice=False, zero=False)


def _zoom_sliders(first: Window, end_s: float) -> tuple[alt.Parameter, alt.Parameter]:
    """Sliders for the zoom level, which initially shows the first window, and for the position."""
    level = round(min(log2(end_s / (first[1] - first[0])), CLOSEST), 2)
    zoom = alt.param("zoom", value=level, bind=_slider("zoom", CLOSEST))
    return zoom, alt.param("at", value=0, bind=_slider("place", 1))


def _slider(name: str, most: float) -> alt.BindRange:
    return alt.binding_range(min=0, max=most, step=0.01, name=f"{name} ")


def memory(
    profiles: Mapping[int, Profile],
    end_s: float,
    what: tuple[str, str],
    *,
    unit_bytes: float = GIB,
    limits: Mapping[str, float] | None = None,
) -> alt.LayerChart:
    """Draw each stage's memory per device over time, with limits; `what` holds both axis titles."""
    parts = [_thinned(*profile, end_s, unit_bytes).assign(stage=stage) for stage, profile in profiles.items()]
    marks = alt.Chart(pd.concat(parts)).mark_line(interpolate="step-after", strokeWidth=1.4)
    lines = marks.encode(
        alt.X("s:Q", title=what[0], scale=alt.Scale(domain=[0, end_s], nice=False)),
        alt.Y("held:Q", title=what[1], scale=alt.Scale(domainMin=0)),
        alt.Color("stage:N", scale=alt.Scale(range=HUES), legend=alt.Legend(title="stage")),
        tooltip=["stage:N", alt.Tooltip("s:Q", format=".4~g"), alt.Tooltip("held:Q", format=".4~g")],
    )
    limits = limits or {}
    table = pd.DataFrame({"limit": list(limits), "held": list(limits.values())})
    dashed = alt.Chart(table).mark_rule(strokeDash=[4, 3], strokeWidth=2, color=RED)
    dashed = dashed.encode(alt.Y("held:Q", title=what[1]), tooltip=["limit:N", "held:Q"])
    both = alt.LayerChart(layer=[lines, dashed] if limits else [lines])
    return both.properties(width=WIDTH, height=240)


def _thinned(
    time_s: NDArray[np.float64], held_bytes: NDArray[np.float64], end_s: float, unit_bytes: float
) -> pd.DataFrame:
    """Memory over time, reduced to the peak in each of `MOMENTS` intervals if it has more points."""
    table = pd.DataFrame({"s": time_s, "held": held_bytes / unit_bytes})
    if len(table) > MOMENTS:
        interval = (table["s"] / end_s * MOMENTS).astype(int)
        # the first and last points keep the line as long as the pipeline
        drawn = {*table.groupby(interval)["held"].idxmax(), 0, len(table) - 1}
        table = table.loc[sorted(drawn)]
    return table
