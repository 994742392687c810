"""A study that only plans trainings over all layouts of a runtime, from the settings to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflow.conftest import Prepare
from tests.workflow.folders import Folder

pytestmark = pytest.mark.workflow

LAYOUTS = {"models": ["gpt2"], "systems": ["h100"], "devices": [2], "global_batch": 8, "sequence": 512}


@pytest.fixture(scope="session")
def planned(prepare: Prepare) -> Folder:
    """Return a folder in which trainings are planned."""
    return prepare("layouts", layouts=LAYOUTS, models=[])


def test_a_page_of_the_training_plans_with_plans_that_pass_its_checks(planned: Folder) -> None:
    assert {"layouts.html", "layouts.md", "ranked_layouts.csv"} <= planned.pages()
    planned.checks("layout-checks")
    proofs = planned.reported("layout_proofs")
    assert proofs["status"].tolist() == ["planned"] * 2
    assert sorted(proofs["ranking"]) == ["expected", "prudent"]  # both in one job
    assert (planned.path / "results/training_plans/gpt2.h100.2.json").exists()


def test_another_size_plans_only_its_own(planned: Folder, tmp_path: Path) -> None:
    folder = planned.copy(tmp_path / "study")
    assert folder.stale() == set()
    folder.edit(lambda study: study["layouts"].update(devices=[2, 4]))
    stale = {path for path in folder.stale() if not path.startswith("report/")}
    assert stale
    assert all(Path(path).name.startswith("gpt2.h100.4.") for path in stale)
