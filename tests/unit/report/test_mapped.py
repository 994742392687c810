"""The section on networks shows every best plan before and after mapping, and its checks can fail."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from phaze.pages.document import Items, Section, Sheet
from phaze.report.checks import Evidence
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.plan_checks import MAPPED_CHECKS
from phaze.report.planners import on_networks, side_by_side
from phaze.tables import PlanMaps
from tests.unit.report.builder import assert_caught, of_kind

THERE, FASTEST, LONGER = MAPPED_CHECKS


@pytest.fixture(scope="module")
def section(inputs: Inputs, findings: Findings) -> Section:
    return next(on_networks(inputs, findings))


def test_every_best_plan_is_shown_on_every_network_with_what_mapping_gains(
    section: Section, inputs: Inputs
) -> None:
    (sheet,) = of_kind(section, Sheet)
    assert len(sheet.rows) == 2 * 2 * inputs.plan_maps["model"].nunique()
    torus, tree = (next(row for row in sheet.rows if row[2] == name) for name in ("tpu-v4", "a100-selene"))
    assert (torus[4], torus[10:]) == ("stages first", ("4.5 %", "0.0 %"))
    assert (tree[4], tree[10:]) == ("blocks of 2 stages", ("1.0 %", "15.8 %"))


def test_the_gain_and_the_cost_of_the_other_order_are_in_words(section: Section) -> None:
    (items,) = of_kind(section, Items)
    tree, torus = items.sentences
    assert tree.startswith("a100-selene: over all-reduce first, mapping saves 1.0 % of a batch on average")
    assert "Stages first differs from all-reduce first by +17.6 %" in tree
    assert "by -4.5 %" in torus


def test_plans_that_tie_are_shown_once_on_the_accelerator_of_the_results(
    inputs: Inputs, findings: Findings
) -> None:
    again = findings.plan_maps.assign(architecture="a-twin")
    both = replace(findings, plan_maps=pd.concat([again, findings.plan_maps], ignore_index=True))
    shown = side_by_side(inputs, both)
    assert len(shown) == len(side_by_side(inputs, findings))
    assert "a-twin" not in set(shown["architecture"])


def test_a_study_without_networks_has_no_section(inputs: Inputs, findings: Findings) -> None:
    assert not list(on_networks(inputs, replace(findings, plan_maps=PlanMaps.empty())))


def test_a_defect_of_a_mapping_is_caught(evidence: Evidence) -> None:
    assert_caught(
        MAPPED_CHECKS,
        evidence,
        (THERE, "plan_maps", lambda frame: frame[frame["system"] != "tpu-v4"]),
        (THERE, "plan_maps", lambda frame: frame[frame["planner"] != "phaze"]),
        (FASTEST, "plan_maps", lambda frame: frame.assign(chosen=True)),
        (FASTEST, "plan_maps", lambda frame: frame.assign(chosen=frame["way"] == "cs-map")),
        (FASTEST, "plan_maps", lambda frame: frame[frame["way"] != "p2p-map"]),
        (LONGER, "plan_maps", lambda frame: frame.assign(alone_s=1.2 * frame["simulated_s"])),
    )
