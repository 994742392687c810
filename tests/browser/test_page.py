"""The report page in a real browser: every figure is drawn, without errors, requests or overflow."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from phaze.report.build import build_report
from tests.unit.report import builder

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(build_report(builder.inputs()).page, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(
    require_program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = require_program("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(require_program("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def opened(browser: webdriver.Chrome, page: Path, width: int, height: int = 900) -> None:
    """Open the page on a screen of this size, even below the browser's minimum window."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())


def boxes(browser: webdriver.Chrome, selector: str) -> list[dict[str, Any]]:
    """Return the bounding boxes of all elements that match."""
    script = (
        "return [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect().toJSON())"
    )
    return list(browser.execute_script(script, selector))


@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_is_drawn(browser: webdriver.Chrome, page: Path, width: int) -> None:
    opened(browser, page, width)
    figures = boxes(browser, "figure.chart svg")
    assert len(figures) > 20
    assert all(box["width"] > 250 and box["height"] > 40 for box in figures)
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('figure.chart svg')]"
        ".map(s => [...s.querySelectorAll('path, use, text')].filter(e => e.getBBox().width > 0).length)"
    )
    assert all(count > 5 for count in drawn)


@pytest.mark.parametrize("width", [1280, 768, 390, 320])
def test_the_page_is_never_wider_than_the_screen(browser: webdriver.Chrome, page: Path, width: int) -> None:
    opened(browser, page, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") == width


def test_wide_tables_and_figures_scroll_in_their_own_box(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 390)
    wide = browser.execute_script(
        "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    )
    assert wide > 5


def test_the_first_screen_answers_the_question(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1280, 900)
    answer = boxes(browser, "header table tbody tr")
    assert len(answer) == 4
    assert answer[-1]["bottom"] < 900
    assert answer[-1]["right"] <= 1280


def test_text_of_figures_can_be_read_on_a_narrow_screen(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 390)
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure.chart svg')].flatMap(svg => {"
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
    opened(browser, page, 1280)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in urls
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []
    assert {url for url in urls if url.startswith("file:")} == {page.as_uri()}


def test_a_table_is_offered_whole_and_a_folded_one_opens(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1280)
    text = browser.execute_script(
        "return atob(document.querySelector('a[download=\"results.csv\"]').href.split(',')[1])"
    )
    assert text.startswith("model,design,")
    browser.execute_script("document.querySelector('#ranking summary').click()")
    assert boxes(browser, "#ranking details table")[0]["height"] > 100
