"""The section on prices shows every compared placement with its claim and its price; its checks can fail."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from phaze.pages.document import Chart, Items, Section, Sheet
from phaze.pages.vega import draw
from phaze.report.build import answer
from phaze.report.checks import Evidence
from phaze.report.findings import COMMON, PER_MODEL, Findings, baseline_design, priced_designs
from phaze.report.inputs import Inputs
from phaze.report.priced import PRICE_CHECKS, placement_picture, priced_section
from phaze.search.winners import PRICED, Outcome, choose_winner, compared_placements
from phaze.tables import Placements, Simulations
from tests.unit.formulas.test_priced import CHIPS, placement, pricing
from tests.unit.report.builder import assert_caught, of_kind, scaled

ALL = "every compared placement has a price"
PARTS = "passes, communication, update and waits make up a priced batch"
TOLERANCE = 0.01


@pytest.fixture(scope="module")
def section(inputs: Inputs, findings: Findings) -> Section:
    return next(priced_section(inputs, findings))


def cluster_of(inputs: Inputs, model: str) -> Outcome:
    placements = inputs.cluster.placements
    return replace(inputs.cluster, placements=placements[placements["model"] == model])


def test_every_compared_placement_is_shown_with_its_difference(
    section: Section, inputs: Inputs, findings: Findings
) -> None:
    times, shares = of_kind(section, Sheet)
    at = {name: number for number, name in enumerate(times.header)}
    differences = {(row[0], row[1]): row[at["difference"]] for row in times.rows}
    baseline, expert = inputs.study.architectures.baseline, baseline_design(inputs.study)
    for model in inputs.study.models:
        assert {differences[model, design] for design in (PER_MODEL, COMMON, baseline)} == {"+11.0 %"}
        assert differences[model, expert] == "-10.0 %"
    assert len(times.rows) == len(shares.rows) >= len(findings.simulations)


def test_speed_ups_compare_simulated_times(inputs: Inputs, findings: Findings) -> None:
    rows = priced_designs(inputs.study, findings).set_index(["model", "design"])
    for model in inputs.study.models:
        reference = rows.loc[(model, baseline_design(inputs.study)), "simulated_s"]
        for design in (PER_MODEL, COMMON):
            row = rows.loc[(model, design)]
            assert row["speedup"] == pytest.approx(reference / row["simulated_s"])


def test_the_answer_has_both_times(inputs: Inputs, findings: Findings) -> None:
    found = answer(inputs, findings)
    at = {name: number for number, name in enumerate(found.sheet.header)}
    row = found.sheet.rows[0]
    assert (row[at["planned"]], row[at["simulated"]]) == ("24.8 ms", "27.5 ms")
    about = [words for _, words in found.facts]
    assert any("as simulated" in words and "as planned" in words for words in about)


def test_a_study_without_prices_answers_with_what_is_planned(inputs: Inputs, findings: Findings) -> None:
    none = replace(findings, simulations=Simulations.empty())
    found = answer(replace(inputs, simulations=Simulations.empty()), none)
    at = found.sheet.header.index("simulated")
    assert {row[at] for row in found.sheet.rows} == {""}
    assert not list(priced_section(inputs, none))


def test_a_best_placement_is_drawn_over_time(section: Section, inputs: Inputs, findings: Findings) -> None:
    drawn = next(b for b in section.blocks if isinstance(b, Chart) and b.name == "timeline")
    assert all(f'"kind":"{kind}"' in draw(drawn).spec for kind in ("forward", "backward"))
    held = next(b for b in section.blocks if isinstance(b, Chart) and b.name == "timeline-memory")
    assert "GiB a device" in draw(held).spec
    without = next(priced_section(replace(inputs, pictures=None), findings))
    assert not any(isinstance(b, Chart) and b.name == "timeline" for b in without.blocks)


def test_the_picture_of_a_placement_is_that_of_its_price() -> None:
    drawn = placement_picture({"bert-large": pricing()}, CHIPS, *placement())
    assert "bert-large on tpu-v4, 32 GiB: {p, d, t} = {2, 2, 2}, 1f1b" in drawn.title
    assert drawn.time_s == pytest.approx(pricing().price(CHIPS.iloc[0], *placement()).timeline.time_s)


def test_the_range_of_the_differences_is_stated(section: Section) -> None:
    (items,) = of_kind(section, Items)
    assert "1.11× to 1.11× the formula's" in items.sentences[0]


def test_the_placements_of_the_results_are_compared(inputs: Inputs, findings: Findings) -> None:
    baseline = inputs.study.architectures.baseline
    designs = (PER_MODEL, COMMON, baseline, baseline_design(inputs.study))
    for model in inputs.study.models:
        compared = compared_placements(cluster_of(inputs, model), baseline, TOLERANCE)
        assert not compared.duplicated(PRICED).any()
        results = findings.results[findings.results["design"].isin(designs)]
        results = results[(results["model"] == model) & (results["status"] == "placed")]
        keys = set(map(tuple, compared[[*PRICED, "layout"]].to_numpy()))
        assert set(map(tuple, results[[*PRICED, "layout"]].to_numpy())) <= keys


def test_the_winner_is_compared_and_nothing_without_placements(inputs: Inputs) -> None:
    cluster = cluster_of(inputs, "bert-large")
    winner = choose_winner(cluster, TOLERANCE)
    assert winner is not None
    assert winner["architecture"] in set(compared_placements(cluster, None, TOLERANCE)["architecture"])
    empty = replace(cluster, placements=Placements.empty(), common=None)
    assert compared_placements(empty, "tpu-v4", TOLERANCE).empty


def test_a_defect_of_a_price_is_caught(evidence: Evidence) -> None:
    def without_best(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["planner"] != "phaze"]

    assert_caught(
        PRICE_CHECKS,
        evidence,
        (ALL, "simulations", scaled("planned_s", 1.01)),
        (PARTS, "simulations", scaled("passes_share", 0.9)),
        (PARTS, "simulations", scaled("bubble_share", 2.0)),
    )
    fewer = replace(evidence.inputs, simulations=without_best(evidence.inputs.simulations))
    assert not all(holds for holds, _ in PRICE_CHECKS[ALL](replace(evidence, inputs=fewer)))
