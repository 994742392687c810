"""A study of several clusters gives the results of separate studies, and shares independent results."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from tests.workflow.conftest import Prepare
from tests.workflow.folders import STUDY, Folder
from tests.workflow.studies import FAST

pytestmark = [pytest.mark.workflow, pytest.mark.long]

PAPER = STUDY["scenarios"]["paper"]
GRID = STUDY["architectures"]["grid"]
LARGER = PAPER | {"devices": 16, "global_batch": 64}
OTHER = LARGER | {
    "network_bandwidth_bytes_per_s": 1e11,
    "hbm_bandwidth_bytes_per_s": 2.4e12,
    "area_limit_mm2": 60,
}


@pytest.fixture(scope="session")
def several(prepare: Prepare, finished: Folder) -> Folder:
    """Return a folder in which the small study has run for one cluster, and then for three."""
    scenarios = {"paper": PAPER, "larger": LARGER, "other": OTHER}
    return prepare("several", like=finished, scenarios=scenarios, readings={"fast": FAST})


def results_of(folder: Folder) -> pd.DataFrame:
    """Return the results of every scenario by scenario and design."""
    table = folder.reported("comparisons")
    return table.set_index(["scenario", "design"])


def test_the_first_scenario_is_not_touched_by_the_others(several: Folder, finished: Folder) -> None:
    """None of its jobs runs again, and its part of the report is the same."""
    logs = {
        path: path.relative_to(finished.path)
        for path in (finished.path / "results/logs").rglob("tp1-b2/*.log")
    }
    assert logs
    assert all(path.read_bytes() == (several.path / log).read_bytes() for path, log in logs.items())
    alone, together = finished.tables(), several.tables()
    shared = [path for path in alone if path.split("/")[0] not in ("report", "readings")]
    assert len(shared) > 10
    for path in [*shared, "report/results.parquet", "report/rankings.parquet"]:
        assert alone[path] == together[path], path


def test_a_scenario_is_what_a_study_of_its_own_finds(several: Folder, prepare: Prepare) -> None:
    alone, together = (
        prepare("alone", targets=("placements",), scenarios={"other": OTHER}).tables(),
        several.tables(),
    )
    mine = [path for path in alone if path.startswith("placements/")]
    assert mine
    assert [path for path in mine if alone[path] != together[path]] == []


def test_scenarios_of_equal_hardware_share_their_estimates(several: Folder) -> None:
    folders = {path.name for path in (several.path / "results/estimates").iterdir()}
    assert folders == {"paper", "other"}


def test_a_cluster_of_its_own_has_its_own_answer(several: Folder) -> None:
    best = results_of(several).xs("per-model", level="design")
    assert best.loc["paper", "devices_used"] <= 8 < best.loc["larger", "devices_used"] <= 16
    assert best.loc["other", "area_um2"] <= 60e6
    assert best.loc["other", "samples_per_s"] != best.loc["larger", "samples_per_s"]


def test_a_study_in_which_nothing_fits_ends_with_a_report_that_says_what_is_missing(prepare: Prepare) -> None:
    small = {name: values[:1] for name, values in GRID.items() if isinstance(values, list)}
    folder = prepare(
        "nothing-fits",
        training=STUDY["training"] | {"hbm_gib": [0.0001, 0.0005]},
        architectures={"named": [], "grid": small | {"minimum_area_share": None}, "baseline": None},
        scenarios={"paper": PAPER | {"area_limit_mm2": 60}},
    )
    text = (folder.path / "results/report/report.md").read_text()
    assert "Nothing fits" in text
    assert re.search(
        r"fits nowhere: memory: .* needs .* on its fullest device, 524.3 KiB given: .* too little", text
    )
    assert folder.reported("checks")["passed"].all()
