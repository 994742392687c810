"""Readings place a model again under other settings; only a changed reading is evaluated again."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.workflow.conftest import Prepare
from tests.workflow.folders import Folder
from tests.workflow.studies import FAST, SMALL

pytestmark = pytest.mark.workflow

READINGS = {
    "fast": FAST,
    "headless": {
        "note": "a fast network, no head",
        "scenario": {"network_bandwidth_bytes_per_s": 1e13},
        "extract": {"head": False},
    },
}


@pytest.fixture(scope="session")
def read(prepare: Prepare) -> Folder:
    """Return a folder in which two readings have run."""
    return prepare("readings", targets=("readings",), readings=READINGS, **SMALL)


def plans_of(folder: Folder) -> pd.DataFrame:
    """Return the searched plans by reading and architecture."""
    files = sorted((folder.path / "results/readings").glob("tiny.parquet"))
    found = pd.concat([pd.read_parquet(file) for file in files])
    return found[found["planner"] == "phaze"].set_index(["reading", "architecture"])


def test_every_reading_has_the_best_plan_of_every_named_architecture(read: Folder) -> None:
    times = plans_of(read)["time_per_batch_s"].unstack("architecture")
    assert set(times.index) == {"study", "fast", "headless"}
    assert set(times.columns) == {"tpu-v4", "phaze-common"}
    assert (times.loc["fast"] < times.loc["study"]).all()
    assert (times.loc["headless"] < times.loc["fast"]).all()


def test_the_studys_own_reading_is_what_the_workflow_finds(read: Folder, tmp_path: Path) -> None:
    folder = read.copy(tmp_path / "study")
    folder.run("placements")
    files = (folder.path / "results/placements/paper").rglob("named-*.parquet")
    placed = pd.concat([pd.read_parquet(file) for file in files])
    best = placed[placed["planner"] == "phaze"].groupby("architecture")["time_per_batch_s"].min()
    own = plans_of(read).loc["study"]["time_per_batch_s"]
    assert own.to_dict() == best.to_dict()


def test_another_setting_of_a_reading_evaluates_only_that_one_again(read: Folder, tmp_path: Path) -> None:
    folder = read.copy(tmp_path / "study")
    assert folder.stale("readings") == set()
    folder.edit(lambda study: study["readings"]["headless"].update(training={"recompute": [True]}))
    assert folder.stale("readings") == {"readings/tiny.parquet"}
    before, evaluated = plans_of(folder), set((folder.path / "results/evaluations").rglob("*.json"))
    folder.run("readings")
    assert len(set((folder.path / "results/evaluations").rglob("*.json")) - evaluated) == 1
    after = plans_of(folder)
    assert after.drop("headless").equals(before.drop("headless"))
    assert after.loc["headless", "recompute"].all()
    assert not before.loc["headless", "recompute"].any()


def test_the_best_of_a_grid_is_read_as_well_and_its_gain_is_reported(finished: Folder) -> None:
    results = finished.reported("results").set_index("design")
    winner = results.loc["per-model"]
    read = plans_of(finished).loc["study"]
    mine = read[read.index == winner["architecture"]]
    assert mine["time_per_batch_s"].min() <= winner["time_per_batch_s"]
    gains = finished.reported("gains")
    assert set(zip(gains["design"], gains["reading"], strict=True)) >= {
        ("per-model", "study"), ("per-model", "fast"), ("common", "fast"),
    }  # fmt: skip
    page = (finished.path / "results/report/report.md").read_text()
    assert "## What the gain rests on" in page
    assert "## Claim and price" in page
    assert (finished.path / "results/report/checks.parquet").is_file()
