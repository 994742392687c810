"""Page of training plans: the best plan per cluster size, and charts of training time and peak memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import get_args

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.units import percent
from phaze.pages import style
from phaze.pages.document import FirstScreen, Gallery, Section
from phaze.pages.page import Report, case_page
from phaze.pages.page_words import words_of
from phaze.pages.vega import WIDTH, coloured
from phaze.pages.verdicts import ROUNDING, Checklist, Verdicts, check_rows
from phaze.pages.words import fill
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.names import Rank
from phaze.spec.training_plan import TIE
from phaze.tables.layouts import LayoutProofs, RankedLayouts

WORDS = words_of("layouts")
SIZE = "model", "system", "devices", "ranking"
"""Key columns that identify one search for plans."""
SHOWN = "prudent"
"""Ranking shown first on the page: by prudent time."""
SECONDS_PER_DAY = 86400.0
CHECKS: Checklist[LayoutInputs] = Checklist()


@dataclass(frozen=True)
class LayoutInputs:
    """Tables of the training plans of a study."""

    study: LayoutStudy
    ranked_layouts: pd.DataFrame
    layout_proofs: pd.DataFrame

    @property
    def shown(self) -> pd.DataFrame:
        """Plans ranked by prudent step time, the ranking that is shown first."""
        return self.ranked_layouts[self.ranked_layouts["ranking"] == SHOWN]

    @property
    def best(self) -> pd.DataFrame:
        """Best plan for each model, system and device count, with its proof and the training time in days."""
        first = self.shown[self.shown["rank"] == 1]
        proofs = self.layout_proofs[[*SIZE, "gap", "bound_s", "layouts", "hbm_gib"]]
        rows = first.merge(proofs, on=list(SIZE))
        tokens_per_s = rows["tokens_per_s_per_device"] * rows["devices"]
        return rows.assign(days=self.study.tokens / tokens_per_s / SECONDS_PER_DAY)


def build_layout_report(inputs: LayoutInputs) -> Report:
    """Build the page of the training plans of a study."""
    return case_page(
        "layouts.html",
        "training plans",
        inputs,
        ("layout-checks", CHECKS, WORDS.sentences["checked"]),
        {
            "ranked_layouts": (RankedLayouts, inputs.ranked_layouts),
            "layout_proofs": (LayoutProofs, inputs.layout_proofs),
        },
        _answer(inputs),
        _sections(inputs),
        (WORDS.sentences[name] for name in ("ranked", "priced", "bounded", "chunked")),
    )


def _answer(inputs: LayoutInputs) -> FirstScreen:
    best, proofs = inputs.best, inputs.layout_proofs
    proofs = proofs[proofs["ranking"] == SHOWN]
    unfit = proofs[proofs["status"] == "unfit"]
    gap = best["gap"].max()
    sentences = [WORDS.sentence("planned", planned=len(best), asked=len(proofs))]
    sentences += [WORDS.sentence("gap", gap=gap)] if len(best) else []
    names = ", ".join(f"{row.model} on {row.devices} {row.system}" for row in unfit.itertuples())
    sentences += [WORDS.sentence("unfit", names=names)] if names else []
    facts = (
        (f"{int(proofs['layouts'].sum()):,}", "layouts, all accounted for"),
        (f"{int(proofs['divisions'].sum()):,}", "divisions into stages simulated"),
        (percent(gap), "largest gap"),
    )
    texts = np.where(np.isfinite(best["time_s_high"]), "interval", "uncalibrated")
    rows = zip(texts, best.iterrows(), strict=True)
    intervals = [fill(WORDS.sentences[text], row) for text, (_, row) in rows]
    sheet = WORDS.sheet("best", best.assign(interval=intervals))
    return FirstScreen("How should these models be trained?", " ".join(sentences), facts, sheet)


def _sections(inputs: LayoutInputs) -> Iterator[Section]:
    best, ranked = inputs.best, inputs.ranked_layouts
    if best.empty:
        return
    days = WORDS.chart("layout-days", partial(days_by_devices, best), tokens=inputs.study.tokens)
    memory = WORDS.chart("layout-memory", partial(memory_by_throughput, inputs.shown))
    yield WORDS.section("fronts", [Gallery((days, memory))])
    yield WORDS.section("ranked", [WORDS.sheet("ranked", ranked, ranked["rank"] == 1)])


def days_by_devices(best: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw training time in days against the number of devices, one line per model and system."""
    labels = best["model"] + " on " + best["system"]
    table = best[["devices", "days"]].assign(of=labels)
    # perfect scaling: as many device-days as at the first point of the line
    first = table.groupby("of")[["devices", "days"]].transform("first")
    table["ideal"] = first["days"] * first["devices"] / table["devices"]
    base = alt.Chart(table).encode(
        alt.X(
            "devices:Q",
            scale=alt.Scale(type="log", base=2, nice=False, padding=8),
            axis=alt.Axis(values=sorted({*map(int, table["devices"])}), format=",d"),
        ),
        coloured("of", dict(zip(table["of"].unique(), cycle(style.HUES), strict=False))),
        tooltip=["of:N", "devices:Q", alt.Tooltip("days:Q", format=",.3~g")],
    )
    scale = alt.Scale(type="log", nice=False, padding=8)
    return alt.layer(
        base.mark_line(point=True).encode(alt.Y("days:Q", title="days", scale=scale)),
        base.mark_line(strokeDash=[4, 3], strokeWidth=1).encode(alt.Y("ideal:Q", title="days", scale=scale)),
    ).properties(width=WIDTH, height=240)


