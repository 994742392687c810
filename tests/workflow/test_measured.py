"""A study that compares predictions with measured runs, from the settings to the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.workflow.conftest import Prepare
from tests.workflow.folders import Folder
from tests.workflow.studies import TILED

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="session")
def measured(prepare: Prepare) -> Folder:
    """Return a folder in which two sources have been compared."""
    sources = ["simumax-b200-dense", "torchtitan-h100-bf16"]
    return prepare("measured", measured={"sources": sources}, tiled=TILED, models=[])


def test_a_page_of_the_measured_runs_without_the_report_of_models(measured: Folder) -> None:
    written = measured.pages()
    assert {"validate.html", "validate.md", "measured_runs.csv", "source_scores.csv"} <= written
    assert "report.html" not in written
    checks = measured.checks("measured-checks")
    assert (checks["rows"] > 0).sum() == len(checks) - 1  # no three of these layouts can be chosen between


def test_another_source_compares_again_and_the_same_do_not(measured: Folder, tmp_path: Path) -> None:
    folder = measured.copy(tmp_path / "study")
    assert folder.stale() == set()
    folder.edit(lambda study: study["measured"].update(sources=["simumax-b200-dense"]))
    stale = folder.stale()
    assert {"measured_runs.parquet", "report/validate.html"} <= stale
    assert not any("tiled" in path for path in stale)


@pytest.mark.long
def test_the_page_of_all_sources_opens_with_its_figures(prepare: Prepare, project_root: Path) -> None:
    """Every source of the default study: no check fails, and the page says what config/accuracy.md says."""
    sources = yaml.safe_load((project_root / "config/config.yaml").read_text())["measured"]["sources"]
    folder = prepare("measured-all", measured={"sources": sources}, tiled=TILED, models=[])
    folder.checks("measured-checks")
    text = (folder.path / "results/report/validate.md").read_text()
    assert "FAILED" not in text
    accuracy = (project_root / "config/accuracy.md").read_text()
    share, runs = re.findall(r"contains (\d+) % of the (\d+) runs that get one", accuracy)[0]
    assert f"Of {runs} runs that get an 80 % interval from the other sources {share} % lie in it" in text
