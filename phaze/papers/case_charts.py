"""Charts of the cases of `papers.cases`: planners on profiled inputs, and tiled accelerators.

Planners: throughput over the best, and time by number of devices. Tiled accelerators: throughput and
occupancy by split, pipelines over time, maps of links.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from phaze.pages import over_time, style
from phaze.pages.document import Chart
from phaze.pages.page_words import PageWords
from phaze.pages.tile_charts import heat
from phaze.pages.vega import coloured, panels
from phaze.pages.words import file_name
from phaze.spec.names import Planner

_PLANNERS: dict[Planner, tuple[str, str]] = {
    "piper": ("Piper", style.BLUE), "no-dp": ("no DP", style.RED), "no-tp": ("no TP", style.TEAL),
    "no-ar": ("no AR", style.PURPLE), "equi": ("equi", style.AMBER),
    "equi-no-tp": ("equi, no TP", style.SAND),
}  # fmt: skip
"""Name in the paper, and colour, of each planner."""
PLANNER_NAMES = {planner: name for planner, (name, _) in _PLANNERS.items()}
"""Names of the planners in the paper."""
PANEL = ("blocks", "memory_gib", "microbatches")
"""Key columns of a panel: number of layers (if repeated), memory and N."""
GROUP = ["case", "blocks", "memory_gib", "microbatches", "mode"]
"""Columns that are constant within a panel."""
LAYOUTS = {"line": "line", "s-shaped": "S", "own": "own"}
"""Display names of the placement of stages."""
_MAPPINGS = (
    ("line", "near", style.SKY), ("line", "far", style.SILVER), ("s-shaped", "near", style.BLUE),
    ("s-shaped", "far", style.AMBER), ("own", "near", style.TEAL), ("own", "far", style.SAND),
)  # fmt: skip


def throughputs(cases: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw Figure 1: throughput relative to the best against devices, one panel per memory size and N."""
    table = _with_titles(cases.assign(relative=relative(cases)), "relative")
    marks = alt.Chart().mark_bar()
    bars = marks.encode(
        alt.X("devices:O", title="devices", axis=alt.Axis(labelAngle=0)),
        alt.Y("relative:Q", title="throughput over best"),
        alt.XOffset("planner:N", scale=alt.Scale(domain=[*_looks(table)])),
        coloured("planner", _looks(table)),
        tooltip=["planner:N", "devices:Q", alt.Tooltip("relative:Q", format=".4~f")],
    )
    return panels(table, "panel", bars, columns=2)


def curves(table: pd.DataFrame, scale_s: float, *, every_k: bool) -> alt.TopLevelMixin:
    """Draw Figure 2: time per sample against devices, one panel per memory size and N.

    Curves are steps with `every_k`; otherwise dots mark the plans. They go on to the most devices.
    """
    keys = [*PANEL, "planner"]
    # the last plan of a curve stays the best up to the largest number of devices that was searched
    most = table.drop_duplicates(keys)[[*keys, "most_devices"]].rename(columns={"most_devices": "devices"})
    last = table.groupby(keys, as_index=False)["time_per_sample"].min().merge(most)
    rows = pd.concat([table, last]).sort_values("devices", kind="stable")
    rows = _with_titles(rows.assign(seconds=rows["time_per_sample"] * scale_s), "seconds", "microbatches")
    scale = alt.Scale(type="log", base=2, nice=False)
    devices = partial(alt.X, title="devices k; dashed: k = N", scale=scale)
    marks = alt.Chart().mark_line(interpolate="step-after" if every_k else "linear", point=not every_k)
    lines = marks.encode(
        devices("devices:Q"),
        alt.Y("seconds:Q", title="time per sample, s", scale=alt.Scale(type="log", nice=False)),
        coloured("planner", _looks(rows)),
        tooltip=["planner:N", "devices:Q", alt.Tooltip("seconds:Q", format=".4~g")],
    )
    many = alt.Chart().mark_rule(strokeDash=[4, 3]).transform_aggregate(many="max(microbatches)")
    layers = lines, many.encode(devices("many:Q"))
    return panels(rows, "panel", *layers, height=260, columns=2, independent="xy")


