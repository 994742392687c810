"""Page of measured runs: predictions compared with measurements, fitted constants, and checks."""

from __future__ import annotations

import numpy as np
import pandas as pd

from phaze.report.document import FirstScreen
from phaze.report.measured.inputs import MEASURED_TABLES, MeasuredInputs
from phaze.report.measured.sections import scores_sheet, sections_of
from phaze.report.pages import case_page, notes
from phaze.report.report import Report
from phaze.report.verdicts import Checklist, Verdicts, each
from phaze.report.words import percent
from phaze.tables import ALL_SOURCES, TABLES

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
