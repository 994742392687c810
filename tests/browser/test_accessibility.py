"""Pages are open to all: axe-core finds no barrier in light and dark, and the keyboard reaches the answer."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from phaze.report.build import build_report
from phaze.report.measured_page import build_measured_report
from tests.browser.test_page import opened, unfold
from tests.commands import invoke
from tests.effort import if_every
from tests.unit.report import builder
from tests.unit.report.measured.test_measured_page import INPUTS

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def axe(project_root: Path) -> str:
    """Return the script axe-core; skip the test without it, or under CI fail it."""
    for file in (project_root / ".axe").glob("axe-*.min.js"):
        return file.read_text(encoding="utf-8")
    reason = "axe-core is not there; .ci/axe fetches it"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason)
    pytest.skip(reason)


def write_plan(path: Path) -> None:
    """Write the page of a plan."""
    command = "plan gpt2 --gpus 8xh100 --gbs 16 --seq-length 256 --fix pp=1,cp=1,tp=1 --top 3 --page"
    result = invoke(*command.split(), path)
    assert result.exit_code == 0, result.output


def write_chip(path: Path) -> None:
    """Write the page of a choice of a chip."""
    sweeps = "--sweep pe_x=128 --sweep pe_y=64,128 --sweep num_tc=2,4 --sweep num_vc=16 --sweep glb_mib=4,8"
    job = "chip gpt2 --devices 4 --sequence 256 --gbs 8 --area-limit 60mm2 --fix cp=1,pp=1,tp=1 --page"
    result = invoke(*job.split(), path, *sweeps.split(), *["--price-mm2", "0.3USD", "--price-gib", "12USD"])
    assert result.exit_code == 0, result.output


PAGES: dict[str, Callable[[Path], object]] = {
    "plan": write_plan,
    "chip": write_chip,
    "chips": lambda path: path.write_text(build_report(builder.inputs()).page, encoding="utf-8"),
    "validate": lambda path: path.write_text(build_measured_report(INPUTS).page, encoding="utf-8"),
}


@pytest.fixture(scope="module", params=PAGES)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    PAGES[request.param](path)
    return path


def barriers(browser: webdriver.Chrome, axe: str) -> list[dict[str, Any]]:
    """Return the violations that axe-core finds on the open page, with the elements that have them."""
    browser.execute_script(axe)
    script = (
        "axe.run().then(({violations}) => arguments[0](violations.map(({id, help, nodes}) =>"
        " ({id, help, nodes: nodes.map(node => node.html.slice(0, 200))}))))"
    )
    return list(browser.execute_async_script(script))


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1400, "light"),
        (390, "dark"),
        pytest.param(390, "light", marks=if_every),
        pytest.param(1400, "dark", marks=if_every),
    ],
)
def test_axe_finds_no_barrier_in_light_and_dark(
    browser: webdriver.Chrome, page: Path, axe: str, width: int, scheme: str
) -> None:
    """Colours do not depend on the width, nor the order of elements on colours: two are always checked."""
    opened(browser, page, width, scheme)
    unfold(browser)
    assert barriers(browser, axe) == []


def test_axe_finds_barriers_where_there_are_some(browser: webdriver.Chrome, tmp_path: Path, axe: str) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text('<!doctype html><html lang="en"><title>bad</title><img src="data:,"><input></html>')
    opened(browser, bad, 1400)
    assert {"image-alt", "label"} <= {barrier["id"] for barrier in barriers(browser, axe)}


def focused(browser: webdriver.Chrome, script: str) -> Any:
    """Return a property of the element that has the focus."""
    return browser.execute_script(f"return document.activeElement{script}")


def test_the_first_key_skips_to_the_answer(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1400)
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert focused(browser, ".className") == "skip"
    assert focused(browser, ".getBoundingClientRect().left") >= 0  # shown once it has the focus
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.current_url.endswith("#main")


def test_keys_reach_every_control_that_is_shown(browser: webdriver.Chrome, page: Path) -> None:
    opened(browser, page, 1400)
    script = (
        "const kinds = 'a[href], button, input, summary, pre[tabindex], .scroll';"
        "return [...document.querySelectorAll(kinds)].filter(e => e.checkVisibility() && e.tabIndex < 0)"
        ".map(e => e.outerHTML.slice(0, 99))"
    )
    assert browser.execute_script(script) == []


def test_a_key_moves_a_slider_and_its_answer(browser: webdriver.Chrome, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    write_plan(path)
    opened(browser, path, 1400)
    unfold(browser)
    texts = (
        "return [...document.querySelectorAll('#figure-resources .mark-text.role-mark text')]"
        ".map(text => text.textContent)"
    )
    before = browser.execute_script(texts)
    for slider in browser.find_elements(By.CSS_SELECTOR, "#figure-resources input[type=range]"):
        assert slider.get_attribute("value") == "10"
        slider.send_keys(Keys.ARROW_LEFT * 3)
        assert slider.get_attribute("value") == "-20"
    after = browser.execute_script(texts)
    assert len(before) == len(after) >= 4
    seconds = [[float(text.split(" s")[0]) for text in labels] for labels in (before, after)]
    assert all(more <= less for more, less in zip(*seconds, strict=True))
    assert any(more < less for more, less in zip(*seconds, strict=True))
