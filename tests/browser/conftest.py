"""A headless Chromium for the tests of this folder."""

from collections.abc import Callable, Iterator

import pytest
from selenium import webdriver

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


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
    driver.set_script_timeout(120)
    yield driver
    driver.quit()
