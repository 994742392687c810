"""Page of measured runs: predictions next to measurements, and fitted constants; its section in a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from itertools import cycle

import altair as alt
import numpy as np
import pandas as pd

from phaze.report import style
from phaze.report.document import Cell, Chart, FirstScreen, Gallery, Prose, Section, Sheet, sheet_of
from phaze.report.pages import case_page, notes
from phaze.report.report import Report
from phaze.report.vega import WIDTH, coloured, rule
from phaze.report.verdicts import Checklist, Verdicts, each
from phaze.report.words import percent
from phaze.spec.measured import MeasuredStudy
from phaze.tables import ALL_SOURCES, TABLES


@dataclass(frozen=True)
class MeasuredInputs:
    """Tables of the measured runs of a study, by name as in `phaze.tables`."""

    study: MeasuredStudy
    measured_runs: pd.DataFrame
    source_scores: pd.DataFrame
    group_regrets: pd.DataFrame
    tool_errors: pd.DataFrame
    fitted_constants: pd.DataFrame

    @property
    def timed(self) -> pd.DataFrame:
        """Runs with a predicted and a measured time, and the ratio of predicted to measured."""
        runs = self.measured_runs
        known: pd.DataFrame = runs[np.isfinite(runs["predicted_s"]) & np.isfinite(runs["measured_s"])]
        return known.assign(ratio=known["predicted_s"] / known["measured_s"])


MEASURED_TABLES = tuple(one.name for one in fields(MeasuredInputs) if one.name != "study")
"""Names of the tables of the page."""


NEAR = 0.15
"""Shaded band around the measured time, as a share of it."""


def scatter(runs: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw predicted against measured times in s, one point per run, coloured by source."""
    sources = [*runs["source"].value_counts().index]  # the largest first, so that smaller ones are on top
    shown = runs.sort_values("source", key=lambda names: names.map(sources.index), kind="stable")
    ends = np.array([runs["measured_s"].min() / 1.3, runs["measured_s"].max() * 1.3])
    band = {"measured_s": ends, "predicted_s": ends, "low": ends * (1 - NEAR), "high": ends * (1 + NEAR)}
    scale = alt.Scale(type="log", nice=False, domain=[*ends])
    across = alt.X("measured_s:Q", title="measured, seconds a batch", scale=scale)
    up = partial(alt.Y, title="predicted", scale=scale)
    base = alt.Chart(pd.DataFrame(band)).encode(across)
    points = alt.Chart(shown[["source", "label", "measured_s", "predicted_s"]]).mark_point(
        filled=True, opacity=0.8, size=20
    )
    return alt.layer(
        base.mark_area(color=style.GREY, opacity=0.2).encode(up("low:Q"), alt.Y2("high")),
        base.mark_line(strokeWidth=1, color=style.MUTED).encode(up("predicted_s:Q")),
        points.encode(
            across,
            up("predicted_s:Q"),
            coloured("source", dict(zip(sources, cycle(style.HUES), strict=False))),
            alt.Shape("source:N", scale=alt.Scale(domain=sources, range=SHAPES)),
            tooltip=["source:N", "label:N", *(f"{name}_s:Q" for name in ("measured", "predicted"))],
        ),
    ).properties(width=WIDTH, height=480)


SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down")


