"""A study that only simulates tiled accelerators, from the settings to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflow.conftest import Prepare
from tests.workflow.folders import Folder

pytestmark = pytest.mark.workflow

SMALL = {
    "batches": {"gpt2-xl": 32}, "sequence": 64, "microbatches": [4], "operators": "palm",
    "recompute": "always", "dram": "unlimited", "remainder": "drop",
}  # fmt: skip
TILED = {
    "published": "palm-2024",
    "figures": ["6"],
    "tables": ["I"],
    "cases": {
        "table": {"title": "Table", "show": "table", "layouts": ["line", "s-shaped"], **SMALL},
        "picture": {"title": "Picture", "show": "pipeline", **SMALL},
    },
}


@pytest.fixture(scope="session")
def tiled(prepare: Prepare) -> Folder:
    """Return a folder in which the cases have run."""
    return prepare("tiled", tiled=TILED, models=[])


def test_a_page_of_the_tiles_and_no_other_report(tiled: Folder) -> None:
    written = tiled.pages()
    assert {"papers.html", "papers.md", "tiled_runs.csv", "tiled_links.csv"} <= written
    assert not {"report.html", "cases.csv"} & written
    checks = tiled.checks("tiled-checks")
    assert (checks["rows"] > 0).all()


def test_other_microbatches_of_a_case_simulate_only_that(tiled: Folder, tmp_path: Path) -> None:
    folder = tiled.copy(tmp_path / "study")
    assert folder.stale() == set()
    folder.edit(lambda study: study["tiled"]["cases"]["table"].update(microbatches=[8]))
    stale = {path for path in folder.stale() if not path.startswith("report/")}
    assert stale
    assert all(path.split("/")[1] == "table" for path in stale)
