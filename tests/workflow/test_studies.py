"""Every study named in the README passes its checks, in a minimal variant.

Those with their own pages run as one study: most of the time of a small study is Snakemake's start.
"""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.unit.formulas.piper.chains import repeated
from tests.workflow.folders import ROOT, Folder

pytestmark = pytest.mark.workflow

SMALL = Path(__file__).parent / "small"
STUDIES = ROOT / "config" / "studies"
TOGETHER = (("phaze-space", "quick"), ("llama-3.1", "palm", "parmesan", "piper", "phaze-paper"))
PAGES = {
    "quick": "chips", "phaze-space": "report", "phaze-paper": "papers", "llama-3.1": "layouts",
    "palm": "papers", "parmesan": "papers", "piper": "papers",
}  # fmt: skip


def overlaid(study: dict[str, object], changes: dict[str, object]) -> dict[str, object]:
    """Return a study with changes merged in; a key that is null there is left out."""
    found = dict(study)
    for key, value in changes.items():
        mine = found.get(key)
        if isinstance(value, dict) and isinstance(mine, dict):
            found[key] = overlaid(mine, value)
        elif value is None and key in found:
            del found[key]
        else:
            found[key] = value
    return found


def small(name: str) -> dict[str, object]:
    """Return the small variant of a study."""
    study, changes = (yaml.safe_load((folder / f"{name}.yaml").read_text()) for folder in (STUDIES, SMALL))
    return overlaid(study, changes)


def test_every_study_has_a_small_variant_and_is_in_the_readme() -> None:
    names = {path.stem for path in STUDIES.glob("*.yaml")}
    assert {path.stem for path in SMALL.glob("*.yaml")} == names == {one for some in TOGETHER for one in some}
    readme = (STUDIES / "README.md").read_text()
    assert [name for name in names if f"{name}.yaml" not in readme] == []


@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
def test_the_checks_of_a_study_hold_on_its_small_variant(names: tuple[str, ...], tmp_path: Path) -> None:
    study = reduce(overlaid, map(small, names))
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs/bert32a100.json").write_text(json.dumps(repeated()))
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    Folder(tmp_path).run("check")
    report = tmp_path / "results/report"
    assert (report / "checked").exists()
    for name in names:
        assert (report / f"{PAGES[name]}.html").exists(), name
    for path in report.glob("*checks.parquet"):
        assert pd.read_parquet(path)["passed"].all(), path
