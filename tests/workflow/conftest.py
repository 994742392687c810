"""Folders in which the small study has run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.workflow.folders import Folder, write_study


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Return a folder in which the small study has run; tests copy it."""
    folder = write_study(tmp_path_factory.mktemp("finished"))
    folder.run()
    return folder


@pytest.fixture
def folder(finished: Folder, tmp_path: Path) -> Folder:
    """Return a folder of its own in which the small study has run."""
    shutil.copytree(finished.path, tmp_path / "study", symlinks=True)
    return Folder(tmp_path / "study")
