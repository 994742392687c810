"""The page of measured runs, from runs with known errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.pages.document import Sheet
from phaze.pages.page import write_report
from phaze.pages.verdicts import run_checks
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.measured_page import CHECKS, MeasuredInputs, build_measured_report, measured_section
from phaze.spec.measured import MeasuredStudy
from phaze.tables import FittedConstants, GroupRegrets, MeasuredRuns, SourceScores, ToolErrors

NOTHING = float("inf")
SOURCES = ("far", "near")


def run(source: str, number: int, measured_s: float, predicted_s: float) -> dict[str, object]:
    return {
        "source": source, "number": number, "label": f"{source} {number}", "group": f"{source}: h 1024",
        "stack": "own", "device": "chip", "parallelism": "tp", "experts": "no", "measured_s": measured_s,
        "predicted_s": predicted_s, "prudent_s": predicted_s, "time_low_s": 0.9 * predicted_s,
        "time_high_s": 1.1 * predicted_s,
        "left_out_s": NOTHING, "measured_gib": NOTHING, "predicted_gib": 1.0, "outcome": "ok", "status": "ok",
    }  # fmt: skip


def score(source: str, rows: int, mean_error: float) -> dict[str, object]:
    shares = [name for name, column in SourceScores.columns.items() if column.dtype == "float64"]
    found = dict.fromkeys(shares, 0.5) | {"left_out_error": NOTHING, "memory_error": NOTHING}
    return {**found, "source": source, "rows": rows, "answered": rows, "intervals": rows, "groups": 1,
            "release_groups": 2, "refused": "", "mean_error": mean_error}  # fmt: skip


RUNS = [run("near", k, 10.0 * k, 10.1 * k) for k in (1, 2, 3)] + [run("far", 1, 10.0, 14.0)]
INPUTS = MeasuredInputs(
    study=MeasuredStudy(sources=SOURCES),
    measured_runs=MeasuredRuns.check(pd.DataFrame(RUNS)),
    source_scores=SourceScores.check(
        pd.DataFrame([score("near", 3, 0.01), score("far", 1, 0.4), score("all", 4, 0.11)])
    ),
    group_regrets=GroupRegrets.check(
        pd.DataFrame(
            [
                {"source": "near", "group": f"near: h {h}", "layouts": 3, "releases": h, "correlation": 1.0,
                 "fastest_s": 10.0, "chosen_s": chosen_s, "prudently_chosen_s": chosen_s,
                 "regret": chosen_s / 10.0 - 1}
                for h, chosen_s in ((1, 10.0), (2, 12.5))
            ]
        )
    ),
    tool_errors=ToolErrors.empty(),
    fitted_constants=FittedConstants.check(
        pd.DataFrame([{"of": "chip", "key": "sustained_clock", "value": 0.9, "sources": "near"}])
    ),
)  # fmt: skip


def sheet(anchor: str) -> Sheet:
    (found,) = [one for one in build_measured_report(INPUTS).sections if one.anchor == anchor]
    return next(block for block in found.blocks if isinstance(block, Sheet))


def test_the_page_says_the_errors_by_source_and_over_all_and_writes_its_tables(tmp_path: Path) -> None:
    report = build_measured_report(INPUTS)
    assert report.answer.sentence.startswith("11.0 % on average over 4 runs, from 1.0 % to 40.0 % by source")
    assert [fact for _, fact in report.answer.facts][1:] == [
        "of 4 runs in their interval, which is to hold 80 %",
        "lost on average by running the predicted fastest layout of 1 groups of one release",
        "lost on average by running the predicted fastest layout of 2 groups across releases",
    ]
    assert [row[0] for row in report.answer.sheet.rows] == ["far", "near", "all"]
    assert report.answer.sheet.marked == {2}
    assert not report.failures
    write_report(report, tmp_path)
    assert "Predicted against measured time" in (tmp_path / "validate.html").read_text()
    pd.testing.assert_frame_equal(MeasuredRuns.load(tmp_path / "measured_runs.parquet"), INPUTS.measured_runs)


def test_the_furthest_run_and_the_choice_that_loses_most_come_first() -> None:
    worst = sheet("worst")
    assert worst.rows[0][:3] == ("far", "1", "far 1")
    assert "+40.0 %" in worst.rows[0]
    assert (sheet("choices").rows[0][0], sheet("choices").rows[0][-1]) == ("near: h 2", "25.0 %")
    (found,) = [one for one in build_measured_report(INPUTS).sections if one.anchor == "choices"]
    assert "in 1 of 1 groups of one release, and in 0 of 1 groups" in str(found.blocks[0])


def test_runs_whose_times_look_simulated_are_not_in_the_answer() -> None:
    scores = pd.concat([INPUTS.source_scores, pd.DataFrame([score("all measured", 3, 0.01)])])
    answer = build_measured_report(replace(INPUTS, source_scores=SourceScores.check(scores))).answer
    assert answer.sentence.startswith("1.0 % on average over 3 runs")
    assert answer.sentence.endswith("count in their own line and in the last one only.")


def test_a_run_without_a_reason_a_lost_source_and_an_empty_interval_fail_the_checks() -> None:
    def failed(inputs: MeasuredInputs) -> list[str]:
        checks = run_checks(CHECKS, inputs)
        return checks.loc[~checks["passed"], "check"].tolist()

    runs = INPUTS.measured_runs
    assert failed(INPUTS) == []
    silent = runs.assign(predicted_s=np.where(runs["number"] == 2, np.inf, runs["predicted_s"]))
    assert failed(replace(INPUTS, measured_runs=silent)) == ["every run is predicted or says why not"]
    more = replace(INPUTS, study=MeasuredStudy(sources=(*SOURCES, "lost")))
    assert failed(more) == ["every source has runs and a score of all of them"]
    without = runs.assign(time_low_s=np.inf, time_high_s=np.inf)
    assert failed(replace(INPUTS, measured_runs=without)) == []
    thin = runs.assign(time_low_s=runs["time_high_s"])
    assert failed(replace(INPUTS, measured_runs=thin)) == ["intervals have a width and are where the time is"]


def test_the_report_of_a_study_has_the_scores_as_one_section_where_there_are_some(
    inputs: Inputs, findings: Findings
) -> None:
    (section,) = measured_section(replace(inputs, source_scores=INPUTS.source_scores), findings)
    assert section.anchor == "measured"
    assert list(measured_section(inputs, findings)) == []
