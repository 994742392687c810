"""The page of a plan in a real browser: charts are drawn without evaluated code, and every control works."""

import json
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.test_page import opened, unfold
from tests.commands import invoke

pytestmark = pytest.mark.browser
OPTIONS = "--system h100 --devices 8,16 --fix pp=2,cp=1 --tokens 1T --price 2"
TABLE = "#answer table tbody"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.html"
    asked = ["plan", "llama-3.1-8b", *OPTIONS.split(), "--page", str(path)]
    result = invoke(*asked)
    assert result.exit_code == 0, result.output
    return path


def drawn(browser: webdriver.Chrome, page: Path, width: int, scheme: str = "light") -> None:
    """Open the page with all of its parts, and wait for every chart."""
    opened(browser, page, width, scheme)
    unfold(browser)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".plot")) >= 9


def layouts(browser: webdriver.Chrome, column: int) -> list[str]:
    """Return the shown cells of a column of the ranked layouts."""
    script = (
        f"return [...document.querySelector('{TABLE}').rows].filter(row => row.checkVisibility())"
        ".map(row => row.cells[arguments[0]].textContent)"
    )
    return list(browser.execute_script(script, column))


def shown_rows(browser: webdriver.Chrome) -> list[str]:
    """Return the texts of the shown rows of the ranked layouts, in small letters."""
    cells = [layouts(browser, column) for column in range(columns(browser))]
    return [" ".join(row).lower() for row in zip(*cells, strict=True)]


def columns(browser: webdriver.Chrome) -> int:
    """Return the number of columns of the ranked layouts."""
    return int(browser.execute_script(f"return document.querySelector('{TABLE}').rows[0].cells.length"))


def ticks(browser: webdriver.Chrome) -> list[str]:
    """Return the labels of the pipeline's time axis."""
    script = (
        "return [...document.querySelectorAll('#figure-timeline .role-axis-label')][0]"
        ".querySelectorAll('text').values().map(text => text.textContent).toArray()"
    )
    return list(browser.execute_script(script))


def cut_ticks(browser: webdriver.Chrome) -> list[str]:
    """Return the labels of the pipeline's time axis that its picture does not show in full."""
    script = (
        "const svg = document.querySelector('#figure-timeline svg'), outer = svg.getBoundingClientRect();"
        "return [...svg.querySelectorAll('.role-axis-label text')].filter(text => {"
        "  const box = text.getBoundingClientRect();"
        "  return box.left < outer.left - 1 || box.right > outer.right + 1;"
        "}).map(text => text.textContent)"
    )
    return list(browser.execute_script(script))


def chart_faults(browser: webdriver.Chrome, width: int) -> dict[str, list[str]]:
    """Return the faults of each chart of the open page: too wide, empty, clipped or small text."""
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    found: list[dict[str, Any]] = browser.execute_script(
        "return [...document.querySelectorAll('.plot svg')].map(svg => {"
        "  const outer = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll('text')];"
        "  const boxes = texts.map(text => [text.textContent, text.getBoundingClientRect()]);"
        "  return {name: svg.closest('figure').id, right: outer.right,"
        "    marks: svg.querySelectorAll('.role-mark path, .role-mark line').length,"
        "    small: texts.filter(text => parseFloat(getComputedStyle(text).fontSize) < 10).length,"
        "    cut: boxes.filter(([words, box]) => words.endsWith('…') || box.left < outer.left - 1"
        "      || box.right > outer.right + 1 || box.top < outer.top - 1 || box.bottom > outer.bottom + 1)"
        "      .map(([words]) => words)};"
        "})"
    )
    faults = {
        chart["name"]: [
            *["too wide"] * (chart["right"] > width),
            *["empty"] * (not chart["marks"]),
            *["small text"] * (chart["small"] > 0),
            *chart["cut"],
        ]
        for chart in found
    }
    return {name: reasons for name, reasons in faults.items() if reasons}


@pytest.mark.parametrize("width", [1400, 390])
def test_every_chart_fits_and_none_of_its_text_is_clipped_or_small(
    browser: webdriver.Chrome, page: Path, width: int
) -> None:
    drawn(browser, page, width)
    assert chart_faults(browser, width) == {}


