"""Page of training plans: the best layout of each size, fronts of size and memory, and checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from math import isfinite
from typing import get_args

import altair as alt
import numpy as np
import pandas as pd

from phaze.report import style
from phaze.report.document import Cell, Chart, FirstScreen, Gallery, Section, Sheet, sheet_of
from phaze.report.pages import case_page, notes
from phaze.report.report import Report
from phaze.report.vega import WIDTH, coloured
from phaze.report.verdicts import ROUNDING, Checklist, Verdicts, each
from phaze.report.words import percent, seconds
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.training_plan import TIE, Rank
from phaze.tables.layouts import LayoutProofs, RankedLayouts

SIZE = "model", "system", "devices", "ranking"
"""Key columns of a search."""
SHOWN = "prudent"
"""Ranking shown first on the page."""
SECONDS_PER_DAY = 86400.0


@dataclass(frozen=True)
class LayoutInputs:
    """Tables of the training plans of a study."""

    study: LayoutStudy
    ranked_layouts: pd.DataFrame
    layout_proofs: pd.DataFrame

    @property
    def shown(self) -> pd.DataFrame:
        """Plans in the ranking shown first: by prudent time."""
        return self.ranked_layouts[self.ranked_layouts["ranking"] == SHOWN]

    @property
    def best(self) -> pd.DataFrame:
        """Best plan of each model, system and size, with its proof and the days of training."""
        first = self.shown[self.shown["rank"] == 1]
        proofs = self.layout_proofs[[*SIZE, "gap", "bound_s", "layouts", "hbm_gib"]]
        rows = first.merge(proofs, on=list(SIZE))
        each_s = rows["tokens_per_s_per_device"] * rows["devices"]
        return rows.assign(days=self.study.tokens / each_s / SECONDS_PER_DAY)


def build_layout_report(inputs: LayoutInputs) -> Report:
    """Build the page of the training plans of a study."""
    return case_page(
        "layouts.html",
        "training plans",
        inputs,
        ("layout-checks", CHECKS, "plan, checked on these; `snakemake check` fails if one does not."),
        {
            "ranked_layouts": (RankedLayouts, inputs.ranked_layouts),
            "layout_proofs": (LayoutProofs, inputs.layout_proofs),
        },
        lambda _: _answer(inputs),
        _sections(inputs),
        (
            notes(
                "Plans are ranked by prudent time: with the overlap that is proven for the stack, and its "
                "prudent load of experts.",
                "Times are those of `simulate --runs`: the price that `validate` compares with published "
                "runs; the interval holds four of five of these.",
                "The gap bounds what any other layout or division into stages could gain under this price. "
                "It says nothing of the price's own error, which the interval shows.",
                "Virtual stages of several chunks differ by one block, the ends by more; all other divisions "
                "are searched.",
            ),
        ),
    )


def _answer(inputs: LayoutInputs) -> FirstScreen:
    best, proofs = inputs.best, inputs.layout_proofs
    proofs = proofs[proofs["ranking"] == SHOWN]
    unfit = proofs[proofs["status"] == "unfit"]
    sentence = f"{len(best)} of {len(proofs)} questions have a plan."
    if len(best):
        worst = float(best["gap"].max())
        sentence += f" No other layout can be faster by more than {percent(worst)}, under the same price."
    if len(unfit):
        names = ", ".join(f"{row.model} on {row.devices} {row.system}" for row in unfit.itertuples())
        sentence += f" Nothing fits for {names}."
    facts = (
        (f"{int(proofs['layouts'].sum()):,}", "layouts, all accounted for"),
        (f"{int(proofs['divisions'].sum()):,}", "divisions into stages simulated"),
        (percent(float(best["gap"].max())) if len(best) else "–", "largest gap"),
    )
    return FirstScreen("How should these models be trained?", sentence, facts, _best_sheet(best))


_LAYOUT: Cell = (
    "tp {tp}, cp {cp}, pp {pp}, vp {vp}, dp {dp}, microbatch {microbatch}, ZeRO {zero}, {schedule}"
)


def _best_sheet(best: pd.DataFrame) -> Sheet:
    columns: dict[str, Cell] = {
        "model": "{model}",
        "system": "{system}",
        "layout": _LAYOUT,
        "bound by": "{bound_by}",
        "devices": "{devices}",
        "prudent step": lambda row: seconds(row["prudent_s"]),
        "step": lambda row: seconds(row["time_s"]),
        "published runs like it": lambda row: (
            f"{seconds(row['time_s_low'])} to {seconds(row['time_s_high'])}"
            if isfinite(row["time_s_high"])
            else "not calibrated: an upper limit of speed"
        ),
        "MFU": "{mfu:percent}",
        "tokens/s/device": lambda row: f"{row['tokens_per_s_per_device']:,.0f}",
        "days": lambda row: f"{row['days']:,.1f}",
        "fullest GiB": lambda row: f"{row['fullest_gib']:.1f}",
        "gap": "{gap:percent}",
    }
    return sheet_of("The fastest plan of every size", best, columns, 4, source="ranked_layouts")


def _sections(inputs: LayoutInputs) -> Iterator[Section]:
    best = inputs.best
    if best.empty:
        return
    charts = (
        Chart(
            "layout-days",
            "Devices against days",
            f"Days for {inputs.study.tokens:.3g} tokens with the fastest plan of every size; the dashed "
            "lines are what twice the devices in half the time would be.",
            lambda: days_by_devices(best),
        ),
        Chart(
            "layout-memory",
            "Throughput against memory",
            "Ranked plans: tokens per second of a device over the memory of the fullest one.",
            lambda: memory_by_throughput(inputs.shown),
        ),
    )
    yield Section("fronts", "Fronts", "What more devices and more memory bring.", (Gallery(charts),))
    columns: dict[str, Cell] = {
        "model": "{model}", "system": "{system}", "layout": _LAYOUT, "stages": "{pipeline_layout}",
        "devices": "{devices}", "by": "{ranking}", "rank": "{rank}",
        "prudent step": lambda row: seconds(row["prudent_s"]), "step": lambda row: seconds(row["time_s"]),
        "MFU": "{mfu:percent}", "fullest GiB": lambda row: f"{row['fullest_gib']:.1f}",
        "bubble": "{bubble_share:percent}", "exposed communication": "{exposed_communication_share:percent}",
    }  # fmt: skip
    ranked = inputs.ranked_layouts
    sheet = sheet_of("Ranked plans", ranked, columns, 4, ranked["rank"] == 1, "ranked_layouts", folded=True)
    yield Section("ranked", "Ranked plans", "The best division of each of the next layouts.", (sheet,))


def days_by_devices(best: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw days of training over devices, one line per model and system."""
    of = best["model"] + " on " + best["system"]
    table = best[["devices", "days"]].assign(of=of)
    first = table.groupby("of")[["devices", "days"]].transform("first")
    table["ideal"] = first["days"] * first["devices"] / table["devices"]
    base = alt.Chart(table).encode(
        alt.X(
            "devices:Q", scale=alt.Scale(type="log", base=2, nice=False, padding=8),
            axis=alt.Axis(values=sorted({*map(int, table["devices"])}), format=",d"),
        ),
        coloured("of", dict(zip(table["of"].unique(), cycle(style.HUES), strict=False))),
        tooltip=["of:N", "devices:Q", alt.Tooltip("days:Q", format=",.3~g")],
    )  # fmt: skip
    scale = alt.Scale(type="log", nice=False, padding=8)
    return alt.layer(
        base.mark_line(point=True).encode(alt.Y("days:Q", title="days", scale=scale)),
        base.mark_line(strokeDash=[4, 3], strokeWidth=1).encode(alt.Y("ideal:Q", title="days", scale=scale)),
    ).properties(width=WIDTH, height=240)


