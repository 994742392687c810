"""Tables for other programs, with all columns and digits."""

import json
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.commands.stages import export_table
from phaze.report.findings import Findings
from phaze.tables import TABLES


def test_every_table_exports_to_csv_and_json(findings: Findings, tmp_path: Path) -> None:
    TABLES["walks"].save(findings.walks, tmp_path / "walks.parquet")
    rows = json.loads(export_table(tmp_path / "walks.parquet", "json"))
    assert rows[0]["hysteresis"] == 1
    text = export_table(tmp_path / "walks.parquet", "csv")
    assert text.splitlines()[0] == ",".join(TABLES["walks"].fields())


def test_infinity_is_null_in_json(findings: Findings, tmp_path: Path) -> None:
    frame = findings.results.assign(time_per_batch_s=float("inf"))
    TABLES["results"].save(frame, tmp_path / "r.parquet")
    assert json.loads(export_table(tmp_path / "r.parquet", "json"))[0]["time_per_batch_s"] is None
    assert ",inf," in export_table(tmp_path / "r.parquet", "csv")


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("no table")
    with pytest.raises(PhazeError, match="cannot be read"):
        export_table(tmp_path / "r.txt", "csv")