@pytest.mark.parametrize("width", [1400, 390])
def test_the_layouts_are_sorted_and_filtered(browser: webdriver.Chrome, page: Path, width: int) -> None:
    drawn(browser, page, width)
    ranks = layouts(browser, 1)
    assert ranks == [str(rank + 1) for rank in range(len(ranks))]
    for _ in range(2):
        browser.execute_script("document.querySelectorAll('#answer th button')[1].click()")
    assert layouts(browser, 1) == ranks[::-1]
    box = browser.find_element(By.CSS_SELECTOR, "#answer input[type=search]")
    # Layouts may have the same fields, so that their words alone tell no row from the others.
    words = " ".join(layouts(browser, column)[0] for column in (0, 2))
    box.send_keys(words.upper())
    assert 0 < len(layouts(browser, 0)) < len(ranks)
    for row in shown_rows(browser):
        assert all(word in row for word in words.lower().split())
    found = layouts(browser, 0)
    box.clear()
    box.send_keys(" ".join(words.split()[::-1]))
    assert found == layouts(browser, 0)
    box.clear()
    box.send_keys(f"{words} nothing has this")
    assert layouts(browser, 0) == []
    box.clear()
    box.send_keys("rank = 2")  # not every row with a 2
    assert layouts(browser, 1) == ["2"]
    box.clear()


def test_a_point_of_the_chart_leads_to_the_flags_of_its_layout(browser: webdriver.Chrome, page: Path) -> None:
    drawn(browser, page, 1400)
    points = browser.find_elements(By.CSS_SELECTOR, "#figure-near-best .mark-symbol.role-mark path")
    assert len(points) == len(layouts(browser, 0))
    ActionChains(browser).scroll_to_element(points[0]).move_to_element(points[0]).click().perform()
    wait = WebDriverWait(browser, 10)
    wait.until(lambda _: "#layout-" in browser.current_url)
    name = browser.current_url.partition("#")[2]
    assert "--num-layers" in browser.find_element(By.CSS_SELECTOR, f"#{name} pre").text


@pytest.mark.parametrize("width", [1400, 390])
def test_the_pipeline_is_zoomed_by_sliders_and_by_the_wheel(
    browser: webdriver.Chrome, page: Path, width: int
) -> None:
    drawn(browser, page, width)
    set_slider = (
        "const slider = document.querySelectorAll('#figure-timeline input[type=range]')[arguments[0]];"
        "slider.value = arguments[1]; slider.dispatchEvent(new Event('input'));"
    )
    seen = [ticks(browser)]
    for slider, value in ((0, 8), (1, 0.3), (1, 0.37), (1, 0.45), (0, 6), (1, 1)):
        browser.execute_script(set_slider, slider, value)
        WebDriverWait(browser, 10).until(lambda now: ticks(now) != seen[-1])
        seen.append(ticks(browser))
        assert cut_ticks(browser) == []
    zoom = "return document.querySelector('#figure-timeline input[type=range]').value"
    assert browser.execute_script(zoom) == "6"
    browser.execute_script(
        "const svg = document.querySelector('#figure-timeline svg'), box = svg.getBoundingClientRect();"
        "for (const ctrlKey of [false, ...Array(8).fill(true)]) svg.dispatchEvent(new WheelEvent('wheel',"
        " {deltaY: -1, ctrlKey, clientX: box.left + box.width / 2, clientY: box.top + 9, cancelable: true}));"
    )
    WebDriverWait(browser, 10).until(lambda now: now.execute_script(zoom) == "8")
    WebDriverWait(browser, 10).until(lambda now: ticks(now) != seen[-1])


@pytest.mark.parametrize("width", [1400, 390])
def test_the_flags_are_copied(browser: webdriver.Chrome, page: Path, width: int) -> None:
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions})
    drawn(browser, page, width)
    button = browser.find_element(By.CSS_SELECTOR, "#flags .listing button")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    WebDriverWait(browser, 10).until(lambda _: button.text == "Copied")
    copied = browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert "--pipeline-model-parallel-size 2" in copied


def test_charts_have_the_colours_of_a_dark_screen(browser: webdriver.Chrome, page: Path) -> None:
    found = []
    for scheme in ("light", "dark"):
        drawn(browser, page, 1400, scheme)
        colours = browser.execute_script(
            "const colour = (selector, key) => getComputedStyle(document.querySelector(selector))[key];"
            "return [colour('#figure-time text', 'fill'), colour('body', 'color'),"
            " colour('#figure-time .mark-rect path', 'fill')]"
        )
        assert colours[0] == colours[1]
        found.append(colours)
    assert all(light != dark for light, dark in zip(*found, strict=True))


def test_the_page_logs_nothing_and_asks_for_nothing(browser: webdriver.Chrome, page: Path) -> None:
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    drawn(browser, page, 1400)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert {url for url in urls if not url.startswith(("data:", "about:"))} == {page.as_uri()}
