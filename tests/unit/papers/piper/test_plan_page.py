"""The page of plans: every figure and table, separate claims, and checks that can fail."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.pages.page import write_report
from phaze.pages.verdicts import run_checks
from phaze.papers.case_charts import relative
from phaze.papers.case_checks import PLAN_CHECKS
from phaze.papers.cases import read_curve
from phaze.papers.page import build_page
from phaze.papers.piper import PlanInputs, as_printed, extra_time, piper_paper
from phaze.spec.planning import PlanStudy
from tests.unit.papers.parts import parts
from tests.unit.papers.piper.toy_plans import PLANS, PUBLISHED, toy_inputs


@pytest.fixture(scope="module")
def inputs() -> PlanInputs:
    return toy_inputs()


def claims(inputs: PlanInputs) -> dict[str, tuple[str, bool]]:
    table = piper_paper(inputs).claims
    return {row["statement"]: (row["ours"], row["holds"]) for _, row in table.iterrows()}


def failed(inputs: PlanInputs) -> set[str]:
    table = run_checks(PLAN_CHECKS, inputs)
    return set(table.loc[~table["passed"], "check"])


def test_every_check_passes_on_sound_plans_and_looks_at_something(inputs: PlanInputs) -> None:
    table = run_checks(PLAN_CHECKS, inputs)
    assert table.loc[~table["passed"], ["check", "example"]].to_numpy().tolist() == []
    assert (table["rows"] > 0).all()


def changed(frame: pd.DataFrame, where: dict[str, object], **values: object) -> pd.DataFrame:
    """Return a frame with other values in the first row that matches."""
    found = (frame[list(where)] == pd.Series(where)).all(axis=1)
    result = frame.copy()
    result.loc[found.idxmax(), list(values)] = list(values.values())
    return result


EQUI = {"case": "bars", "planner": "equi", "memory_gib": 8.0, "devices": 8}


@pytest.mark.parametrize("table", ["cases", "curves", "pipelines"])
def test_a_wrong_number_fails_its_check(inputs: PlanInputs, table: str) -> None:
    for where, values, check in {
        "cases": (
            (EQUI, {"time_per_sample": 1.0}, "no baseline is better than Piper"),
            ({**EQUI, "devices": 16}, {"time_per_sample": 2.0}, "more devices are never slower"),
        ),
        "curves": (
            ({"planner": "equi", "devices": 8}, {"time_per_sample": 1.0}, "no curve of a baseline"),
            ({"planner": "equi", "devices": 8}, {"time_per_sample": 1.41}, "curves agree with plans"),
        ),
        "pipelines": (
            ({"case": "bars", "stage": 1}, {"layers": "1"}, "hold every layer once"),
            ({"case": "bars", "stage": 0}, {"time_per_sample": 9.0}, "hold every layer once"),
            ({"case": "bars", "stage": 0}, {"in_flight": 1}, "with the microbatches in flight"),
            ({"case": "bars", "stage": 0}, {"memory_bytes": 2.0**31}, "fits into memory"),
            ({"planner": "no-tp"}, {"tensor": 2}, "baselines forgo what they must"),
            ({"planner": "equi"}, {"data": 2}, "baselines forgo what they must"),
        ),
    }[table]:
        wrong = replace(inputs, **{table: changed(getattr(inputs, table), where, **values)})
        (name,) = (name for name in PLAN_CHECKS if check in name)
        assert not all(holds for holds, _ in PLAN_CHECKS[name](wrong)), check


def test_a_missing_row_fails_its_check(inputs: PlanInputs) -> None:
    assert next(iter(PLAN_CHECKS)) in failed(replace(inputs, cases=inputs.cases.iloc[1:]))


def test_claims_hold_where_the_toy_was_made_so(inputs: PlanInputs) -> None:
    found = claims(inputs)
    assert all(holds for _, holds in found.values()), found
    assert found["BERT, 8 GB, N = 16, mode program: without TP nothing is gained beyond k = N"] == (
        "k = 16",
        True,
    )
    assert any(ours.startswith("2 to the printed digits") for ours, _ in found.values())


def test_a_claim_that_does_not_hold_is_said_so(inputs: PlanInputs) -> None:
    """Another digit in the table, and a curve of equal stages twice as slow."""
    row = {"case": "digits", "mode": "table-1", "planner": "piper", "devices": 8}
    digit = changed(inputs.cases, row, time_per_sample=1.25001)
    slow = inputs.curves.assign(
        time_per_sample=inputs.curves["time_per_sample"].where(inputs.curves["planner"] != "equi", 99.0)
    )
    found = claims(replace(inputs, cases=digit, curves=slow))
    assert {statement for statement, (_, holds) in found.items() if not holds} == {
        next(s for s in found if s.startswith("GNMT: times of Piper and equi")),
        next(s for s in found if "equi takes 10 to 15 % more time" in s),
    }


def test_without_a_publication_there_are_no_claims() -> None:
    report = build_page([piper_paper(toy_inputs(published=None))])
    assert report.tables["case-claims"].empty
    assert not report.failures


def test_the_page_has_every_section_and_table_once_and_is_written_equally(
    inputs: PlanInputs, tmp_path: Path
) -> None:
    report = build_page([piper_paper(inputs)])
    write_report(report, tmp_path)
    page, text = (tmp_path / "papers.html").read_text(), (tmp_path / "papers.md").read_text()
    for title in ("(Figure 1)", "(Figure 2)", "(Table 1)", "Checks"):
        assert len(re.findall(rf"<h3>[^<]*{re.escape(title)}", page)) == 1
    assert page.count('class="plot"') == 2
    assert build_page([piper_paper(inputs)]).page == page
    assert "| 8 | 1 GB | 1.25 | 1.25 | 1.24875 | OOM | OOM | OOM |" in text
    assert "papers.html" in text
    assert {path.stem for path in tmp_path.iterdir()} == {*report.written, "papers"}


def test_what_stands_in_and_what_is_missing_is_said() -> None:
    """Without the folder one input is ours, and the other is missing with the reason."""
    plans = PLANS.model_dump(mode="json")
    plans["folder"] = None
    plans["inputs"]["bert"]["own"] = {"workload": "w", "microbatch": 4, "architecture": "tpu-v4"}
    last = parts(piper_paper(toy_inputs(PlanStudy.parse(plans, "toy"), PUBLISHED)))
    assert "digits: its input gnmt is only in the authors' file gnmt.json" in str(last["What is missing"])
    assert "Figure 9 is a picture without values." in str(last["What is missing"])
    assert "BERT is ours: w with microbatch 4 as tpu-v4" in str(last["How these numbers are made"])
    assert "Throughput: BERT (ours, on tpu-v4) (Figure 1)" in last


def test_six_significant_digits_decide() -> None:
    values = (31.63601, 31.6364, 10.26, np.inf, np.nan)
    assert [as_printed(value) for value in values] == ["31.636", "31.6364", "10.26", "OOM", "–"]


def test_a_curve_reads_as_the_step_at_or_below() -> None:
    steps = pd.DataFrame({"devices": [2, 4], "time_per_sample": [3.0, 1.0]})
    assert read_curve(steps, np.arange(1, 6)).tolist() == [np.inf, 3.0, 3.0, 1.0, 1.0]


def test_extra_time_counts_where_both_have_a_plan(inputs: PlanInputs) -> None:
    assert extra_time(inputs.curves, np.arange(1, 33)) == pytest.approx(np.full(32, 0.125))


def test_relative_throughput_is_one_for_the_best_and_none_without_a_plan(inputs: PlanInputs) -> None:
    rows = inputs.cases[inputs.cases["case"] == "bars"]
    share = relative(rows)
    assert (share[rows["planner"] == "piper"] == 1).all()
    assert (share[rows["status"] == "infeasible"] == 0).all()
