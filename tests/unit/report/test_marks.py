"""A chart of one value becomes a sentence."""

from functools import partial

import altair as alt
import pandas as pd
import pytest

from phaze.pages import charts
from phaze.pages.document import Chart, FirstScreen, Section, Sheet
from phaze.pages.page import page_of
from phaze.pages.vega import rule, single_value, spec_of

X, Y = alt.X("x:Q", title="area, mm²"), alt.Y("y:Q", title="samples/s")


def bars(*rows: tuple[str, str, float | None]) -> alt.Chart:
    return alt.Chart(pd.DataFrame(rows, columns=["model", "part", "y"])).mark_bar().encode(Y, color="part:N")


def grouped(*rows: tuple[str, str, float | None]) -> alt.Chart:
    return bars(*rows).encode(yOffset="part:N")


def points(*rows: tuple[float, float]) -> alt.Chart:
    return alt.Chart(pd.DataFrame(rows, columns=["x", "y"])).mark_point().encode(X, Y)


@pytest.mark.parametrize(
    ("chart", "value"),
    [
        (grouped(("a", "one", 2.5)), "2.50 (samples/s)"),
        (grouped(("a", "one", 4.0), ("b", "one", 4.0)), "4.00 (samples/s), the same for all"),
        (grouped(("a", "one", 4.0), ("a", "two", 4.0)), "4.00 (samples/s), the same for all"),
        (grouped(("a", "one", 4.0), ("b", "one", 4.0), ("c", "one", 0.0)), ""),
        (grouped(("a", "one", 4.0), ("b", "one", None)), ""),
        (bars(("a", "one", 2.0), ("b", "one", 2.0)), "2.00 (samples/s), the same for all"),
        (bars(("a", "one", 2.0), ("a", "two", 2.0)), ""),
        (points((30, 7)), "7.00 (samples/s) at 30.0 (area, mm²)"),
        (points((30, 7), (40, 7)), ""),
        (points((30, 7)).mark_rect(), ""),
        (points(), ""),
    ],
)
def test_a_chart_of_one_value_is_told_from_others(chart: alt.Chart, value: str) -> None:
    assert single_value(spec_of(chart)) == value
    assert single_value(spec_of(alt.layer(chart, rule("x", 1)))) == value


def test_one_value_is_a_sentence_on_the_page_and_leads_no_page() -> None:
    table = pd.DataFrame({"model": "bert", "hbm_gib": [32.0, 64.0], "relative": 1.0, "chosen": [True, False]})
    other = table.assign(relative=[1.0, 0.5])
    drawn = (
        Chart(name, f"Title of {name}", "Read it.", partial(charts.memories, rows))
        for name, rows in (("same", table), ("differs", other))
    )
    same, differs = (Section(chart.name, chart.name, "About.", (chart,)) for chart in drawn)
    report = page_of("p.html", "", FirstScreen("?", "!", (), Sheet("", (), ())), (same, differs), {})
    assert [chart.name for _, chart in report.leading] == ["differs"]
    assert report.page.count('class="plot"') == 1
    assert "Title of same: 100 (throughput, % of best), the same for all. Read it.</p>" in report.page
