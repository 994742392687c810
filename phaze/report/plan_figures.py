"""Charts of plans: time and memory by part, other layouts, bandwidths between devices of mapped stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.pages.charts import ROW, bars, stacked
from phaze.pages.style import AMBER, BLUE, GREY, HUES, TEAL
from phaze.pages.vega import WIDTH, panels, rule
from phaze.spec.training_plan import NearRun, RankedPlan, RankMemory

SQUARE, MOST_CELLS = 220, 64
"""Height of a matrix in pixels, and its maximum number of rows."""
BAR, STEP = 11, 10
"""Height of a bar under a slider's label in pixels, and step of a slider in percent."""
METHOD_NAMES = {
    "cs-map": "CS map",
    "p2p-map": "p2p map",
    "p2p": "search, messages",
    "allreduce": "search, all-reduce",
    "exact": "search, both",
    "local-search": "local search",
}


def by_part(values: Mapping[str, float], what: str, form: str) -> alt.TopLevelMixin:
    """Draw a horizontal bar per part; `form` is the format of the value next to the bar."""
    return bars(pd.DataFrame({what: values}), what, format_value=f"{{:{form}}}".format)


def memory_by_rank(memory: Sequence[RankMemory], hbm_gib: float) -> alt.TopLevelMixin:
    """Draw the memory of every pipeline rank, stacked by part, against the HBM capacity of a device."""
    parts = [
        {
            "weights and gradients": rank.weights_gib,
            "optimizer": rank.optimizer_gib,
            # activations_gib includes the microbatch at work
            "activations in flight": rank.activations_gib - rank.work_gib,
            "microbatch at work": rank.work_gib,
            **rank.parts_gib,
        }
        for rank in memory
    ]
    looks = {name: (name, colour) for name, colour in zip(parts[0], cycle(HUES), strict=False)}
    return stacked(pd.DataFrame(parts), looks, "GiB of a device", "pipeline rank", limit=hbm_gib)


