"""Claims are a table in their order, and a sheet on which those that do not hold stand out."""

from phaze.report.verdicts import Claim, claims_sheet, tabulate
from phaze.tables import Claims

FOUND = (Claim("b is best", "Table 1", "2", "3", holds=False), Claim("a is fast", "Figure 2", "1", "1", True))


def test_claims_keep_their_order() -> None:
    table = tabulate(iter(FOUND))
    assert table["statement"].tolist() == ["b is best", "a is fast"]
    assert table["claim"].tolist() == [0, 1]


def test_no_claims_are_an_empty_table() -> None:
    assert list(tabulate([]).columns) == list(Claims.empty().columns)


def test_claims_that_do_not_hold_stand_out() -> None:
    sheet = claims_sheet(tabulate(FOUND), "some-claims")
    assert sheet.rows[0] == ("differs", "b is best", "2", "3", "Table 1")
    assert sheet.marked == {0}
    assert sheet.source == "some-claims"
