"""The report page in a real browser: all of it is drawn, can be read and works, on every screen."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from phaze.report.build import build_report
from tests.unit.report import builder

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(build_report(builder.inputs()).page, encoding="utf-8")
    return path


def opened(browser: webdriver.Chrome, page: Path, width: int, scheme: str = "light") -> None:
    """Open the page on a screen of this width, even below the browser's minimum window."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get("about:blank")
    browser.get(page.as_uri())


SHOWN = "[...document.querySelectorAll('figure.chart svg')].filter(svg => svg.checkVisibility())"
"""Script for the figures as drawn for the width of the screen, of parts that are open."""


def unfold(browser: webdriver.Chrome) -> None:
    """Open every folded part, and wait until every chart is drawn."""
    browser.execute_async_script(
        "document.querySelectorAll('main details').forEach(part => { part.open = true; });"
        "const charts = [...document.querySelectorAll('.plot')], done = arguments[0];"
        "const look = () => {"
        "  while (charts.length && 'drawn' in charts[0].dataset) charts.shift();"
        "  if (charts.length) { charts[0].scrollIntoView(); setTimeout(look, 5); }"
        "  else { scrollTo(0, 0); done(); }"
        "};"
        "look();"
    )


@pytest.fixture(scope="module")
def unfolded(browser: webdriver.Chrome, page: Path, request: pytest.FixtureRequest) -> int:
    """Return the width of the screen that shows the whole page, for tests that leave it as it is."""
    opened(browser, page, request.param)
    unfold(browser)
    return int(request.param)


def on_screens(*widths: int) -> pytest.MarkDecorator:
    """Tests of one width run one after the other, as its page is opened for all of them."""
    return pytest.mark.parametrize("unfolded", widths, indirect=True, scope="module")


def boxes(browser: webdriver.Chrome, selector: str) -> list[dict[str, Any]]:
    """Return the bounding boxes of all elements that match."""
    script = (
        "return [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect().toJSON())"
    )
    return list(browser.execute_script(script, selector))


def visible(browser: webdriver.Chrome, selector: str) -> bool:
    """Return whether the first element that matches is shown: no part around it is folded."""
    return bool(
        browser.execute_script("return document.querySelector(arguments[0]).checkVisibility()", selector)
    )


def column(browser: webdriver.Chrome, table: str, number: int) -> list[str]:
    """Return the cells of a column of the first table that matches."""
    script = "return [...document.querySelector(arguments[0]).tBodies[0].rows].map(r => r.cells[arguments[1]]"
    return list(browser.execute_script(script + ".textContent)", table, number))


@on_screens(1400, 390)
@pytest.mark.usefixtures("unfolded")
def test_every_figure_is_drawn(browser: webdriver.Chrome) -> None:
    figures = browser.execute_script(f"return {SHOWN}.map(svg => svg.getBoundingClientRect().toJSON())")
    assert len(boxes(browser, "figure.chart")) == len(figures) > 20
    assert all(box["width"] > 250 and box["height"] > 40 for box in figures)
    drawn = browser.execute_script(
        f"return {SHOWN}.map(svg => [...svg.querySelectorAll('path, use, text')])"
        ".map(marks => marks.filter(mark => mark.getBBox().width > 0).length)"
    )
    assert all(count > 5 for count in drawn)


@on_screens(1400, 1000, 768, 390, 320)
def test_nothing_is_wider_than_the_screen(browser: webdriver.Chrome, unfolded: int) -> None:
    assert browser.execute_script("return document.documentElement.scrollWidth") == unfolded
    wider = browser.execute_script(
        "return [...document.querySelectorAll('body *')].filter(e => !e.parentElement.closest('.scroll, svg')"
        " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 99))"
    )
    assert wider == []


@on_screens(1400, 390)
@pytest.mark.usefixtures("unfolded")
def test_no_text_of_a_figure_is_clipped(browser: webdriver.Chrome) -> None:
    clipped = browser.execute_script(
        f"return {SHOWN}.flatMap(svg => {{"
        "  const outer = svg.getBoundingClientRect();"
        "  return [...svg.querySelectorAll('text')].filter(text => {"
        "    const box = text.getBoundingClientRect();"
        "    return box.left < outer.left - 1 || box.right > outer.right + 1"
        "      || box.top < outer.top - 1 || box.bottom > outer.bottom + 1;"
        "  }).map(text => `${svg.ariaLabel}: ${text.textContent}`);"
        "})"
    )
    assert clipped == []


