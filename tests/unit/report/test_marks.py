"""A figure of one value becomes a sentence, and ticks of logarithmic axes are plain numbers."""

import re
from collections.abc import Callable
from functools import partial

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phaze.report import charts
from phaze.report.document import Chart, FirstScreen, Section, Sheet
from phaze.report.marks import label_plainly, single_value
from phaze.report.report import page_of
from phaze.report.style import NARROW, axes, draw


def drawn(draw: Callable[[Axes], object]) -> Figure:
    figure, (ax,) = axes(4, 3)
    draw(ax)
    ax.axhline(1)
    ax.set_xlabel("area, mm²")
    ax.set_ylabel("samples/s")
    return figure


@pytest.mark.parametrize(
    ("draw", "value"),
    [
        (lambda ax: ax.bar([0], [2.5]), "2.50 (samples/s)"),
        (lambda ax: ax.bar([0, 1, 2], [4.0, 4.0, 0.0]), ""),
        (lambda ax: ax.barh([0], [1.5], left=1), "2.50 (area, mm²)"),
        (lambda ax: ax.plot([30], [7], "o"), "7.00 (samples/s) at 30.0 (area, mm²)"),
        (lambda ax: ax.bar([0, 1], [2.5, 3.5]), ""),
        (lambda ax: (ax.barh([0], [2]), ax.barh([0], [2], left=2)), ""),
        (lambda ax: ax.plot([30, 40], [7, 7]), ""),
        (lambda ax: ax.scatter([30], [7]), ""),
        (lambda ax: ax.imshow([[1.0]]), ""),
        (lambda ax: ax.plot([], []), ""),
    ],
)
def test_a_figure_of_one_value_is_told_from_others(draw: Callable[[Axes], object], value: str) -> None:
    assert single_value(drawn(draw)) == value


def test_one_value_is_a_sentence_on_the_page_and_leads_no_page() -> None:
    table = pd.DataFrame({"model": "bert", "hbm_gib": [32.0, 64.0], "relative": 1.0, "chosen": [True, False]})
    other = table.assign(relative=[1.0, 0.5])
    same, differs = (
        Section(
            name,
            name,
            "About.",
            (Chart(name, f"Title of {name}", "Read it.", partial(charts.memories, rows)),),
        )
        for name, rows in (("same", table), ("differs", other))
    )
    report = page_of("p.html", "", FirstScreen("?", "!", (), Sheet("", (), ())), (same, differs), {})
    assert [chart.name for _, chart in report.leading] == ["differs"]
    assert report.page.count("<svg ") == 1
    assert "Title of same: 100 (throughput, % of best), the same for all. Read it.</p>" in report.page


def test_a_list_of_bars_is_also_drawn_for_a_narrow_screen() -> None:
    rows = pd.DataFrame({f"design {number}": [0.9, 1.5] for number in range(5)}, index=["one", "two"])
    bars = draw(Chart("bars", "Bars", "", partial(charts.rows_beside, rows, "gain", 1, said=True)))
    assert bars.width_px == 864
    box = re.search(r'viewBox="0 0 ([\d.]+) ', bars.narrow)
    assert box is not None
    assert float(box[1]) / 72 == pytest.approx(NARROW)
    assert all(bars.narrow.count(text) == bars.svg.count(text) for text in (">design 4<", ">two<", ">0.90×<"))
    upright = draw(Chart("bars", "Bars", "", lambda: drawn(lambda ax: ax.bar([0, 1], [1, 2]))))
    assert (upright.narrow, upright.only) == ("", "")


def test_ticks_of_logarithmic_axes_are_plain_numbers() -> None:
    figure, (ax,) = axes(4, 3)
    ax.plot([2, 1024], [0.001, 2e6])
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    label_plainly(figure)
    figure.draw_without_rendering()
    labels = [
        [text.get_text() for text in ax.get_xticklabels()],
        [text.get_text() for text in ax.get_yticklabels()],
    ]
    assert {"64", "1,024"} <= {*labels[0]}
    assert {"0.01", "1", "1,000,000"} <= {*labels[1]}
    assert not any(sign in label for found in labels for label in found for sign in "$^e")
