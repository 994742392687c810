"""A study with plans only, from a file in the user's folder and from one of our models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.formulas.piper.chains import repeated
from tests.workflow.conftest import Prepare
from tests.workflow.folders import Folder

pytestmark = pytest.mark.workflow

SMALL = {"microbatches": [8], "clusters": [{"devices": [2, 8], "memory_gib": [1]}]}
PLANS = {
    "folder": "inputs",
    "inputs": {
        "chain": {"label": "Chain", "file": "chain.json"},
        "ours": {"label": "Tiny", "own": {"workload": "tiny", "microbatch": 2, "architecture": "tpu-v4"}},
    },
    "cases": {
        "bars": {"input": "chain", "show": "throughput", **SMALL},
        "curve": {"input": "chain", "show": "curve", **SMALL},
        "modes": {"input": "chain", "show": "table", "modes": ["program", "table-1"], **SMALL},
        "sizes": {"input": "ours", "show": "throughput", "repeat": [4, 6], "planners": ["piper"], **SMALL},
    },
}


@pytest.fixture(scope="session")
def planned(prepare: Prepare) -> Folder:
    """Return a folder in which the cases have run."""
    return prepare("planned", plans=PLANS, models=[], files={"inputs/chain.json": json.dumps(repeated())})


@pytest.fixture
def folder(planned: Folder, tmp_path: Path) -> Folder:
    """Return a folder of its own in which they have run."""
    return planned.copy(tmp_path / "study")


def test_every_check_of_the_plans_passes(planned: Folder) -> None:
    checks = planned.checks("case-checks")
    assert (checks["rows"] > 0).all()
    planned.run("check")


def test_a_page_of_the_plans_and_no_other_report(planned: Folder) -> None:
    written = planned.pages()
    assert {"papers.html", "papers.md", "cases.csv", "curves.csv"} <= written
    assert "report.html" not in written


def test_a_second_run_does_nothing(folder: Folder) -> None:
    assert folder.stale() == set()
    assert "Nothing to be done" in folder.snakemake("--cores", "2").output


def test_another_batch_of_a_case_plans_only_that(folder: Folder) -> None:
    folder.edit(lambda study: study["plans"]["cases"]["bars"].update(microbatches=[8, 4]))
    stale = {path for path in folder.stale() if not path.startswith("report/")}
    assert stale
    assert all("/bars/" in path and path.split("/")[-1].startswith("m1-n4") for path in stale)


def test_the_folder_may_be_given_on_the_command_line(folder: Folder) -> None:
    """A folder without the file is refused by name."""
    run = folder.snakemake("--config", "plans={folder: elsewhere}", "-n", check=False)
    assert run.returncode != 0
    assert "file elsewhere/chain.json is missing, the input 'chain'" in run.output


def test_without_a_folder_only_what_is_ours_is_planned(folder: Folder) -> None:
    folder.edit(lambda study: study["plans"].update(folder=None))
    folder.run()
    text = (folder.path / "results/report/papers.md").read_text()
    assert "bars: its input chain is only in the authors' file chain.json" in text
    assert set(folder.reported("cases")["case"]) == {"sizes"}