@on_screens(390)
@pytest.mark.usefixtures("unfolded")
def test_wide_tables_scroll_in_their_own_box_and_say_so(browser: webdriver.Chrome) -> None:
    wide = browser.execute_script(
        "return [...document.querySelectorAll('figure.table .scroll')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1)"
        ".map(e => [getComputedStyle(e, '::before').content, e.classList.contains('wide')])"
    )
    assert len(wide) > 5
    assert all("scroll" in content and marked for content, marked in wide)


@pytest.mark.parametrize(("width", "columns"), [(1400, 2), (390, 1)])
def test_the_first_columns_stay_while_a_table_scrolls(
    browser: webdriver.Chrome, page: Path, width: int, columns: int
) -> None:
    opened(browser, page, width)
    unfold(browser)
    browser.execute_script("document.querySelector('#simulated .scroll').style.maxWidth = '340px'")
    cells = "#simulated figure:first-of-type tbody tr:first-child td"
    before = [cell["x"] for cell in boxes(browser, cells)]
    browser.execute_script("document.querySelector('#simulated .scroll').scrollLeft = 60")
    after = [cell["x"] for cell in boxes(browser, cells)]
    assert after[:columns] == pytest.approx(before[:columns], abs=8)
    assert after[columns:] == pytest.approx([x - 60 for x in before[columns:]], abs=1)


def test_the_menu_stays_and_leads_to_every_section(browser: webdriver.Chrome, page: Path) -> None:
    for width in (1400, 390):
        opened(browser, page, width)
        browser.execute_script("scrollTo(0, 1500)")
        assert boxes(browser, "nav")[0]["top"] == 0
        assert visible(browser, "nav a") == (width == 1400), "a menu to open on a narrow screen"
        browser.execute_script("document.querySelector('nav details').open = true")
        browser.execute_script("document.querySelector('nav a[href=\"#simulated\"]').click()")
        browser.execute_async_script("setTimeout(arguments[0], 50)")
        assert browser.execute_script("return document.querySelector('#simulated').open")
        assert 0 <= boxes(browser, "#simulated")[0]["top"] < 100
        assert len(boxes(browser, "details.section[open]")) == 1
        assert browser.execute_script("return document.querySelector('nav details').open") == (width == 1400)


def test_a_link_from_elsewhere_opens_a_folded_figure(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1400)
    folded = browser.execute_script("return document.querySelector('details figure.chart').id")
    assert not visible(browser, f"#{folded}")
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}#{folded}")
    assert visible(browser, f"#{folded}")
    assert 0 <= boxes(browser, f"#{folded}")[0]["top"] < 900


def test_everything_opens_and_folds_at_once_and_is_printed(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1400)
    folded = "return document.querySelectorAll('main details:not([open])').length"
    count = browser.execute_script(folded)
    assert count > 20
    for script, left in (
        ("document.querySelector('nav button').click()", 0),
        ("document.querySelector('nav button').click()", count),
        ("dispatchEvent(new Event('beforeprint'))", 0),
        ("dispatchEvent(new Event('afterprint'))", count),
    ):
        browser.execute_script(script)
        assert browser.execute_script(folded) == left
    assert not browser.execute_script("return document.querySelectorAll('.plot:not([data-drawn])').length")


