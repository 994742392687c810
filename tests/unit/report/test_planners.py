"""The section on planners shows the plans, and marks the answer of another planner as such."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.pages.document import Section, Sheet
from phaze.report.build import answer
from phaze.report.checks import Evidence
from phaze.report.findings import COMMON, PER_MODEL, Findings, row_of
from phaze.report.inputs import Inputs
from phaze.report.plan_checks import PLANNER_CHECKS
from phaze.report.planners import chosen, compared, study_planner_sentence
from phaze.search.winners import ChipChoice, Outcome, choose_chips, choose_winner
from phaze.tables import PLANNERS, Placements, Plans
from tests.unit.report.builder import assert_caught, of_kind, scaled, with_planner

PARTS = "stages of every plan are the layers, and sum to it"
FITS = "stages of every plan fit the HBM"
SLOWEST = "the slowest stage of a plan bounds its time"
FLIGHT = "microbatches in flight follow from the data widths"


@pytest.fixture(scope="module")
def section(inputs: Inputs, findings: Findings) -> Section:
    return next(compared(inputs, findings))


def sheet(section: Section, number: int) -> Sheet:
    return of_kind(section, Sheet)[number]


def test_every_workload_and_design_is_shown_with_every_planner(section: Section, inputs: Inputs) -> None:
    rows = sheet(section, 1).rows
    shown = {(row[0], row[1]) for row in rows}
    assert {model for model, _ in shown} == set(inputs.study.models)
    assert {design for _, design in shown} == {PER_MODEL, COMMON, "tpu-v4"}
    assert len(rows) == len(PLANNERS) * len(shown)
    assert [row[2] for row in rows[:4]] == ["Phaze", "Piper", "equal stages", "experts"]


def test_ratios_are_throughputs_over_phazes(section: Section) -> None:
    ratios = sheet(section, 0)
    assert ratios.header[3:] == ("Piper", "equal stages", "hand-designed")
    assert {row[3:] for row in ratios.rows} == {("1.43×", "0.91×", "0.77×")}
    assert [ratios.rows[i][1] for i in sorted(ratios.marked)] == [PER_MODEL] * 3


def test_a_study_without_plans_has_no_section(inputs: Inputs, findings: Findings) -> None:
    assert not list(compared(inputs, replace(findings, plans=Plans.empty())))


def test_the_answer_is_phazes_unless_asked_otherwise(inputs: Inputs, findings: Findings) -> None:
    assert study_planner_sentence(inputs, findings) == ""
    assert "certificate does not cover" not in answer(inputs, findings).details


def test_an_answer_by_another_planner_is_not_certified(inputs: Inputs, findings: Findings) -> None:
    asked = with_planner(inputs, "piper")
    sentence = answer(asked, findings).details
    assert "By the planner Piper, which the certificate does not cover" in sentence
    for model, row in chosen(asked, findings).set_index("model").iterrows():
        assert f"{model} on {row['architecture']}" in sentence
        within = findings.plans[(findings.plans["model"] == model) & (findings.plans["planner"] == "piper")]
        assert row["samples_per_s"] == within["samples_per_s"].max()


def test_what_is_too_large_is_no_answer(inputs: Inputs, findings: Findings) -> None:
    small = replace(inputs.cluster, area_limit_um2=1.0)
    asked = with_planner(replace(inputs, clusters={"paper": small}), "piper")
    assert chosen(asked, findings).empty
    assert study_planner_sentence(asked, findings) == ""


def cluster_of(inputs: Inputs, model: str) -> Outcome:
    placements = inputs.cluster.placements
    return replace(inputs.cluster, placements=placements[placements["model"] == model])


CHOICE = ChipChoice(baseline="tpu-v4", named=("tpu-v4", "phaze-common"), best=3, tolerance=0.01)


def test_all_planners_plan_on_the_chips_of_the_results(inputs: Inputs, findings: Findings) -> None:
    for model in inputs.study.models:
        chips = choose_chips(cluster_of(inputs, model), CHOICE)
        rows = [row_of(findings.results, model, design) for design in (PER_MODEL, COMMON, "tpu-v4")]
        shown = {(row["architecture"], row["hbm_gib"]) for row in rows if row is not None}
        assert shown <= set(chips.compared)
        assert not set(chips.compared) & set(chips.others)


def test_the_planner_of_the_study_may_choose_among_the_best_and_the_named(inputs: Inputs) -> None:
    cluster = cluster_of(inputs, "bert-large")
    chips = choose_chips(cluster, CHOICE)
    winner = choose_winner(cluster, CHOICE.tolerance)
    assert winner is not None
    ranked = [hbm for name, hbm in (*chips.compared, *chips.others) if name not in CHOICE.named]
    assert len(ranked) >= 3
    assert winner["hbm_gib"] in ranked
    assert {name for name, _ in (*chips.compared, *chips.others)} >= {"tpu-v4"}


def test_without_a_placement_there_is_still_something_to_plan(inputs: Inputs) -> None:
    empty = replace(inputs.cluster, placements=Placements.empty(), common=None)
    assert choose_chips(empty, CHOICE).compared == ()


def test_a_defect_of_a_plan_is_caught(evidence: Evidence) -> None:
    assert_caught(
        PLANNER_CHECKS,
        evidence,
        ("every planner has a plan or a reason for none", "plans", lambda f: f[f["planner"] != "equal"]),
        (PARTS, "plans", scaled("devices_used", 2, "piper")),
        (PARTS, "plan_stages", scaled("last_layer", 2, "phaze")),
        (PARTS, "plan_stages", scaled("data", 2, "piper")),
        (FITS, "plan_stages", scaled("memory_bytes", 2, "piper")),
        (FITS, "plan_stages", scaled("headroom_bytes", -1, "equal")),
        (SLOWEST, "plan_stages", scaled("time_per_sample_s", 1.1, "piper")),
        (SLOWEST, "plan_stages", scaled("time_per_sample_s", 9, "phaze")),
        (FLIGHT, "plan_stages", scaled("in_flight", 2, "piper")),
        ("Phaze's plan is that of the results", "plans", scaled("time_per_sample_s", 0.99, "phaze")),
        ("no equal or experts' stages beat Phaze's plan", "plans", scaled("time_per_sample_s", 0.8, "equal")),
    )