def memory_by_throughput(ranked: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the throughput of ranked plans over the peak memory of any device."""
    columns = ["model", "devices", "fullest_gib", "tokens_per_s_per_device"]
    table = ranked[columns].assign(of=ranked["model"] + ", " + ranked["devices"].astype(str))
    chart: alt.Chart = (
        alt.Chart(table, width=WIDTH, height=240)
        .mark_point(filled=True, opacity=1)
        .encode(
            alt.X("fullest_gib:Q", title="GiB of the fullest device", scale=alt.Scale(zero=False, padding=8)),
            alt.Y("tokens_per_s_per_device:Q", title="tokens/s of a device", scale=alt.Scale(zero=False)),
            coloured("of", dict(zip(table["of"].unique(), cycle(style.HUES), strict=False))),
            tooltip=["of:N", *(alt.Tooltip(f"{name}:Q", format=",.4~g") for name in columns[2:])],
        )
    )
    return chart


CHECKS: Checklist[LayoutInputs] = Checklist()


@CHECKS.hold("every model has an answer on every system and size")
def _every_question_is_answered(inputs: LayoutInputs) -> Verdicts:
    answered = {*inputs.layout_proofs[list(SIZE)].itertuples(index=False, name=None)}
    for name, point in inputs.study.points.items():
        for rank in get_args(Rank):
            yield (point.model, point.system, point.devices, rank) in answered, f"{name}, {rank}"


def ranked_s(rows: pd.DataFrame) -> pd.Series:
    """Step time in s by which plans are ranked: expected or prudent."""
    return rows["time_s"].where(rows["ranking"] == "expected", rows["prudent_s"])


@CHECKS.hold("no plan is faster than the bound of all layouts")
def _bounds_are_below_times(inputs: LayoutInputs) -> Verdicts:
    rows = inputs.ranked_layouts.merge(inputs.layout_proofs, on=list(SIZE))
    yield from each(rows["bound_s"] <= ranked_s(rows) * (1 + ROUNDING), rows, (*SIZE, "rank"))


@CHECKS.hold("plans are ranked by their time, but for those that count as equally fast")
def _ranks_follow_times(inputs: LayoutInputs) -> Verdicts:
    for size, rows in inputs.ranked_layouts.groupby(list(SIZE)):
        times = ranked_s(rows.sort_values("rank")).to_numpy()
        later = np.minimum.accumulate(times[::-1])[::-1]
        yield bool((times <= later * (1 + TIE + ROUNDING)).all()), str(size)


@CHECKS.hold("every plan fits the memory of a device")
def _plans_fit(inputs: LayoutInputs) -> Verdicts:
    rows = inputs.ranked_layouts.merge(inputs.layout_proofs, on=list(SIZE))
    yield from each(rows["fullest_gib"] <= rows["hbm_gib"] * (1 + ROUNDING), rows, (*SIZE, "rank"))


@CHECKS.hold("every plan takes all devices")
def _plans_take_all_devices(inputs: LayoutInputs) -> Verdicts:
    rows = inputs.ranked_layouts
    yield from each(rows[["tp", "cp", "pp", "dp"]].prod(axis=1) == rows["devices"], rows, (*SIZE, "rank"))
