"""Charts that compare planners: throughput over the best, and time by number of devices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from phaze.report import style
from phaze.report.vega import coloured, panels
from phaze.spec.names import Planner

PLANNER_NAMES: dict[Planner, str] = {
    "piper": "Piper",
    "no-dp": "no DP",
    "no-tp": "no TP",
    "no-ar": "no AR",
    "equi": "equi",
    "equi-no-tp": "equi, no TP",
}
"""Names of the planners in the paper."""
PANEL = ("blocks", "memory_gib", "microbatches")
"""Key columns of a panel: number of layers (if repeated), memory and N."""
GROUP = ["case", "blocks", "memory_gib", "microbatches", "mode"]
"""Columns that are constant within a panel."""
_COLOURS: dict[str, str] = {
    "piper": style.BLUE, "no-dp": style.RED, "no-tp": style.TEAL, "no-ar": style.PURPLE,
    "equi": style.AMBER, "equi-no-tp": style.SAND,
}  # fmt: skip


def throughputs(cases: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw Figure 1: throughput over the best against devices, one panel per memory and N."""
    table = _named(cases.assign(relative=relative(cases)), "relative")
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(
            alt.X("devices:O", title="devices", axis=alt.Axis(labelAngle=0)),
            alt.Y("relative:Q", title="throughput over best"),
            alt.XOffset("planner:N", scale=alt.Scale(domain=[*_looks(table)])),
            coloured("planner", _looks(table)),
            tooltip=["planner:N", "devices:Q", alt.Tooltip("relative:Q", format=".4~f")],
        )
    )
    return panels(table, "panel", bars, columns=2)


def curves(table: pd.DataFrame, scale_s: float, *, every_k: bool) -> alt.TopLevelMixin:
    """Draw Figure 2: time per sample against devices, one panel per memory and N.

    Curves are steps with `every_k`; otherwise dots mark the plans. They go on to the most devices.
    """
    keys = [*PANEL, "planner"]
    most = table.drop_duplicates(keys)[[*keys, "most_devices"]].rename(columns={"most_devices": "devices"})
    last = table.groupby(keys, as_index=False)["time_per_sample"].min().merge(most)
    rows = pd.concat([table, last]).sort_values("devices", kind="stable")
    rows = _named(rows.assign(seconds=rows["time_per_sample"] * scale_s), "seconds", "microbatches")
    scale = alt.Scale(type="log", base=2, nice=False)
    devices = partial(alt.X, title="devices k; dashed: k = N", scale=scale)
    lines = (
        alt.Chart()
        .mark_line(interpolate="step-after" if every_k else "linear", point=not every_k)
        .encode(
            devices("devices:Q"),
            alt.Y("seconds:Q", title="time per sample, s", scale=alt.Scale(type="log", nice=False)),
            coloured("planner", _looks(rows)),
            tooltip=["planner:N", "devices:Q", alt.Tooltip("seconds:Q", format=".4~g")],
        )
    )
    many = alt.Chart().mark_rule(strokeDash=[4, 3]).transform_aggregate(many="max(microbatches)")
    layers = lines, many.encode(devices("many:Q"))
    return panels(rows, "panel", *layers, height=260, columns=2, own="xy")


def _named(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Rows with the titles of their panels, in order, and the names of their planners."""
    ordered = pd.concat([some.assign(panel=panel_name(panel)) for panel, some in by_values(rows, *PANEL)])
    named = ordered.assign(planner=ordered["planner"].map(PLANNER_NAMES))
    return named[["panel", "planner", "devices", *columns]]


def _looks(rows: pd.DataFrame) -> dict[str, str]:
    """Colours of the planners of the rows, by name."""
    named = {name: _COLOURS[planner] for planner, name in PLANNER_NAMES.items()}
    return {name: colour for name, colour in named.items() if (rows["planner"] == name).any()}


assert set(_COLOURS) == set(PLANNER_NAMES)


def panel_name(values: tuple[float, ...]) -> str:
    """Title of a panel."""
    blocks, memory_gib, microbatches = values
    layers = f"{blocks:.0f} layers, " if blocks else ""
    return f"{layers}{memory_gib:g} GB a device, N = {microbatches:.0f}"


def relative(cases: pd.DataFrame) -> pd.Series:
    """Throughput of each row over the best on the same cluster; 0 without a plan."""
    best = cases.groupby([*GROUP, "devices"])["time_per_sample"].transform("min")
    share = best / cases["time_per_sample"]
    return share.where(np.isfinite(cases["time_per_sample"]), 0.0)


def by_values(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[float, ...], pd.DataFrame]]:
    """Yield the rows of a frame grouped by the values of some columns, in ascending order."""
    ordered = frame[list(columns)].drop_duplicates().sort_values(list(columns))
    for values in ordered.to_numpy(dtype=float).tolist():
        same = (frame[list(columns)] == values).all(axis=1)
        yield tuple(values), frame[same]
