"""A finished report states failed checks and is complete in its folder: tables, Markdown, and page."""

import logging
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from phaze.pages.page import Report, write_report
from phaze.report.findings import RESULT_TABLES
from phaze.tables import TABLES


def test_written_tables_read_back_and_no_part_is_left(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path)
    for name in RESULT_TABLES:
        read = TABLES[name].load(tmp_path / f"{name}.parquet")
        pd.testing.assert_frame_equal(read, report.tables[name])
        assert (tmp_path / f"{name}.csv").read_text().count("\n") == len(read) + 1
    assert (tmp_path / "report.html").read_text() == report.page
    assert not list(tmp_path.glob(".*"))
    assert not (tmp_path / "times.parquet").exists(), "measured times would differ between equal studies"


def test_checks_that_fail_are_failures_and_warnings(
    report: Report, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checks = report.tables["checks"]
    failed = checks.assign(passed=checks.index != 1, example="of chip 3")
    wrong = replace(report, tables={**report.tables, "checks": failed}, sections=())
    said = f"{checks['check'][1]}: of chip 3"
    assert report.failures == []
    assert wrong.failures == [said]
    with caplog.at_level(logging.WARNING, "phaze"):
        write_report(wrong, tmp_path)
    assert caplog.messages == [f"does not hold: {said}"]
