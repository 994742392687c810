"""Page that compares predictions with measured runs and lists fitted constants, and a section for reports."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from functools import partial
from itertools import cycle

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.units import percent
from phaze.pages import style
from phaze.pages.document import FirstScreen, Gallery, Prose, Section, Sheet
from phaze.pages.page import Report, case_page
from phaze.pages.page_words import words_of
from phaze.pages.vega import WIDTH, coloured, rule
from phaze.pages.verdicts import Checklist, Verdicts, check_rows
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.spec.measured import MeasuredStudy
from phaze.tables import ALL_MEASURED, ALL_SOURCES, TABLES

SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down")
WORDS = words_of("validate")
WORST = 10
"""Number of worst runs, and of worst groups, that are shown."""
TOGETHER = (ALL_MEASURED, ALL_SOURCES)
"""Lines of several sources together; the first one present is the answer of the page."""
REGRETS = (("groups", "regret", "of one release"), ("release_groups", "release_regret", "across releases"))
"""Columns with the number of groups and their mean regret, and how the runs of these groups differ."""
NEAR = 0.15
"""Half-width of the shaded band around the measured time, relative to that time."""
CHECKS: Checklist[MeasuredInputs] = Checklist()


@dataclass(frozen=True)
class MeasuredInputs:
    """Tables of the measured runs of a study, by name as in `phaze.tables`."""

    study: MeasuredStudy
    measured_runs: pd.DataFrame
    source_scores: pd.DataFrame
    group_regrets: pd.DataFrame
    tool_errors: pd.DataFrame
    fitted_constants: pd.DataFrame
    simulated: tuple[str, ...] = ()
    """Sources whose times look simulated, which charts mute."""

    @property
    def timed(self) -> pd.DataFrame:
        """Runs with a predicted and a measured time, and the ratio of predicted to measured."""
        runs = self.measured_runs
        timed_runs: pd.DataFrame = runs[np.isfinite(runs["predicted_s"]) & np.isfinite(runs["measured_s"])]
        return timed_runs.assign(ratio=timed_runs["predicted_s"] / timed_runs["measured_s"])


MEASURED_TABLES = tuple(
    field.name for field in fields(MeasuredInputs) if field.name not in ("study", "simulated")
)
"""Names of the tables of the page."""


def scatter(runs: pd.DataFrame, simulated: Collection[str] = ()) -> alt.TopLevelMixin:
    """Draw predicted against measured times in s, one point per run, coloured by source.

    Sources whose times look simulated are grey and below the others.
    """
    # the largest first, so that smaller ones are on top
    sources = sorted(runs["source"].value_counts().index, key=lambda source: source not in simulated)
    hues = cycle(style.HUES[:-1])
    looks = {source: style.SILVER if source in simulated else next(hues) for source in sources}
    shown = runs.sort_values("source", key=lambda names: names.map(sources.index), kind="stable")
    # a margin on a logarithmic axis is a factor
    ends = np.array([runs["measured_s"].min() / 1.3, runs["measured_s"].max() * 1.3])
    band = {"measured_s": ends, "predicted_s": ends, "low": ends * (1 - NEAR), "high": ends * (1 + NEAR)}
    scale = alt.Scale(type="log", nice=False, domain=[*ends])
    across = alt.X("measured_s:Q", title="measured, seconds a batch", scale=scale)
    up = partial(alt.Y, title="predicted", scale=scale)
    base = alt.Chart(pd.DataFrame(band)).encode(across)
    columns = ["source", "label", "measured_s", "predicted_s"]
    points = alt.Chart(shown[columns]).mark_point(filled=True, opacity=0.8, size=20)
    return alt.layer(
        base.mark_area(color=style.GREY, opacity=0.2).encode(up("low:Q"), alt.Y2("high")),
        base.mark_line(strokeWidth=1, color=style.MUTED).encode(up("predicted_s:Q")),
        points.encode(
            across,
            up("predicted_s:Q"),
            coloured("source", looks),
            alt.Shape("source:N", scale=alt.Scale(domain=sources, range=SHAPES)),
            tooltip=["source:N", "label:N", "measured_s:Q", "predicted_s:Q"],
        ),
    ).properties(width=WIDTH, height=480)


def ratios(runs: pd.DataFrame, simulated: Collection[str] = ()) -> alt.TopLevelMixin:
    """Draw predicted over measured times, one row per source: all runs, median and interquartile range.

    Sources whose times look simulated are grey.
    """
    table = runs[["source", "label"]].assign(error=100 * (runs["ratio"] - 1))
    # multiples of the golden ratio: even, and the same in every run
    spread = runs.groupby("source").cumcount() * 0.618 % 1
    sources = [*dict.fromkeys(runs["source"])]
    quarters = table.groupby("source", sort=False)["error"].quantile(np.array([0.25, 0.5, 0.75])).unstack()
    quarters = quarters.set_axis(["low", "median", "high"], axis="columns").reset_index()
    looks = {source: style.SILVER if source in simulated else style.SKY for source in sources}
    what = "% that the predicted time is above the measured"
    row = alt.Y("source:N", title=None, scale=alt.Scale(domain=sources))
    half = alt.Chart(quarters).encode(row, tooltip=["source:N", "low:Q", "median:Q", "high:Q"])
    return alt.layer(
        alt.Chart(table.assign(spread=spread))
        .mark_point(filled=True, opacity=0.6, size=12)
        .encode(
            coloured("source", looks, legend=False),
            alt.X("error:Q", title=what),
            row,
            alt.YOffset("spread:Q", scale=alt.Scale(domain=[-0.2, 1.2])),
            tooltip=["source:N", "label:N", alt.Tooltip("error:Q", format="+.1f")],
        ),
        half.mark_rule(strokeWidth=2, color=style.BLUE).encode(alt.X("low:Q", title=what), alt.X2("high")),
        half.mark_tick(thickness=2, size=14, color=style.RED).encode(alt.X("median:Q", title=what)),
        rule("x", 0),
    ).properties(width=WIDTH, height=30 * len(sources))


def scores_sheet(scores: pd.DataFrame) -> Sheet:
    """Report table of scores by source, with several sources together last."""
    # sums of several sources stand below the sources
    last = scores["source"].isin(TOGETHER)
    shown = pd.concat([scores[~last], scores[last]])
    return WORDS.sheet("scores", shown, shown["source"].isin(TOGETHER))


def measured_section(inputs: Inputs, _: Findings) -> Iterator[Section]:
    """Yield the section on prediction errors for published training runs; nothing without such runs."""
    if len(inputs.source_scores):
        yield WORDS.section("measured", [scores_sheet(inputs.source_scores)])


def sections_of(inputs: MeasuredInputs) -> Iterator[Section]:
    """Yield the sections of the page below its first screen."""
    runs, groups, simulated = inputs.timed, inputs.group_regrets, inputs.simulated
    draws = {
        "measured-runs": partial(scatter, runs, simulated),
        "measured-ratios": partial(ratios, runs, simulated),
    }
    charts = tuple(WORDS.chart(name, draw) for name, draw in draws.items())
    yield WORDS.section("runs", [Gallery(charts)])
    fitted = WORDS.sheet("fitted", inputs.fitted_constants)
    yield WORDS.section("fitted", [fitted, Prose(WORDS.sentences["fitted"])])
    yield WORDS.section("tools", [WORDS.sheet("tools", inputs.tool_errors)])
    off = runs.assign(error=runs["ratio"] - 1)
    furthest = off["error"].abs().sort_values(ascending=False, kind="stable").index[:WORST]
    yield WORDS.section("worst", [WORDS.sheet("worst", off.loc[furthest], count=WORST)])
    costly = groups.sort_values("regret", ascending=False, kind="stable")
    chosen = pd.DataFrame({"fastest": groups["regret"] <= 0, "across": groups["releases"] > 1})
    alone, across = (chosen.loc[chosen["across"] == several, "fastest"] for several in (False, True))
    counts = {"fastest": alone.sum(), "count": len(alone)}
    counts |= {"fastest_across": across.sum(), "count_across": len(across)}
    intro = Prose(WORDS.sentence("fastest", **counts))
    sheets = WORDS.sheet("costly", costly.head(WORST), count=WORST), WORDS.sheet("groups", groups)
    yield WORDS.section("choices", [intro, *sheets])


def build_measured_report(inputs: MeasuredInputs) -> Report:
    """Build the page of the measured runs of a study."""
    return case_page(
        "validate.html",
        "measured runs",
        inputs,
        ("measured-checks", CHECKS, WORDS.sentences["checked"]),
        {name: (TABLES[name], getattr(inputs, name)) for name in MEASURED_TABLES},
        _answer(inputs),
        sections_of(inputs),
        (WORDS.sentences[name] for name in ("priced", "lost", "held")),
    )


def _answer(inputs: MeasuredInputs) -> FirstScreen:
    """First screen: prediction errors over all runs whose times do not look simulated, and by source."""
    scores = inputs.source_scores
    together = [name for name in TOGETHER if name in set(scores["source"])]
    row = (scores[scores["source"] == together[0]] if together else scores).iloc[0]
    timed = scores[~scores["source"].isin(TOGETHER) & (scores["answered"] > 0)]
    ends: dict[str, object] = {"least": timed["mean_error"].min(), "most": timed["mean_error"].max()}
    ends["simulated"] = WORDS.sentences["simulated"] if ALL_MEASURED in together else ""
    covered = f"of {row['intervals']:,} runs in their interval, which is to hold 80 %"
    facts = [
        (percent(row["mean_error"]), "mean absolute error of the time of a batch"),
        (percent(row["covered"], 0), covered),
    ]
    for groups, lost, kind in REGRETS:
        if row[groups]:
            about = f"lost on average by running the predicted fastest layout of {row[groups]} groups {kind}"
            facts.append((percent(row[lost]), about))
    question = "How far are predictions from measured runs?"
    sentence = WORDS.sentence("answer", **{**row, **ends})
    return FirstScreen(question, sentence, tuple(facts), scores_sheet(scores))


@CHECKS.hold("every source has runs and a score of all of them")
def _every_source_is_scored(inputs: MeasuredInputs) -> Verdicts:
    counts, scores = inputs.measured_runs["source"].value_counts(), inputs.source_scores.set_index("source")
    for source in inputs.study.sources:
        scored = scores["rows"].get(source, 0)
        yield scored == counts.get(source, 0) > 0, f"{source}: {scored} of {counts.get(source, 0)} runs"


@CHECKS.hold("every run is predicted or says why not")
def _every_run_is_predicted(inputs: MeasuredInputs) -> Verdicts:
    runs = inputs.measured_runs
    predicted = np.isfinite(runs["predicted_s"])
    yield from check_rows(predicted != runs["status"].str.startswith("invalid"), runs, ("source", "number"))


@CHECKS.hold("intervals have a width and are where the time is")
def _intervals_have_a_width(inputs: MeasuredInputs) -> Verdicts:
    runs = inputs.timed[np.isfinite(inputs.timed["time_high_s"])]
    # intervals come from the errors of other sources, and so need not contain the prediction itself
    near = (runs["time_low_s"] < 2 * runs["predicted_s"]) & (runs["time_high_s"] > runs["predicted_s"] / 2)
    yield from check_rows((runs["time_low_s"] < runs["time_high_s"]) & near, runs, ("source", "number"))


@CHECKS.hold("no choice is faster than the fastest layout")
def _no_choice_is_faster(inputs: MeasuredInputs) -> Verdicts:
    yield from check_rows(inputs.group_regrets["regret"] >= 0, inputs.group_regrets, ("group",))
