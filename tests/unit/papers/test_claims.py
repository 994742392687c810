"""Claims are data: one evaluator joins printed figures with a table, and reports mismatches."""

import pandas as pd
import pytest

from phaze.base.errors import PhazeError
from phaze.papers.claims import check_claims, claims_sheet
from phaze.papers.publications import Publication
from phaze.tables import Claims

CHIPS = pd.DataFrame({"chip": ["a", "b", "b"], "area": [1.0, 9.0, 8.0], "year": [2020, 2021, 2022]})
SMALL = {
    "statement": "chip {chip} is small", "source": "Table 1", "by": ["chip"], "printed": {"a": 2, "b": 4},
    "find": {"ours": ["area", "max"]}, "holds": "ours <= printed", "published": "{printed}",
    "ours": "{ours:g}",
}  # fmt: skip


def found(*claims: dict[str, object], each: tuple[str, ...] = (), table: str = "chips") -> pd.DataFrame:
    group = {"table": table, "each": each, "claims": claims}
    paper = Publication.parse({"title": "Paper", "citation": "C", "claims": [group]}, "paper.yaml")
    return check_claims(paper, {"chips": CHIPS}, {"years": lambda rows, _: {"ours": rows["year"].tolist()}})


def test_a_claim_is_made_of_every_group_of_which_something_is_printed() -> None:
    table = found(SMALL)
    assert table[["claim", "statement", "published", "ours", "holds"]].to_numpy().tolist() == [
        [0, "chip a is small", "2", "1", True], [1, "chip b is small", "4", "9", False],
    ]  # fmt: skip
    assert found({**SMALL, "printed": {"a": 2}})["statement"].tolist() == ["chip a is small"]
    assert found({**SMALL, "where": "area > 8"})["statement"].tolist() == ["chip b is small"]
    rows = [{"chip": "b", "printed": 10, "words": "ten"}]
    assert found({**SMALL, "printed": rows, "published": "{words}"})["published"].tolist() == ["ten"]


def test_every_row_may_have_to_hold_and_those_that_do_not_are_named() -> None:
    row = {"statement": "chips are small", "source": "T", "every": "area <= printed", "named": "year"}
    row |= {
        "printed": 8.5,
        "published": "at most {printed}",
        "ours": "{years}",
        "find": {"years": ["year", "count"]},
    }
    (claim,) = found(row).to_dict("records")
    assert (claim["ours"], claim["holds"]) == ("3; not 2021", False)


def test_parts_have_all_claims_in_turn_and_functions_find_what_no_aggregate_says() -> None:
    years = {"statement": "{chip}", "source": "T", "find": "years", "published": "", "ours": "{ours}"}
    table = found(SMALL, years, each=("chip",))
    assert table["statement"].tolist() == ["chip a is small", "a", "chip b is small", "b"]
    assert table["ours"].tolist()[3] == "[2021, 2022]"


@pytest.mark.parametrize(
    ("claim", "table", "message"),
    [
        ({**SMALL, "holds": "ours <= length"}, "chips", "'chip {chip} is small': .*'length'.*area"),
        (SMALL, "cores", "there is no table 'cores'; there are \\['chips'\\]"),
        ({**SMALL, "by": []}, "chips", "printed: numbers by the values of a column need"),
        ({**SMALL, "every": "area > 0"}, "chips", "every: needs named"),
        ({**SMALL, "find": "widths"}, "chips", "is small': 'widths'"),
        ({**SMALL, "where": "area >"}, "chips", "where: must be an expression of columns"),
        ({**SMALL, "where": "open('x') > 1"}, "chips", "where: must be made of columns"),
    ],
)
def test_a_mistake_is_one_clear_message(claim: dict[str, object], table: str, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        found(claim, table=table)


def test_claims_that_do_not_hold_stand_out() -> None:
    sheet = claims_sheet(found(SMALL), "some-claims")
    assert sheet.rows[1] == ("differs", "chip b is small", "4", "9", "Table 1")
    assert (sheet.marked, sheet.source) == ({1}, "some-claims")
    assert list(check_claims(None, {}).columns) == list(Claims.empty().columns)
