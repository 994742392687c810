"""Charts of Vega-Lite in a page: one library, scripts by hash, no evaluated code, and a small file."""

import base64
import hashlib
import json
import re
from pathlib import Path

import altair as alt
import pandas as pd
import pytest

from phaze.pages import vega
from phaze.pages.document import Chart, FirstScreen, Section, Sheet
from phaze.pages.page import Report, page_of
from phaze.pages.vega import WIDTH, as_json, spec_of

PARTS = pd.DataFrame({"part": ["</script>", "HBM"], "s": [5.0, 1.0]})


def bars() -> alt.Chart:
    return alt.Chart(PARTS, width=WIDTH, height=50).mark_bar().encode(x="s:Q", y="part:N")


def paged(*charts: Chart) -> Report:
    answer = FirstScreen("Which?", "This one.", (), Sheet("Rows", ("name",), (("one",),)))
    return page_of("page.html", "a page", answer, [Section("parts", "Parts", "Parts of it.", charts)], {})


@pytest.fixture(scope="module")
def page() -> str:
    return paged(Chart("one", "One", "First.", bars), Chart("two", "Two", "Second.", bars)).page


@pytest.mark.parametrize(("writable", "bundled"), [(True, 1), (False, 2)])
def test_the_library_is_bundled_once_for_all_processes_where_it_can_be_cached(
    writable: bool, bundled: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def bundle(text: str) -> str:
        asked.append(text)
        return f"bundle {text}"

    monkeypatch.setattr("vl_convert.javascript_bundle", bundle)
    monkeypatch.setattr(vega, "CACHE", tmp_path / "scripts")
    monkeypatch.setattr(vega, "PACKAGE", tmp_path if writable else tmp_path / "absent")
    in_another_process = vega.library.__wrapped__
    assert [in_another_process("draw"), in_another_process("draw")] == ["bundle draw"] * 2
    assert asked == ["draw"] * bundled
    assert in_another_process("edited") == "bundle edited"
    assert len(list(tmp_path.rglob("*.json"))) == writable, "a script of other code does not stay"


def test_every_script_is_permitted_by_its_hash_and_nothing_is_evaluated(page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    permitted = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src {permitted};" in page
    assert "unsafe-eval" not in page


def test_a_page_has_one_library_and_is_small(page: str) -> None:
    assert page.count("<script>") == 2
    assert page.count('<script type="application/json">') == 2
    assert len(page.encode()) < 1.5e6


def test_a_page_without_such_charts_has_no_library() -> None:
    assert len(paged().page) < 1e5


def test_names_in_the_data_of_a_chart_cannot_end_its_element() -> None:
    spec = as_json(spec_of(bars()))
    assert "<" not in spec
    assert [row["part"] for (rows,) in [json.loads(spec)["datasets"].values()] for row in rows] == [
        *PARTS["part"]
    ]


def test_the_same_chart_gives_the_same_bytes() -> None:
    assert spec_of(bars()) == spec_of(bars())
