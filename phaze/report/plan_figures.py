"""Charts of a plan of `phaze plan`: time and memory by part, and its rivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import altair as alt
import pandas as pd

from phaze.report.charts import ROW, bars, stacked
from phaze.report.style import AMBER, BLUE, GREY, HUES, TEAL
from phaze.report.vega import WIDTH
from phaze.spec.training_plan import NearRun, RankedPlan, RankMemory, WhatIf


def by_part(values: Mapping[str, float], what: str, form: str) -> alt.TopLevelMixin:
    """Draw a horizontal bar per name; `form` is the format of the value behind the bar."""
    return bars(pd.DataFrame({what: values}), what, said=f"{{:{form}}}".format)


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
    looks = {name: (name, colour) for name, colour in zip(parts[0], cycle(HUES), strict=False)}
    return stacked(pd.DataFrame(parts), looks, "GiB of a device", "pipeline rank", limit=hbm_gib)


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
    what = "time saved, %"
    values = {one.change: 100 * (1 - one.time_s / own_s) for one in ways}
    return bars(pd.DataFrame({what: values}), what, {what: TEAL}, said="{:.1f} %".format)


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