def _with_titles(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Add panel titles and planner names to the rows, and sort them by panel."""
    ordered = rows.sort_values([*PANEL], kind="stable")
    titles = [panel_name(row) for _, row in ordered.iterrows()]
    named = ordered.assign(panel=titles, planner=ordered["planner"].map(PLANNER_NAMES))
    return named[["panel", "planner", "devices", *columns]]


def _looks(rows: pd.DataFrame) -> dict[str, str]:
    """Colours of the planners that occur in the rows, by planner name."""
    return {name: colour for name, colour in _PLANNERS.values() if (rows["planner"] == name).any()}


def panel_name(row: pd.Series) -> str:
    """Title of the panel of a row."""
    layers = f"{row['blocks']:.0f} layers, " if row["blocks"] else ""
    return f"{layers}{row['memory_gib']:g} GB a device, N = {row['microbatches']:.0f}"


def relative(cases: pd.DataFrame) -> pd.Series:
    """Throughput of each row relative to the best on the same cluster; 0 without a plan."""
    best = cases.groupby([*GROUP, "devices"])["time_per_sample"].transform("min")
    share = best / cases["time_per_sample"]
    return share.where(np.isfinite(cases["time_per_sample"]), 0.0)


def splits(runs: pd.DataFrame, best: dict[str, int]) -> alt.TopLevelMixin:
    """Draw Figure 10: throughput by TP × DP split, one panel per model; a star marks the paper's best."""
    rows = _best_by_mapping(runs.assign(value=runs["samples_per_s"]))
    # the paper prints a split without its mapping, so that the star goes to the best mapping of that split
    printed = rows["tensor"] == rows["model"].map(best)
    fastest = rows["value"] == rows.groupby(["model", "tensor"])["value"].transform("max")
    rows["best"] = rows["value"].where(printed & fastest)
    stars = alt.Chart().mark_text(text="★", color=style.RED, dy=-8, fontSize=14)
    stars = stars.transform_filter("isValid(datum.best)")
    stars = stars.encode(_split(rows), alt.Y("best:Q", title="samples/s"))
    return panels(rows, "model", _bars(rows, "samples/s"), stars, independent="y")


def _best_by_mapping(runs: pd.DataFrame) -> pd.DataFrame:
    """Highest `value` for each split and each mapping of stages and groups."""
    keys = ["model", "tensor", "data", "layout", "placed"]
    rows = runs[[*keys, "value"]].groupby(keys, sort=False).max().reset_index()
    rows = rows.sort_values("tensor", kind="stable")
    return rows.assign(
        split=[f"{row.tensor} × {row.data}" for row in rows.itertuples()],
        mapping=[f"{LAYOUTS[str(row.layout)]}, {row.placed}" for row in rows.itertuples()],
    )


def _split(rows: pd.DataFrame) -> alt.X:
    """Horizontal axis of the TP × DP splits, ordered by tensor-parallel width."""
    order = [*dict.fromkeys(rows["split"])]
    return alt.X("split:N", title="TP × DP", sort=order, axis=alt.Axis(labelAngle=0))


def _bars(rows: pd.DataFrame, what: str) -> alt.Chart:
    """Bars for the splits, one per mapping."""
    named = {f"{LAYOUTS[layout]}, {placed}": colour for layout, placed, colour in _MAPPINGS}
    looks = {name: colour for name, colour in named.items() if (rows["mapping"] == name).any()}
    marks = alt.Chart().mark_bar()
    chart: alt.Chart = marks.encode(
        _split(rows),
        alt.Y("value:Q", title=what),
        alt.XOffset("mapping:N", scale=alt.Scale(domain=[*looks])),
        coloured("mapping", looks),
        tooltip=["split:N", "mapping:N", alt.Tooltip("value:Q", title=what, format=",.4~g")],
    )
    return chart


def occupancy(runs: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw Figure 9: busy time of links, and its share of the batch time, by TP × DP split."""
    busy_s = runs["link_busy_s"]
    shown = {"s a batch, mean over links": busy_s, "share of the batch": busy_s / runs["time_s"]}
    rows = pd.concat(
        [_best_by_mapping(runs.assign(value=value)).assign(what=what) for what, value in shown.items()]
    )
    return panels(rows, "what", _bars(rows, ""), columns=2, independent="y")


def over_time_of(words: PageWords, case: str, jobs: pd.DataFrame, links: pd.DataFrame) -> Iterator[Chart]:
    """Yield charts of each simulated pipeline of a case: timeline, memory of its tiles, and link load."""
    keys = ["system", "model", "layout"]
    for key, run_jobs in jobs.groupby(keys, sort=False):
        which = dict(zip(keys, map(str, key), strict=True))
        run_links = links[(links[keys] == pd.Series(which)).all(axis=1)]
        anchor = file_name("-".join((case, which["model"], which["system"], which["layout"])))
        cells, window = over_time.cells(run_jobs), (0.0, float(run_jobs["end_s"].max()))
        timeline = partial(over_time.pipeline, cells, [window], "seconds")
        yield words.chart("time", timeline, f"{anchor}-time", **which)
        yield words.chart("memory", partial(memory, run_jobs), f"{anchor}-memory", **which)
        yield words.chart("heat", partial(heat, run_links), f"{anchor}-links", **which)


def memory(jobs: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw memory use over time, for one tile each of the first, middle and last stage."""
    last = int(jobs["stage"].max())
    work = jobs[jobs["kind"].isin(["forward", "recompute", "backward"])].sort_values("start_s")
    profiles = {}
    for stage in sorted({0, last // 2, last}):
        passes = work[work["stage"] == stage]
        profiles[stage] = passes["start_s"].to_numpy(float), passes["held_bytes"].to_numpy(float)
    return over_time.memory(profiles, float(jobs["end_s"].max()), ("seconds", "GB a tile"), unit_bytes=1e9)


def congestion(rows: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw Figure 7: underestimate of each formula, in %, by number of 8 MB tasks, one panel per formula.

    Kinds of tasks are in turns, and in all mixes; negative if a formula overestimates.
    """
    mixes = {group: f"{group} of all mixes" for group in ("most", "mean", "least")}
    named = {"turns": "kinds in turns", **mixes}
    # number and size of the tasks, for example "4 tasks of 8 MB"
    parts = rows["setting"].str.extract(r"^(\d+) tasks of ([\d.]+) MB").astype(float)
    columns = {
        "formula": "against the " + rows["reading"], "group": rows["group"].map(named), "tasks": parts[0],
        "short": 100 * rows["value"],
    }  # fmt: skip
    table = pd.DataFrame(columns)[parts[1] == 8]
    colours = dict(zip(named.values(), (style.BLUE, style.RED, style.GREY, style.SILVER), strict=True))
    marks = alt.Chart().mark_line(point=True)
    lines = marks.encode(
        alt.X("tasks:Q", title="tasks of 8 MB", axis=alt.Axis(tickMinStep=1, format="d")),
        alt.Y("short:Q", title="% that the formula is short"),
        coloured("group", {name: colours[name] for name in colours if (table["group"] == name).any()}),
        tooltip=["group:N", "tasks:Q", alt.Tooltip("short:Q", format=".3~g")],
    )
    return panels(table.dropna(), "formula", lines, height=220)
