"""Charts of a plan of `phaze plan`: time and memory by part, its pipeline over time, and its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.units import GIB
from phaze.report.over_time import KINDS
from phaze.report.pipeline_picture import Shown
from phaze.report.style import AMBER, BLUE, GREY, RED, TEAL, wrapped
from phaze.report.vega import BY_LINE, WIDTH
from phaze.spec.training_plan import NearRun, RankedPlan, RankMemory, WhatIf

ROW, TALL = 22, 34
"""Height of a bar in pixels, and of one whose name takes two lines."""
LETTERS = 18
"""Letters of a name on a line."""
AROUND = 1.45
"""Width of an axis relative to its longest bar, so that the text behind the bar has room."""
MOMENTS = 240
"""Maximum number of drawn steps of a memory profile: of each interval the one with peak memory."""
CLOSEST = 10
"""Limit of the zoom: 2 to this power."""
DIGITS = 5
"""Significant digits of the drawn times."""


def bars(values: Mapping[str, float], title: str, text: str, colour: str = BLUE) -> alt.TopLevelMixin:
    """Draw a horizontal bar per name; `text` is the format of the value behind the bar."""
    names = [wrapped(name, LETTERS) for name in values]
    table = pd.DataFrame({"name": names, "value": list(values.values())})
    most, least = max([*values.values(), 0.0]), min([*values.values(), 0.0])
    room = (AROUND - 1) * (most - least)
    scale = alt.Scale(domain=[least - room * (least < 0), (most + room) or 1.0], nice=False)
    base = alt.Chart(table).encode(
        alt.X(
            "value:Q", title=title, scale=scale, axis=alt.Axis(format="%" if text.endswith("%") else ",~g")
        ),
        alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelExpr=BY_LINE)),
        tooltip=[alt.Tooltip("name:N", title=" "), alt.Tooltip("value:Q", title=title, format=text)],
    )
    longer = base.transform_filter(alt.datum.value >= 0).mark_text(align="left", dx=5)
    shorter = base.transform_filter(alt.datum.value < 0).mark_text(align="right", dx=-5)
    said = [one.encode(text=alt.Text("value:Q", format=text)) for one in (longer, shorter)]
    row = TALL if any("\n" in name for name in names) else ROW
    return alt.layer(base.mark_bar(color=colour), *said).properties(width=WIDTH, height=row * len(table))


def memory_by_rank(memory: Sequence[RankMemory], hbm_gib: float) -> alt.TopLevelMixin:
    """Draw the memory of every pipeline rank, stacked by part, against the HBM of a device."""
    parts = [
        {
            "weights and gradients": one.weights_gib,
            "optimizer": one.optimizer_gib,
            "activations in flight": one.activations_gib - one.work_gib,
            "microbatch at work": one.work_gib,
            **one.parts_gib,
        }
        for one in memory
    ]
    names = list(parts[0])
    table = pd.DataFrame(
        [
            {"rank": rank, "part": name, "order": order, "GiB": gib}
            for rank, one in enumerate(parts)
            for order, (name, gib) in enumerate(one.items())
            if gib > 0
        ]
    )
    stacked = (
        alt.Chart(table)
        .mark_bar()
        .encode(
            alt.X("GiB:Q", title="GiB of a device", scale=alt.Scale(domainMax=1.05 * hbm_gib, nice=False)),
            alt.Y("rank:O", title="pipeline rank"),
            alt.Color(
                "part:N", sort=names, scale=alt.Scale(domain=[n for n in names if n in {*table["part"]}])
            ),
            order="order:Q",
            tooltip=["rank:O", "part:N", alt.Tooltip("GiB:Q", format=".3~f")],
        )
    )
    return alt.layer(stacked, _limit({"HBM": hbm_gib}, "x")).properties(width=WIDTH, height=ROW * len(memory))


def _limit(limits_gib: Mapping[str, float], axis: str) -> alt.Chart:
    """Dashed line at each limit of memory."""
    table = pd.DataFrame({"limit": list(limits_gib), "GiB": list(limits_gib.values())})
    place = alt.X("GiB:Q") if axis == "x" else alt.Y("GiB:Q")
    lines: alt.Chart = alt.Chart(table).mark_rule(strokeDash=[4, 3], strokeWidth=2, color=RED)
    return lines.encode(place, tooltip=[alt.Tooltip("limit:N"), alt.Tooltip("GiB:Q", format=".4~g")])


def memory_over_time(shown: Shown, limits_gib: Mapping[str, float]) -> alt.TopLevelMixin:
    """Draw the memory of tensors on a device of each stage over time, against limits."""
    table = pd.concat(
        [_thinned(*profile, shown.time_s).assign(stage=stage) for stage, profile in shown.lines.items()]
    )
    most = 1.03 * max(limits_gib.values())
    lines = (
        alt.Chart(table)
        .mark_line(interpolate="step-after", strokeWidth=1.4)
        .encode(
            alt.X("s:Q", title="seconds of a step", scale=alt.Scale(domain=[0, shown.time_s], nice=False)),
            alt.Y("GiB:Q", title="GiB of a device", scale=alt.Scale(domain=[0, most], nice=False)),
            alt.Color("stage:N", title="stage", legend=alt.Legend(title="stage")),
            tooltip=["stage:N", alt.Tooltip("s:Q", format=".4~g"), alt.Tooltip("GiB:Q", format=".4~g")],
        )
    )
    return alt.layer(lines, _limit(limits_gib, "y")).properties(width=WIDTH, height=240)


def _thinned(time_s: np.ndarray, held_bytes: np.ndarray, end_s: float) -> pd.DataFrame:
    """Memory over time with the peak of each of `MOMENTS` intervals, if there are more steps."""
    table = pd.DataFrame({"s": time_s, "GiB": held_bytes / GIB})
    if len(table) > MOMENTS:
        interval = (table["s"] / end_s * MOMENTS).astype(int)
        kept = {*table.groupby(interval)["GiB"].idxmax(), 0, len(table) - 1}
        table = table.loc[sorted(kept)]
    return table.map(_rounded)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def timeline(shown: Shown) -> alt.TopLevelMixin:
    """Draw the passes of every stage over time, with sliders for the zoom and its place."""
    passes = shown.drawn[shown.drawn["end_s"] > shown.drawn["start_s"]]
    inside = np.any(
        [(passes["start_s"] < end) & (passes["end_s"] > start) for start, end in shown.windows], axis=0
    )
    passes = passes[inside]
    table = pd.DataFrame(
        {
            "stage": passes["stage"],
            "row": passes["row"].astype(int),
            "kind": passes["kind"],
            "microbatch": passes["microbatch"] + 1,
            "start": passes["start_s"].map(_rounded),
            "end": passes["end_s"].map(_rounded),
            "top": passes["row"] + np.where(passes["beside"], 0.7, 0.06),
            "low": passes["row"] + np.where(passes["beside"], 0.94, 0.66),
        }
    )
    (begins, first), *_ = shown.windows
    whole, levels = shown.time_s, f"pow(2, zoom) * {1 / shown.time_s:.9g}"
    zoom = alt.param("zoom", value=_level(whole / (first - begins)), bind=_slider("zoom", CLOSEST))
    at = alt.param("at", value=0, bind=_slider("place", 1))
    start = f"at * ({whole:.9g} - 1 / ({levels}))"
    scale = alt.Scale(
        domainMin=alt.ExprRef(start), domainMax=alt.ExprRef(f"{start} + 1 / ({levels})"),
        nice=False, zero=False,
    )  # fmt: skip
    rows, kinds = int(table["row"].max()) + 1, [kind for kind in KINDS if kind in {*table["kind"]}]
    stages = passes.groupby(table["row"])["stage"].min()
    named = ", ".join(f"{row}: '{stage}'" for row, stage in stages.items())
    chart: alt.Chart = (
        alt.Chart(table, width=WIDTH, height=max(ROW * rows, 60))
        .mark_rect(clip=True)
        .encode(
            alt.X("start:Q", title="seconds of a step", scale=scale),
            alt.X2("end"),
            alt.Y(
                "top:Q", title="stage", scale=alt.Scale(domain=[rows, 0], nice=False),
                axis=alt.Axis(
                    values=[row + 0.5 for row in stages.index[:: max(1, rows // 16)]], grid=False,
                    labelExpr=f"({{{named}}})[floor(datum.value)]", ticks=False,
                ),
            ),
            alt.Y2("low"),
            alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=[KINDS[kind] for kind in kinds])),
            tooltip=[
                "kind:N", "stage:Q", "microbatch:Q",
                alt.Tooltip("start:Q", title="start, s"), alt.Tooltip("end:Q", title="end, s"),
            ],
        )
        .add_params(zoom, at)
    )  # fmt: skip
    return chart


def _level(times: float) -> float:
    """Slider position of a magnification."""
    return round(min(log2(times), CLOSEST), 2)


def _slider(name: str, most: float) -> alt.BindRange:
    return alt.binding_range(min=0, max=most, step=0.01, name=f"{name} ")


def ranges(plans: Sequence[RankedPlan]) -> alt.TopLevelMixin:
    """Draw expected and prudent time of each ranked plan, with the 80 % interval of measured runs if any."""
    table = pd.DataFrame(
        [
            {"plan": rank, "kind": kind, "s": value, "low": one.time_s_low, "high": one.time_s_high}
            for rank, one in enumerate(plans, start=1)
            for kind, value in (("expected", one.time_s), ("prudent", one.prudent_s))
            if value is not None
        ]
    )
    scale = alt.Scale(zero=False, padding=12)
    base = alt.Chart(table)
    row = alt.Y("plan:O", title="plan")
    spans = base.transform_filter(alt.datum.low > 0).mark_rule(strokeWidth=2, color=GREY)
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        alt.X("s:Q", title="seconds a step", scale=scale),
        row,
        alt.Color("kind:N", scale=alt.Scale(domain=["expected", "prudent"], range=[BLUE, AMBER])),
        tooltip=[
            "plan:O",
            "kind:N",
            *(alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("s", "low", "high")),
        ],
    )
    span = spans.encode(alt.X("low:Q", title="seconds a step", scale=scale), alt.X2("high"), row)
    layers = (span, points) if table["low"].notna().any() else (points,)
    return alt.layer(*layers).properties(width=WIDTH, height=ROW * len(plans))


def errors(runs: Sequence[NearRun]) -> alt.TopLevelMixin:
    """Draw the prediction error of measured runs by their distance from the plan."""
    table = pd.DataFrame(
        [{"run": f"{one.source} {one.label}", "distance": one.distance, "error": one.error} for one in runs]
    )
    zero = alt.Chart(pd.DataFrame({"error": [0.0]})).mark_rule().encode(y="error:Q")
    points = alt.Chart(table).mark_point(filled=True, size=90, opacity=1, color=BLUE).encode(
        alt.X("distance:Q", title="distance from the plan", scale=alt.Scale(domainMin=0)),
        alt.Y("error:Q", title="predicted over measured − 1", axis=alt.Axis(format="+.0%")),
        tooltip=["run:N", alt.Tooltip("distance:Q", format=".2f"), alt.Tooltip("error:Q", format="+.1%")],
    )  # fmt: skip
    return alt.layer(zero, points).properties(width=WIDTH, height=200)


def saved(ways: Sequence[WhatIf], own_s: float) -> alt.TopLevelMixin:
    """Draw the share of the step time that 10 % more of each resource saves."""
    return bars({one.change: 1 - one.time_s / own_s for one in ways}, "time saved", ".1%", TEAL)


def front(table: pd.DataFrame, value: str, title: str) -> alt.TopLevelMixin:
    """Draw a figure of every number of devices; those on the front are filled.

    Columns: devices, `front` (bool) and `value`.
    """
    rows = table.dropna(subset=value)
    counts = [int(devices) for devices in rows["devices"]]
    base = alt.Chart(rows).encode(
        alt.X(
            "devices:Q",
            scale=alt.Scale(type="log", base=2, padding=16),
            axis=alt.Axis(values=counts, format=",d"),
        ),
        alt.Y(f"{value}:Q", title=title),
        tooltip=["devices:Q", alt.Tooltip(f"{value}:Q", title=title, format=",.4~g"), "front:N"],
    )
    points = base.mark_point(size=90, opacity=1, color=BLUE, strokeWidth=2)
    filled = alt.Fill(
        "front:N", legend=None, scale=alt.Scale(domain=[True, False], range=[BLUE, "transparent"])
    )
    return alt.layer(base.mark_line(color=GREY), points.encode(filled)).properties(width=WIDTH, height=220)