def memory_by_throughput(ranked: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the throughput of ranked plans against the peak memory of any device."""
    columns = ["model", "devices", "fullest_gib", "tokens_per_s_per_device"]
    table = ranked[columns].assign(of=ranked["model"] + ", " + ranked["devices"].astype(str))
    marks = alt.Chart(table, width=WIDTH, height=240).mark_point(filled=True, opacity=1)
    chart: alt.Chart = marks.encode(
        alt.X("fullest_gib:Q", title="GiB of the fullest device", scale=alt.Scale(zero=False, padding=8)),
        alt.Y("tokens_per_s_per_device:Q", title="tokens/s of a device", scale=alt.Scale(zero=False)),
        coloured("of", dict(zip(table["of"].unique(), cycle(style.HUES), strict=False))),
        tooltip=["of:N", *(alt.Tooltip(f"{name}:Q", format=",.4~g") for name in columns[2:])],
    )
    return chart


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
    yield from check_rows(rows["bound_s"] <= ranked_s(rows) * (1 + ROUNDING), rows, (*SIZE, "rank"))


@CHECKS.hold("plans are ranked by their time, but for those that count as equally fast")
def _ranks_follow_times(inputs: LayoutInputs) -> Verdicts:
    for size, rows in inputs.ranked_layouts.groupby(list(SIZE)):
        times = ranked_s(rows.sort_values("rank")).to_numpy()
        # the least time of the plans ranked at or after each plan
        later = np.minimum.accumulate(times[::-1])[::-1]
        yield bool((times <= later * (1 + TIE + ROUNDING)).all()), str(size)


@CHECKS.hold("every plan fits the memory of a device")
def _plans_fit(inputs: LayoutInputs) -> Verdicts:
    rows = inputs.ranked_layouts.merge(inputs.layout_proofs, on=list(SIZE))
    yield from check_rows(rows["fullest_gib"] <= rows["hbm_gib"] * (1 + ROUNDING), rows, (*SIZE, "rank"))


@CHECKS.hold("every plan takes all devices")
def _plans_take_all_devices(inputs: LayoutInputs) -> Verdicts:
    rows = inputs.ranked_layouts
    # ep is no factor: experts are sharded across the ranks of tp, cp and dp
    devices = rows[["tp", "cp", "pp", "dp"]].prod(axis=1)
    yield from check_rows(devices == rows["devices"], rows, (*SIZE, "rank"))
