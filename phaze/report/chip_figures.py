"""Charts of a choice of chips: step time against area of all designs, and the best design by its sizes."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from phaze.pages.style import AMBER, BLUE, SILVER
from phaze.pages.vega import WIDTH, coloured

STEPS = 400
"""Number of places along each axis that points can have: designs that share one are drawn once."""
LOOKS = {"lower bound": SILVER, "plan": BLUE, "chosen": AMBER}
"""Colours of the points, by what is known of a design."""
ROW = 20
"""Height in pixels of a row of the map."""


def front(designs: pd.DataFrame, chosen: str) -> alt.TopLevelMixin:
    """Draw step time against area of all designs, with the fronts of the plans and of the lower bounds.

    Columns: label, area_mm2, time (NaN without a plan) and time_bound (finite), both relative to the best.
    """
    searched = designs["time"].notna()
    kinds = np.where(designs["label"] == chosen, "chosen", np.where(searched, "plan", "lower bound"))
    rows = designs.assign(kind=kinds, shown=designs["time"].fillna(designs["time_bound"]))
    axes = {"area_mm2": rows["area_mm2"], "shown": np.log(rows["shown"])}
    places = {
        name: np.round(STEPS * (axis - axis.min()) / max(np.ptp(axis), 1e-9)) for name, axis in axes.items()
    }
    points = rows.assign(**{f"{name}_place": place for name, place in places.items()})
    points = points.drop_duplicates(["kind", "area_mm2_place", "shown_place"])
    scales = alt.Scale(zero=False, padding=12), alt.Scale(type="log", nice=False, padding=12)
    x = alt.X("area_mm2:Q", title="area, mm²", scale=scales[0])
    y = alt.Y("shown:Q", title="step time over best", scale=scales[1])
    lines = [
        alt.Chart(_front(rows, name)).mark_line(interpolate="step-after", color=LOOKS[kind]).encode(x, y)
        for name, kind in (("time_bound", "lower bound"), ("time", "plan"))
    ]
    marks = alt.Chart(points[["label", "kind", "area_mm2", "shown"]]).mark_point(filled=True, opacity=1)
    tips = ["label:N", "kind:N", *(alt.Tooltip(f"{of}:Q", format=".4~g") for of in ("area_mm2", "shown"))]
    sizes = alt.Size("kind:O", scale=alt.Scale(domain=[*LOOKS], range=[14, 50, 130]))
    order = alt.Order("kind:N", sort="descending")
    drawn = marks.encode(x, y, coloured("kind", LOOKS), sizes, order, tooltip=tips)
    return alt.layer(*lines, drawn).properties(width=WIDTH, height=320)


def _front(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Points at which a larger area first allows a shorter time."""
    ordered = rows.dropna(subset=name).sort_values(["area_mm2", name])
    least = ordered[name].cummin()
    shorter = ordered[least < least.shift(fill_value=np.inf)]
    return shorter[["area_mm2"]].assign(shown=shorter[name])


def by_sizes(cells: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the least score by array shape and buffer; columns array, glb_mib, least, what and name."""
    arrays, buffers = [*dict.fromkeys(cells["array"])], sorted({*cells["glb_mib"]}, key=float)
    # Half of a percent is no range for a scale.
    ends = [cells["least"].min(), max(cells["least"].max(), 1.05 * cells["least"].min())]
    marks = alt.Chart(cells).mark_rect()
    chart: alt.Chart = marks.encode(
        alt.X("glb_mib:O", title="global buffer, MiB", sort=buffers, axis=alt.Axis(labelAngle=0)),
        alt.Y("array:O", title="array", sort=arrays),
        alt.Color(
            "least:Q",
            title="over best",
            scale=alt.Scale(type="log", scheme="viridis", reverse=True, nice=False, domain=ends),
            legend=alt.Legend(format=".3~g"),
        ),
        tooltip=["array:N", "glb_mib:O", alt.Tooltip("least:Q", format=".4~g"), "what:N", "name:N"],
    ).properties(width=WIDTH, height=ROW * len(arrays))
    return chart
