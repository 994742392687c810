"""Shared by all tests: deterministic examples, and fixtures for optional data."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tests.effort import DRAWS

ROOT = Path(__file__).resolve().parent.parent

os.environ.setdefault("MPLBACKEND", "Agg")
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None, max_examples=DRAWS)
settings.load_profile("deterministic")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that workers finish together."""
    markers = ("long", "workflow")
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in markers])


@pytest.fixture(scope="session")
def project_root() -> Path:
    """Return the folder of the Snakefile."""
    return ROOT


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """Return a function that gives a program's path, or skips the test, or under CI fails it."""
    return find_program


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of reference data next to the project; skip the test without it."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("there is no ../shared/data beside the project")
    return folder


def find_program(name: str) -> str:
    """Return a program's path, or skip the test, or under CI fail it."""
    path = shutil.which(name)
    if path:
        return path
    reason = f"{name} is not installed; `make test` installs it where that is permitted"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason)
    pytest.skip(reason)
