"""A check is a verdict on every row; the section lists failed checks and checks without rows."""

import pandas as pd

from phaze.pages.document import Sheet
from phaze.pages.verdicts import check_rows, checks_section, failures, run_checks

ROWS = pd.DataFrame({"chip": ["a", "b", "c"], "area": [1.0, 9.0, 8.0]})
TABLE = run_checks(
    {
        "chips are small": lambda rows: check_rows(rows["area"] < 5, rows, ("chip", "area")),
        "chips are there": lambda rows: check_rows(rows["chip"] != "", rows, ("chip",)),
        "no other chips": lambda rows: check_rows([], rows.iloc[:0], ("chip",)),
    },
    ROWS,
)


def test_rows_and_failures_are_counted_and_the_first_is_named() -> None:
    assert TABLE[["rows", "failures"]].to_numpy().tolist() == [[3, 2], [3, 0], [0, 0]]
    assert failures(TABLE) == ["chips are small: chip b, area 9.0"]


def test_failed_checks_stand_out_and_empty_ones_say_so() -> None:
    section = checks_section(TABLE, "some-checks", "What must hold.")
    (sheet,) = section.blocks
    assert isinstance(sheet, Sheet)
    assert [row[0] for row in sheet.rows] == ["FAILED", "passed", "nothing to check"]
    assert sheet.marked == {0}
    assert (section.anchor, section.about, sheet.source) == ("checks", "What must hold.", "some-checks")
