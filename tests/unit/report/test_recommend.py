"""The plan with the smallest simulated time is recommended, with the loss of the certified one."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from phaze.pages.document import Items, Section, Sheet
from phaze.pages.verdicts import run_checks
from phaze.report.build import answer
from phaze.report.checks import Evidence
from phaze.report.findings import COMMON, PER_MODEL, Findings
from phaze.report.inputs import Inputs
from phaze.report.plan_checks import SIMULATION_CHECKS
from phaze.report.recommend import recommend, recommended
from phaze.tables import Recommendations, Simulations
from tests.unit.report.builder import of_kind, with_planner

CHECK = "no simple plan beats the certified plan as planned and by 5 % in the simulator"


def taking(inputs: Inputs, planner: str, ratio: float) -> Inputs:
    """Return inputs in which a planner's simulated time is a multiple of its planned time."""
    found = inputs.simulations.copy()
    mine = found["planner"] == planner
    found["simulated_s"] = found["simulated_s"].where(~mine, ratio * found["planned_s"])
    return replace(inputs, simulations=Simulations.check(found))


def row_of(inputs: Inputs, findings: Findings) -> pd.Series:
    """Return the recommendation for the first workload on its best accelerator."""
    rows = recommend(inputs, findings.results).set_index(["model", "design"])
    return rows.xs((inputs.study.models[0], PER_MODEL))


def test_the_least_simulated_time_is_recommended(inputs: Inputs, findings: Findings) -> None:
    row = row_of(inputs, findings)
    times = {"phaze": row["certified_simulated_s"], "equal": row["equal_s"], "expert": row["expert_s"]}
    assert row["planner"] == "equal" == min(times, key=lambda planner: times[planner])
    assert row["planned_s"] > row["certified_planned_s"]
    assert row["simulated_s"] == row["equal_s"] < row["certified_simulated_s"]
    assert row["lost"] == pytest.approx(1.11 / 0.99 - 1)


def test_a_certified_plan_that_the_simulator_agrees_with_is_recommended(
    inputs: Inputs, findings: Findings
) -> None:
    row = row_of(taking(inputs, "phaze", 0.96), findings)
    assert (row["planner"], row["lost"]) == ("phaze", 0.0)
    assert row["simulated_s"] == row["certified_simulated_s"]


def test_a_plan_without_flush_is_recommended_only_where_it_is_asked_for(
    inputs: Inputs, findings: Findings
) -> None:
    assert row_of(inputs, findings)["piper_s"] < row_of(inputs, findings)["simulated_s"]
    asked = row_of(with_planner(inputs, "piper"), findings)
    assert asked["planner"] == "piper"
    assert asked["simulated_s"] == asked["piper_s"]
    assert asked["lost"] == row_of(inputs, findings)["lost"]


def test_speed_ups_compare_simulated_times(inputs: Inputs, findings: Findings) -> None:
    rows = recommend(inputs, findings.results).set_index(["model", "design"])
    baseline = inputs.study.architectures.baseline
    for model in inputs.study.models:
        reference = rows.loc[(model, baseline), "expert_s"]
        for design in (PER_MODEL, COMMON):
            row = rows.loc[(model, design)]
            assert row["speedup"] == pytest.approx(reference / row["simulated_s"])


def test_the_answer_leads_with_the_recommended_plan_and_both_times(
    inputs: Inputs, findings: Findings
) -> None:
    found = answer(inputs, findings)
    at = {name: number for number, name in enumerate(found.sheet.header)}
    row = found.sheet.rows[0]
    assert row[at["plan"]] == "equal stages"
    assert (row[at["planned"]], row[at["simulated"]]) == ("27.3 ms", "24.5 ms")
    about = [words for _, words in found.facts]
    assert any(value == "12.1 %" and "proven plan loses" in words for value, words in found.facts)
    assert any("as simulated" in words and "as planned" in words for words in about)


def test_a_study_without_simulations_leads_with_what_is_planned(inputs: Inputs, findings: Findings) -> None:
    none = replace(findings, recommendations=Recommendations.empty(), simulations=Simulations.empty())
    found = answer(replace(inputs, simulations=Simulations.empty()), none)
    at = {name: number for number, name in enumerate(found.sheet.header)}
    assert {row[at["plan"]] for row in found.sheet.rows[:-1]} == {"certified"}
    assert {row[at["simulated"]] for row in found.sheet.rows} == {""}
    assert not list(recommended(inputs, none))


@pytest.fixture(scope="module")
def section(inputs: Inputs, findings: Findings) -> Section:
    return next(recommended(inputs, findings))


def test_what_the_certified_plan_loses_stands_beside_pipers_time(section: Section) -> None:
    (items,) = of_kind(section, Items)
    assert items.sentences[0].startswith("3 of 3 certified plans lose more than 5 % in the simulator")
    assert (
        "12.1 % (24.8 ms as planned, 27.5 ms as simulated; theirs 24.5 ms as simulated)" in items.sentences[0]
    )
    plans, losses = of_kind(section, Sheet)
    differs = plans.header.index("simulated over planned")
    assert any(row[differs] == "-10.0 %" for row in plans.rows)
    at = {name: number for number, name in enumerate(losses.header)}
    for row in losses.rows:
        assert row[at["slower by"]] == "+12.1 %"
        assert row[at["simulated over planned"]] == "+11.0 %"
    assert "Piper (no flush)" in at


def check(inputs: Inputs, findings: Findings) -> pd.Series:
    evidence = Evidence(inputs, findings.results, findings.energies)
    return run_checks({CHECK: SIMULATION_CHECKS[CHECK]}, evidence).iloc[0]


def test_a_loss_to_a_plan_that_the_formula_puts_behind_passes_the_check(
    inputs: Inputs, findings: Findings
) -> None:
    row = row_of(inputs, findings)
    assert row["lost"] > 0.05
    assert row["unexplained"] == 0
    assert check(inputs, findings)["passed"]


def test_a_loss_to_a_plan_that_the_formula_prefers_fails_the_check_with_its_figures(
    inputs: Inputs, findings: Findings
) -> None:
    simulated = inputs.simulations.copy()
    certified = simulated["planner"] == "phaze"
    simulated.loc[certified, "planned_s"] *= 2
    simulated.loc[certified, "simulated_s"] = simulated["planned_s"]
    wrong = replace(inputs, simulations=Simulations.check(simulated))
    found = check(wrong, findings)
    assert not found["passed"]
    first = row_of(wrong, findings)
    assert first["unexplained"] > 0.5
    assert found["example"].startswith(
        f"{inputs.study.models[0]}, {COMMON}: the certified plan is planned at 49.6 ms"
    )
    for words in ("simulated at 49.6 ms", "other stages at 24.5 ms", "loses 102.0 %"):
        assert words in found["example"]