def test_headings_sort_their_table_by_value(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1400)
    unfold(browser)
    cells = ["2 ms", "–", "900 µs", "1.5 h", "1,024 s", "+3 s", "1e-6 s"]
    browser.execute_script(
        "const rows = [...document.querySelector('#simulated table').tBodies[0].rows];"
        "rows.slice(arguments[0].length).forEach(row => row.remove());"
        "arguments[0].forEach((cell, i) => { rows[i].cells[5].textContent = cell; })",
        cells,
    )
    heading = "document.querySelectorAll('#simulated th')[5]"
    browser.execute_script(f"{heading}.firstChild.click()")
    up = ["1e-6 s", "900 µs", "2 ms", "+3 s", "1,024 s", "1.5 h"]
    assert column(browser, "#simulated table", 5) == [*up, "–"]
    assert browser.execute_script(f"return {heading}.ariaSort") == "ascending"
    browser.execute_script(f"{heading}.firstChild.click()")
    assert column(browser, "#simulated table", 5) == [*up[::-1], "–"]
    browser.execute_script("document.querySelector('#ranking th:last-child').firstChild.click()")
    plans = [
        [int(width) for width in re.findall(r"\d+", cell)] for cell in column(browser, "#ranking table", 6)
    ]
    assert plans == sorted(plans)
    assert plans[0] < plans[-1], "widths of plans, which are text in a column of numbers"
    browser.execute_script("document.querySelector('#simulated th').firstChild.click()")
    names = column(browser, "#simulated table", 0)
    assert names == sorted(names)
    assert browser.execute_script(f"return {heading}.ariaSort") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper(browser: webdriver.Chrome, page: Path, scheme: str) -> None:
    """Text needs a contrast of 4.5 and parts of figures one of 3 (WCAG 2.2, AA)."""
    opened(browser, page, 1400, scheme)
    unfold(browser)
    colours = (
        "return [...new Set([...document.querySelectorAll(arguments[0])].map(e => getComputedStyle(e)"
        "[arguments[1]]))]"
    )
    paper = luminance(browser.execute_script(colours, "body", "backgroundColor")[0])
    assert (paper < 0.5) == (scheme == "dark")
    texts = "main p, main a, td, th, h1, h2, summary span, figcaption"
    for selector, style, least in ((texts, "color", 4.5), ("figure.chart text", "fill", 3.0)):
        for colour in {*browser.execute_script(colours, selector, style)} - {"rgb(255, 255, 255)"}:
            darker, lighter = sorted((paper, luminance(colour)))
            assert (lighter + 0.05) / (darker + 0.05) > least, f"{selector}: {colour}"


def luminance(colour: str) -> float:
    """Relative luminance of a colour, as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@on_screens(390)
@pytest.mark.usefixtures("unfolded")
def test_lists_of_bars_fit_a_narrow_screen(browser: webdriver.Chrome) -> None:
    (chart,) = boxes(browser, "#figure-breakdown svg")
    assert 300 < chart["width"] <= 390 - chart["left"]


def test_the_first_figure_is_in_the_first_view(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1400)
    assert boxes(browser, "main figure")[0]["bottom"] < 900
    assert browser.execute_script("return document.documentElement.scrollHeight") < 6000


@on_screens(390)
@pytest.mark.usefixtures("unfolded")
def test_text_of_figures_can_be_read_on_a_narrow_screen(browser: webdriver.Chrome) -> None:
    sizes = browser.execute_script(
        f"return {SHOWN}.flatMap(svg => {{"
        "  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;"
        "  const texts = [...svg.querySelectorAll('text')];"
        "  return texts.map(text => parseFloat(getComputedStyle(text).fontSize) * scale);"
        "})"
    )
    assert len(sizes) > 300
    assert min(sizes) > 6, "names inside the bars of a schedule"
    assert sorted(sizes)[len(sizes) // 10] > 7


def test_the_page_logs_no_error_and_asks_for_nothing(browser: webdriver.Chrome, page: Path) -> None:
    browser.get("about:blank")  # away from the browser's own first page, which asks for its parts
    for log in ("browser", "performance"):
        browser.get_log(log)
    opened(browser, page, 1400)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in urls
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []
    assert {url for url in urls if url.startswith("file:")} == {page.as_uri()}


def test_a_table_is_offered_whole_and_a_folded_one_opens(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1400)
    text = browser.execute_script(
        "return atob(document.querySelector('a[download=\"results.csv\"]').href.split(',')[1])"
    )
    assert text.startswith("model,design,")
    browser.execute_script(
        "window.asked = []; document.querySelector('#csv-results').addEventListener('click', event => {"
        "  event.preventDefault(); window.asked.push(event.target.download); });"
        "document.querySelector('#throughput .csv').click()"
    )
    assert browser.execute_script("return window.asked") == ["results.csv"]
    assert not visible(browser, "#tables ul")
    browser.execute_script("document.querySelectorAll('#ranking summary').forEach(part => part.click())")
    assert boxes(browser, "#ranking details table")[0]["height"] > 100