def ratios(runs: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw predicted over measured times, one row per source: each run, the median and the middle half."""
    table = runs[["source", "label"]].assign(error=100 * (runs["ratio"] - 1))
    spread = runs.groupby("source").cumcount() * 0.618 % 1  # even and deterministic
    sources = [*dict.fromkeys(runs["source"])]
    quarters = table.groupby("source", sort=False)["error"].quantile(np.array([0.25, 0.5, 0.75])).unstack()
    quarters = quarters.set_axis(["low", "median", "high"], axis="columns").reset_index()
    what = "% that the predicted time is above the measured"
    row = alt.Y("source:N", title=None, scale=alt.Scale(domain=sources))
    half = alt.Chart(quarters).encode(
        row, tooltip=["source:N", *(f"{name}:Q" for name in ("low", "median", "high"))]
    )
    return alt.layer(
        alt.Chart(table.assign(spread=spread))
        .mark_point(filled=True, opacity=0.6, size=12, color=style.SKY)
        .encode(
            alt.X("error:Q", title=what), row,
            alt.YOffset("spread:Q", scale=alt.Scale(domain=[-0.2, 1.2])),
            tooltip=["source:N", "label:N", alt.Tooltip("error:Q", format="+.1f")],
        ),
        half.mark_rule(strokeWidth=2, color=style.BLUE).encode(alt.X("low:Q", title=what), alt.X2("high")),
        half.mark_tick(thickness=2, size=14, color=style.RED).encode(alt.X("median:Q", title=what)),
        rule("x", 0),
    ).properties(width=WIDTH, height=30 * len(sources))  # fmt: skip


WORST = 10
"""Number of worst runs and of worst groups shown."""
_ERRORS: dict[str, Cell] = {
    "source": "{source}", "runs": "{rows}", "answered": "{answered}", "mean error": "{mean_error:percent}",
    "median": "{median_error:percent}", "bias": lambda row: _signed(row["bias"]),
    "P90": "{p90_error:percent}", "worst": "{worst_error:percent}", "within 10 %": "{within_10:percent}",
    "within 15 %": "{within_15:percent}", "fitted without it": "{left_out_error:percent}",
    "in 80 % interval": "{covered:percent}", "memory": "{memory_error:percent}",
    "in its range": "{memory_covered:percent}", "fits or not, right": "{verdicts:percent}",
    "Spearman": "{rank_correlation:digits}",
    "in groups": "{group_correlation:digits}", "regret": "{regret:percent}",
    "worst regret": "{worst_regret:percent}",
}  # fmt: skip


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %" if abs(share) < float("inf") else "–"


def scores_sheet(scores: pd.DataFrame, source: str = "") -> Sheet:
    """Table of scores by source, with all runs last; `source` names the downloadable table."""
    last = scores["source"] == ALL_SOURCES
    shown = pd.concat([scores[~last], scores[last]])
    caption = (
        "Predicted over measured time of a batch, as shares of the measured: mean absolute error and others, "
        "memory of the fullest device, ranks of layouts, and the time lost by the layout predicted fastest"
    )
    return sheet_of(caption, shown, _ERRORS, 1, (shown["source"] == ALL_SOURCES).tolist(), source)


def measured_section(scores: pd.DataFrame) -> Iterator[Section]:
    """Section on measured runs in a study's report; none without sources."""
    if len(scores):
        about = (
            "Published training runs, predicted by the price that plans have; validate.html shows them all."
        )
        yield Section("measured", "Beside measured runs", about, (scores_sheet(scores, "source_scores"),))


def sections_of(inputs: MeasuredInputs) -> Iterator[Section]:
    """Sections of the page below its first screen."""
    runs = inputs.timed
    charts = (
        Chart(
            "measured-runs", "Predicted against measured time, a point a run",
            "Both axes are logarithmic; the band is 15 % around the measured time.",
            partial(scatter, runs),
        ),
        Chart(
            "measured-ratios", "Errors by source",
            "A point a run; the bar holds the middle half, the red line is the median.",
            partial(ratios, runs),
        ),
    )  # fmt: skip
    about = "Every run of the sources; validate -o FILE writes them with their intervals."
    yield Section("runs", "Runs", about, (Gallery(charts),))
    yield _fitted(inputs)
    yield _tools(inputs)
    yield _worst(runs)
    yield _choices(inputs.group_regrets)


def _fitted(inputs: MeasuredInputs) -> Section:
    columns: dict[str, Cell] = {
        "of": "{of}", "constant": "{key}", "fitted to": "{sources}", "value": "{value:digits}",
    }  # fmt: skip
    sheet = sheet_of(
        "Constants that are fitted to measured runs", inputs.fitted_constants, columns, 3,
        source="fitted_constants",
    )  # fmt: skip
    told = Prose(
        "The column “fitted without it” of the scores is the mean error of a source with these constants "
        "fitted again to their other sources; where a constant is known from one source alone, it stays, and "
        "a source that shares none with another has no such error. Other constants are published or assumed, "
        "as their files in config say."
    )
    return Section("fitted", "What is fitted to what", "And what each source says of itself.", (sheet, told))


def _tools(inputs: MeasuredInputs) -> Section:
    columns: dict[str, Cell] = {
        "tool": "{tool}", "source": "{source}", "published in": "{published}", "runs": "{rows}",
        "its mean error": "{error:percent}", "ours": "{ours:percent}", "its worst": "{worst:percent}",
        "our worst": "{our_worst:percent}", "its memory": "{memory_error:percent}",
        "our memory": "{our_memory_error:percent}",
    }  # fmt: skip
    sheet = sheet_of("Errors of the same runs", inputs.tool_errors, columns, 3, source="tool_errors")
    about = "Predictions that other tools publish of some of these runs, beside ours."
    return Section("tools", "Other tools", about, (sheet,))


def _worst(runs: pd.DataFrame) -> Section:
    columns: dict[str, Cell] = {
        "source": "{source}", "row": "{number}", "run": "{label}", "layout": "{parallelism}",
        "measured": "{measured_s:seconds}", "predicted": "{predicted_s:seconds}",
        "off": lambda row: _signed(row["ratio"] - 1),
        "interval": "{time_low_s:seconds} to {time_high_s:seconds}",
    }  # fmt: skip
    furthest = (runs["ratio"] - 1).abs().sort_values(ascending=False, kind="stable").index[:WORST]
    sheet = sheet_of(f"The {WORST} runs furthest off", runs.loc[furthest], columns, 4, source="measured_runs")
    return Section("worst", "Furthest off", "Runs that are predicted worst, and their intervals.", (sheet,))


def _choices(groups: pd.DataFrame) -> Section:
    columns: dict[str, Cell] = {
        "group": "{group}", "layouts": "{layouts}", "Spearman": "{correlation:digits}",
        "fastest": "{fastest_s:seconds}", "the predicted fastest": "{chosen_s:seconds}",
        "regret": "{regret:percent}",
    }  # fmt: skip
    worst = groups.sort_values("regret", ascending=False, kind="stable")
    sheets = (
        sheet_of(f"The {WORST} groups that lose most", worst.head(WORST), columns, source="group_regrets"),
        sheet_of("All groups", groups, columns, source="group_regrets", folded=True),
    )
    lost = float((groups["regret"] > 0).mean()) if len(groups) else 0.0
    told = Prose(
        f"In {100 * (1 - lost):.0f} % of {len(groups)} groups the layout that is predicted fastest is the "
        "fastest measured one."
    )
    about = (
        "Measured layouts of one model, batch and number of devices: what taking the predicted fastest costs."
    )
    return Section("choices", "Choices", about, (told, *sheets))


PRICED = (
    "A row of a source names its system and its software stack, and is priced like any plan; what a row "
    "leaves open, microbatch or chunks, is the fastest that fits."
)
LOST = (
    "Errors are predicted over measured time, less one. Regret is the measured time that is lost by running "
    "the layout that is predicted fastest, over groups of three layouts or more of one model, batch and "
    "number of devices."
)
HELD = (
    "The interval of a run is from the errors of the runs most like it (stack, device, kinds of parallelism) "
    "of all sources but its own; four of five runs are to lie in it."
)


def build_measured_report(inputs: MeasuredInputs) -> Report:
    """Build the page of the measured runs of a study."""
    return case_page(
        "validate.html",
        "measured runs",
        inputs,
        (
            "measured-checks",
            CHECKS,
            "comparison, checked on this one; `snakemake check` fails if one does not.",
        ),
        {name: (TABLES[name], getattr(inputs, name)) for name in MEASURED_TABLES},
        lambda _: _answer(inputs),
        sections_of(inputs),
        (notes(PRICED, LOST, HELD),),
    )


def _answer(inputs: MeasuredInputs) -> FirstScreen:
    """First screen: errors over all runs, and by source."""
    scores = inputs.source_scores
    whole = scores[scores["source"] == ALL_SOURCES] if len(scores) > 1 else scores
    row = whole.iloc[0]
    sources = scores[scores["source"] != ALL_SOURCES]
    least, most = (percent(end) for end in (sources["mean_error"].min(), sources["mean_error"].max()))
    sentence = (
        f"{percent(row['mean_error'])} on average over {int(row['answered']):,} runs of {len(sources)} "
        f"sources, from {least} to {most} by source; {percent(row['within_15'], 0)} of the runs within 15 %. "
        f"{percent(row['covered'], 0)} lie in the 80 % interval that the other sources give."
    )
    facts = (
        (percent(row["mean_error"]), "mean absolute error of the time of a batch"),
        (percent(row["covered"], 0), "of the runs in their interval, which is to hold 80 %"),
        (percent(row["regret"]), "lost on average by running the layout that is predicted fastest"),
    )
    question = "How far are predictions from measured runs?"
    return FirstScreen(question, sentence, facts, scores_sheet(scores, "source_scores"))


CHECKS: Checklist[MeasuredInputs] = Checklist()


@CHECKS.hold("every source has runs and a score of all of them")
def _every_source_is_scored(inputs: MeasuredInputs) -> Verdicts:
    counts, scores = inputs.measured_runs["source"].value_counts(), inputs.source_scores.set_index("source")
    for source in inputs.study.sources:
        found = scores["rows"].get(source, 0)
        yield found == counts.get(source, 0) > 0, f"{source}: {found} of {counts.get(source, 0)} runs"


@CHECKS.hold("every run is predicted or says why not")
def _every_run_is_predicted(inputs: MeasuredInputs) -> Verdicts:
    runs = inputs.measured_runs
    predicted = np.isfinite(runs["predicted_s"])
    yield from each(predicted != runs["status"].str.startswith("invalid"), runs, ("source", "number"))


@CHECKS.hold("intervals have a width and are where the time is")
def _intervals_have_a_width(inputs: MeasuredInputs) -> Verdicts:
    runs: pd.DataFrame = inputs.timed
    near = (runs["time_low_s"] < 2 * runs["predicted_s"]) & (runs["time_high_s"] > runs["predicted_s"] / 2)
    yield from each((runs["time_low_s"] < runs["time_high_s"]) & near, runs, ("source", "number"))


@CHECKS.hold("no choice is faster than the fastest layout")
def _no_choice_is_faster(inputs: MeasuredInputs) -> Verdicts:
    yield from each(inputs.group_regrets["regret"] >= 0, inputs.group_regrets, ("group",))
