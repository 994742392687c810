"""The section on simulated plans shows each with its difference, and its checks can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.pages.document import Chart, Items, Prose, Section, Sheet
from phaze.pages.vega import draw
from phaze.report.checks import Evidence
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.plan_checks import SIMULATION_CHECKS
from phaze.report.planners import replayed
from phaze.tables import Simulations
from tests.unit.report.builder import assert_caught, of_kind, scaled

ALL = "every plan is simulated"
FITS = "simulated stages hold no more than planned, and fit the HBM"
WORK = "no simulated device works longer than the batch takes"
MOVED = "no simulated HBM works longer than the passes, no link more than the time"


@pytest.fixture(scope="module")
def section(inputs: Inputs, findings: Findings) -> Section:
    return next(replayed(inputs, findings))


def test_every_plan_is_shown_with_its_difference(section: Section, findings: Findings) -> None:
    times, shares = of_kind(section, Sheet)
    assert times.header[5:] == ("difference",)
    phaze = next(row for row in times.rows if row[2] == "Phaze")
    assert phaze[5:] == ("+11.0 %",)
    piper = next(row for row in times.rows if row[2] == "Piper")
    assert piper[5:] == ("-20.0 %",)
    assert len(times.rows) == len(shares.rows) >= len(findings.simulations)


def test_a_best_placement_is_drawn_over_time(section: Section, inputs: Inputs, findings: Findings) -> None:
    drawn = next(b for b in section.blocks if isinstance(b, Chart) and b.name == "timeline")
    assert "planned by phaze" in drawn.caption
    assert all(f'"kind":"{kind}"' in draw(drawn).spec for kind in ("forward", "backward"))
    held = next(b for b in section.blocks if isinstance(b, Chart) and b.name == "timeline-memory")
    assert "GiB a device" in draw(held).spec
    without = next(replayed(replace(inputs, pictures=None), findings))
    assert not any(isinstance(b, Chart) and b.name == "timeline" for b in without.blocks)


def test_what_memory_and_links_carry_is_shown(section: Section) -> None:
    shares = of_kind(section, Sheet)[1]
    at = [shares.header.index(name) for name in ("HBM", "links")]
    assert all(row[at[1]] == "43.8 %" and row[at[0]] != "0.0 %" for row in shares.rows)


def test_the_planners_factor_is_stated(section: Section) -> None:
    words = " ".join(block.text for block in section.blocks if isinstance(block, Prose))
    assert "charge the longest exchange of any stage" in words
    assert "counts 2 (d − 1)/d in each direction" in words


def test_the_farthest_plan_and_other_choices_are_named(section: Section) -> None:
    (items,) = of_kind(section, Items)
    assert "1.11× to 1.11× the planner's time" in items.sentences[0]
    assert "is simulated to be faster than Phaze's" in items.sentences[-1]


def test_a_study_without_simulations_has_no_section(inputs: Inputs, findings: Findings) -> None:
    assert not list(replayed(inputs, replace(findings, simulations=Simulations.empty())))


def test_a_defect_of_a_simulation_is_caught(evidence: Evidence) -> None:
    assert_caught(
        SIMULATION_CHECKS,
        evidence,
        (ALL, "simulations", lambda frame: frame.iloc[1:]),
        (ALL, "simulations", scaled("planned_s", 1.01)),
        (FITS, "simulation_stages", scaled("peak_bytes", 1.01)),
        (FITS, "simulation_stages", scaled("headroom_bytes", -1.0)),
        (WORK, "simulations", scaled("compute_share", 0.9)),
        (WORK, "simulation_stages", scaled("busy_s", 0.9)),
        (WORK, "simulation_stages", scaled("busy_share", 100.0)),
        (WORK, "simulations", scaled("bubble_share", -1.0)),
        (MOVED, "simulation_stages", scaled("hbm_share", 3.0)),
        (MOVED, "simulation_stages", scaled("link_share", 1.1)),
        (MOVED, "simulation_stages", lambda frame: frame.assign(link_share=1.5, slices_link_share=1.5)),
    )
