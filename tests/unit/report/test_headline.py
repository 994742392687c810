"""The first lines separate the gains of accelerator and planner, and begin with a loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.pages.words import times
from phaze.report.build import Headline, answer
from phaze.report.findings import COMMON, PER_MODEL, Findings, priced_designs, row_of
from phaze.report.inputs import Inputs
from phaze.search.winners import PRICED
from phaze.tables import Simulations
from tests.unit.report import builder
from tests.unit.report.toy_chips import BASELINE
from tests.unit.report.toy_placements import BATCH


def taken_s(findings: Findings, model: str, design: str) -> float:
    rows = priced_designs(builder.study(), findings).set_index(["model", "design"])
    return float(rows.loc[(model, design), "simulated_s"])


def test_without_a_baseline_there_is_no_gain(inputs: Inputs, findings: Findings) -> None:
    architectures = inputs.study.architectures.model_copy(update={"baseline": None})
    study = inputs.study.model_copy(update={"architectures": architectures})
    headline = Headline.of(replace(inputs, study=study), findings)
    assert headline.mean(COMMON, headline.baseline) == (0.0, "as planned")
    assert {headline.chip_gain(model) for model in study.models} == {0.0}
    assert {headline.planner_gain(model) for model in study.models} == {0.0}


def test_accelerators_are_compared_with_the_same_planner_on_both(inputs: Inputs, findings: Findings) -> None:
    found = Headline.of(inputs, findings)
    speedups = priced_designs(inputs.study, findings).set_index(["model", "design"])["speedup"]
    for model in inputs.study.models:
        chip = taken_s(findings, model, BASELINE) / taken_s(findings, model, PER_MODEL)
        planner = taken_s(findings, model, f"{BASELINE} expert") / taken_s(findings, model, BASELINE)
        assert found.chip_gain(model) == pytest.approx(chip)
        assert found.planner_gain(model) == pytest.approx(planner)
        assert chip * planner == pytest.approx(speedups[model, PER_MODEL])


def test_the_accelerators_gain_leads_and_the_planners_is_another_line(
    inputs: Inputs, findings: Findings
) -> None:
    found = Headline.of(inputs, findings)
    facts = answer(inputs, findings).facts
    for (value, words), (design, over, said) in zip(
        facts,
        (
            (PER_MODEL, found.baseline, "an accelerator for each workload over tpu-v4, the same planner"),
            (COMMON, found.baseline, "one accelerator for all of them over tpu-v4, the same planner"),
            (found.baseline, found.expert, "the planner over the hand-designed plan, both on tpu-v4"),
        ),
        strict=False,
    ):
        assert value == times(found.mean(design, over)[0])
        assert words.startswith(said)


def test_without_simulations_gains_are_those_of_certified_plans(inputs: Inputs, findings: Findings) -> None:
    none = replace(findings, simulations=Simulations.empty())
    found = Headline.of(inputs, none)
    rows = findings.results.set_index(["model", "design"])["samples_per_s"]
    for model in inputs.study.models:
        assert found.chip_gain(model) == pytest.approx(rows[model, PER_MODEL] / rows[model, BASELINE])
    assert all("as simulated" not in words for _, words in answer(inputs, none).facts[:3])


def slower(findings: Findings, factor: float, design: str, *models: str) -> Findings:
    """Findings in which plans of a design are slower than those on the baseline by a factor, for some
    models.
    """
    rows = findings.simulations.set_index(PRICED)
    for model in models:
        result = row_of(findings.results, model, design)
        assert result is not None
        key = tuple(result[PRICED])
        rows.loc[key, "samples_per_s"] = BATCH / (factor * taken_s(findings, model, BASELINE))
    return replace(findings, simulations=rows.reset_index())


def test_a_best_accelerator_that_loses_is_the_first_sentence(inputs: Inputs, findings: Findings) -> None:
    first, second, *_ = models = inputs.study.models
    assert "slower than the baseline" not in answer(inputs, findings).sentence
    lost = answer(inputs, slower(findings, 1 / 0.985, PER_MODEL, first, second)).sentence
    assert lost.startswith(
        "The best accelerator found is slower than the baseline tpu-v4 with the same planner for "
        f"{first} (1.5 %) and {second} (1.5 %). "
    )
    common = answer(inputs, slower(findings, 1 / 0.985, COMMON, *models)).sentence
    assert common.startswith(
        "The one accelerator for all 3 workloads is 1.5 % slower than the baseline tpu-v4"
    )


def test_of_many_slower_workloads_only_the_slowest_is_named(inputs: Inputs, findings: Findings) -> None:
    first, *others = inputs.study.models
    lost = answer(inputs, slower(slower(findings, 1.02, PER_MODEL, *others), 1.25, PER_MODEL, first)).sentence
    assert f"same planner for 3 of 3 workloads, most for {first} (20.0 %). " in lost
