"""Statements on search strategies follow from their trials; throughput against area, and its tables."""

import numpy as np
import pandas as pd
import pytest

from phaze.pages.document import Sheet
from phaze.pages.page import Report
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.searches import choose_by_hysteresis, curve_of, summarise_searches
from phaze.tables import Searches, Trials, Walks
from tests.unit.report.builder import THROUGHPUTS, of_kind


def sheets(report: Report, anchor: str) -> list[Sheet]:
    return of_kind(next(section for section in report.sections if section.anchor == anchor), Sheet)


def test_a_level_chooses_the_best_that_it_visits(findings: Findings) -> None:
    walks = findings.walks[findings.walks["scope"] == "whole"].set_index("hysteresis")
    assert walks["visited"].tolist() == list(range(3, 11))
    expected = [max(THROUGHPUTS[:visited]) for visited in range(3, 11)]
    assert walks["samples_per_s"].tolist() == expected
    assert walks["architecture"].nunique() == 3


def test_equal_throughputs_go_to_the_smaller_area(inputs: Inputs) -> None:
    flat = inputs.trials.assign(samples_per_s=7.0, best_samples_per_s=7.0)
    walks = choose_by_hysteresis(flat)
    assert (walks["area_um2"] == 1e6 * (279.0 - walks["visited"] + 1)).all()


def test_a_strategy_is_summed_up_by_what_it_finds_and_when(findings: Findings) -> None:
    rows = findings.searches.set_index("strategy")
    assert rows.loc["certified", ["evaluations", "near", "optimal"]].tolist() == [2, 1, 1]
    first, second = rows.loc["hysteresis-1"], rows.loc["hysteresis-8"]
    assert first["final"] == pytest.approx(1100 / 1400)
    assert (first["optimal"], second["optimal"]) == (np.inf, 6.0)


def test_a_model_that_fits_nowhere_has_no_optimum_to_be_measured_by(inputs: Inputs) -> None:
    nowhere = inputs.trials[inputs.trials["strategy"] != "certified"]
    nowhere = nowhere.assign(samples_per_s=0.0, best_samples_per_s=0.0)
    assert summarise_searches(nowhere, 0.01).empty
    pd.testing.assert_frame_equal(summarise_searches(Trials.empty(), 0.01), Searches.empty())
    pd.testing.assert_frame_equal(choose_by_hysteresis(Trials.empty()), Walks.empty())


def test_every_level_has_what_it_chooses_and_saves(report: Report) -> None:
    chosen, saved = sheets(report, "walk")
    assert [row[0] for row in chosen.rows] == [str(level) for level in range(1, 9)]
    assert [row[2] for row in saved.rows] == [f"{10 / visited:.2f}×" for visited in range(3, 11)]


def test_every_strategy_has_a_row_and_the_certified_one_stands_out(report: Report) -> None:
    (sheet,) = sheets(report, "strategies")
    names = [row[0] for row in sheet.rows]
    assert set(names) == {"certified", *(f"hysteresis-{h}" for h in range(1, 9))}
    assert sheet.marked == {names.index("certified")}


def test_the_curve_is_the_best_of_every_area_limit() -> None:
    """At any limit it is the largest throughput of all members within the limit."""
    rng = np.random.default_rng(2)
    members = pd.DataFrame({"area_um2": rng.integers(1, 30, 60), "samples_per_s": rng.random(60)})
    curve = curve_of(members)
    assert curve["samples_per_s"].is_monotonic_increasing
    for limit in range(1, 31):
        read = curve.loc[curve["area_um2"] <= limit, "samples_per_s"].max()
        within = members.loc[members["area_um2"] <= limit, "samples_per_s"].max()
        assert read == within or np.isnan(within)


def test_the_best_by_every_objective_stand_in_the_report(findings: Findings, report: Report) -> None:
    """For the largest space, with their accelerators."""
    text = report.markdown.partition("## Throughput, area and energy")[2].partition("\n## ")[0]
    largest = findings.fronts[findings.fronts["area_limit_um2"] == findings.fronts["area_limit_um2"].max()]
    for _, mine in largest.groupby("model"):
        for flag, name in (("throughput", "throughput"), ("energy", "energy per sample")):
            assert f"| {name} | {mine.loc[mine[flag], 'architecture'].iloc[0]} |" in text
