"""The page of a chosen chip in a real browser: charts fit screen and paper, and chips are filtered."""

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.browser.test_accessibility import write_chip
from tests.browser.test_page import opened, unfold
from tests.browser.test_plan_page import chart_faults, layouts

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chip") / "chip.html"
    write_chip(path)
    return path


@pytest.mark.parametrize("width", [1400, 390])
def test_every_chart_fits_and_none_of_its_text_is_clipped_or_small(
    browser: webdriver.Chrome, page: Path, width: int
) -> None:
    opened(browser, page, width)
    unfold(browser)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".plot")) == 2
    assert chart_faults(browser, width) == {}


def test_chips_are_filtered_by_words(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1400)
    unfold(browser)
    box = browser.find_element(By.CSS_SELECTOR, "#answer input[type=search]")
    box.send_keys("as built")
    assert layouts(browser, 1) == ["tpu-v4-as-built"]


def test_the_charts_are_printed(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1400)
    unfold(browser)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.plot svg')].map(svg => svg.checkVisibility())"
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown == [True, True]
