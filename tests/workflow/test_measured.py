"""A study that compares predictions with measured runs, from the settings to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaze.report.measured_page import MEASURED_TABLES, MeasuredInputs, build_measured_report
from phaze.spec.measured import MeasuredStudy, PublishedRuns
from phaze.tables import TABLES
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
def test_the_page_of_all_sources_has_the_figures_of_the_other_pages(
    prepare: Prepare, project_root: Path
) -> None:
    """Every source whose times do not look simulated: no check fails, and README and accuracy agree."""
    published = PublishedRuns.load()
    sources = [name for name in published.sources if name not in published.simulated]
    folder = prepare("measured-all", measured={"sources": sources}, tiled=TILED, models=[])
    folder.checks("measured-checks")
    text = (folder.path / "results/report/validate.md").read_text()
    assert "FAILED" not in text
    readme, accuracy = ((project_root / name).read_text() for name in ("README.md", "config/accuracy.md"))
    tables = {name: TABLES[name].load(folder.path / f"results/{name}.parquet") for name in MEASURED_TABLES}
    report = build_measured_report(MeasuredInputs(MeasuredStudy(sources=tuple(sources)), **tables))
    assert not report.failures
    sheet = report.answer.sheet
    rows = {row[0]: dict(zip(sheet.header, row, strict=True)) for row in sheet.rows}
    together = rows.pop("all")
    shown = ("mean error", "bias", "worst", "within 15 %")
    for source, row in rows.items():
        lines = [line for line in accuracy.splitlines() if f"(`{source}`)" in line and row["answered"] != "0"]
        assert all(row[name] in line for line in lines for name in shown), (source, row)
    for name in ("mean error", "within 15 %", "regret", "worst regret"):
        assert together[name] in readme
    across = together["regret across releases"], together["its worst"]
    assert all(figure in page for figure in across for page in (readme, accuracy))
    share, runs = together["in it"], together["with an 80 % interval"]
    assert f"contains {share} of the {runs} runs that get one" in accuracy
    assert f"Of {runs} runs that get an 80 % interval from the other sources {share} lie in it" in text