def ranges(plans: Sequence[RankedPlan]) -> alt.TopLevelMixin:
    """Draw expected and prudent time of each ranked plan, with the 80 % interval of measured runs if any."""
    table = pd.DataFrame(
        [
            {"plan": rank, "kind": kind, "s": value, "low": plan.time_s_low, "high": plan.time_s_high}
            for rank, plan in enumerate(plans, start=1)
            for kind, value in (("expected", plan.time_s), ("prudent", plan.prudent_s))
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
        tooltip=["plan:O", "kind:N", *(alt.Tooltip(f"{of}:Q", format=".4~g") for of in ("s", "low", "high"))],
    )
    span = spans.encode(alt.X("low:Q", title="seconds a step", scale=scale), alt.X2("high"), row)
    layers = (span, points) if table["low"].notna().any() else (points,)
    return alt.layer(*layers).properties(width=WIDTH, height=ROW * len(plans))


def errors(runs: Sequence[NearRun]) -> alt.TopLevelMixin:
    """Draw the prediction error of measured runs by their distance from the plan."""
    table = pd.DataFrame(
        [{"run": f"{run.source} {run.label}", "distance": run.distance, "error": run.error} for run in runs]
    )
    zero = alt.Chart(pd.DataFrame({"error": [0.0]})).mark_rule().encode(y="error:Q")
    points = alt.Chart(table).mark_point(filled=True, size=90, opacity=1, color=BLUE).encode(
        alt.X("distance:Q", title="distance from the plan", scale=alt.Scale(domainMin=0)),
        alt.Y("error:Q", title="predicted over measured − 1", axis=alt.Axis(format="+.0%")),
        tooltip=["run:N", alt.Tooltip("distance:Q", format=".2f"), alt.Tooltip("error:Q", format="+.1%")],
    )  # fmt: skip
    return alt.layer(zero, points).properties(width=WIDTH, height=200)


def changed(table: pd.DataFrame, step_s: float) -> alt.TopLevelMixin:
    """Draw the time saved by a change of each resource; a slider per resource sets the change.

    Columns: resource, `percent` (change), `time_s` (infinite if no layout fits) and `plan` (the fastest).
    """
    resources = [*dict.fromkeys(table["resource"])]
    fits = np.isfinite(table["time_s"])
    labels = table["time_s"].map("{:.4g} s, ".format) + table["plan"]
    rows = table.assign(
        saved=(100 * (1 - table["time_s"] / step_s)).where(fits, 0.0),
        label=labels.where(fits, "none of these layouts fits"),
        slider=table["resource"].map(resources.index),
    )
    most = int(rows["percent"].max())
    sliders = [
        alt.param(f"change{i}", value=STEP, bind=alt.binding_range(min=-most, max=most, step=STEP, name=name))
        for i, name in enumerate(f"{resource}, % " for resource in resources)
    ]
    chosen = f"datum.percent == [{', '.join(str(slider.name) for slider in sliders)}][datum.slider]"
    # one scale for all positions of the sliders
    scale = alt.Scale(domain=[min(rows["saved"].min(), 0.0), max(rows["saved"].max(), 1.0)])
    base = alt.Chart(rows).transform_filter(chosen)
    row = alt.Y("resource:N", title=None, sort=resources)
    tips = ["resource:N", "percent:Q", alt.Tooltip("time_s:Q", format=".4~g"), "plan:N"]
    # a bar has its label above it, where no bar can meet it and narrow screens have room
    bar = base.mark_bar(color=TEAL, size=BAR, yOffset=BAR / 2).encode(
        alt.X("saved:Q", title="time saved, %", scale=scale), row, x2=alt.datum(0), tooltip=tips
    )
    label = base.mark_text(align="left", dx=4, dy=-BAR).encode(row, x=alt.value(0), text="label:N")
    height = 3 * BAR * len(resources)
    return alt.layer(bar, rule("x", 0.0), label).properties(width=WIDTH, height=height).add_params(*sliders)


def front(table: pd.DataFrame, value: str, title: str) -> alt.TopLevelMixin:
    """Draw a quantity against the number of devices; points on the Pareto front are filled.

    Columns: devices, `front` (bool) and `value`.
    """
    rows = table.dropna(subset=value)
    counts, scale = [*map(int, rows["devices"])], alt.Scale(type="log", base=2, padding=16)
    base = alt.Chart(rows).encode(
        alt.X("devices:Q", scale=scale, axis=alt.Axis(values=counts, format=",d")),
        alt.Y(f"{value}:Q", title=title),
        tooltip=["devices:Q", alt.Tooltip(f"{value}:Q", title=title, format=",.4~g"), "front:N"],
    )
    points = base.mark_point(size=90, opacity=1, color=BLUE, strokeWidth=2)
    fills = alt.Scale(domain=[True, False], range=[BLUE, "transparent"])
    filled = alt.Fill("front:N", legend=None, scale=fills)
    return alt.layer(base.mark_line(color=GREY), points.encode(filled)).properties(width=WIDTH, height=220)


def mappings(network: DeviceNetwork, devices: pd.DataFrame, width: int | None = None) -> alt.TopLevelMixin:
    """Draw Figure 6: the bandwidths between devices, sorted by replica and stage, for each mapping method.

    Lines separate the replicas. `width` is that of a panel of a file, in pixels.
    """
    ordered = devices.sort_values(["replica", "stage"])
    matrices = []
    for method in devices["way"].unique():
        order = ordered.loc[ordered["way"] == method, "device"].to_numpy()
        bandwidths = network.bandwidth_bytes_per_s[np.ix_(order, order)] / GIB
        matrices.append(_runs(bandwidths).assign(panel=METHOD_NAMES[method]))
    sizes = ordered[ordered["way"] == ordered["way"].iloc[0]].groupby("replica").size()
    lines = alt.Chart(pd.DataFrame({"first": sizes.cumsum()[:-1]})).mark_rule(color="white")
    layers = _cells("replica by replica"), lines.encode(x="first:Q"), lines.encode(y="first:Q")
    return panels(pd.concat(matrices), "panel", *layers, height=SQUARE, width=width, independent="xy")


def _cells(what: str) -> alt.Chart:
    """Chart layer with rectangles of constant bandwidth."""
    axis = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    marks = alt.Chart().mark_rect()
    chart: alt.Chart = marks.encode(
        alt.X("first:Q", title=what, axis=axis, scale=alt.Scale(nice=False)),
        alt.X2("last"),
        alt.Y("row:Q", title=None, axis=axis, scale=alt.Scale(nice=False, reverse=True)),
        alt.Y2("below"),
        alt.Color("bandwidth:Q", title="GiB/s", scale=alt.Scale(type="log", scheme="viridis")),
        tooltip=["first:Q", "row:Q", alt.Tooltip("bandwidth:Q", title="GiB/s", format=".3~g")],
    )
    return chart


def _runs(values: Floats) -> pd.DataFrame:
    """Rectangles of constant bandwidth per row, without the diagonal; large matrices use block means."""
    # At most MOST_CELLS blocks in a row. The mean of a block leaves out the diagonal, because a device does
    # not send to itself.
    edges = np.append(np.arange(0, len(values), -(-len(values) // MOST_CELLS)), len(values))
    others = ~np.eye(len(values), dtype=bool)
    sums, counts = (
        np.add.reduceat(np.add.reduceat(matrix, edges[:-1], axis=0), edges[:-1], axis=1)
        for matrix in (np.where(others, values, 0.0), others.astype(np.float64))
    )
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    begins = np.ones(means.shape, dtype=bool)
    begins[:, 1:] = means[:, 1:] != means[:, :-1]
    row, first = np.nonzero(begins)
    # a rectangle ends where the next one of its row begins, or at the end of the matrix
    last = np.where(np.append(row[1:], -1) == row, np.append(first[1:], 0), len(means))
    places = {"first": edges[first], "last": edges[last], "row": edges[row], "below": edges[row + 1]}
    return pd.DataFrame({**places, "bandwidth": means[row, first]}).dropna()
