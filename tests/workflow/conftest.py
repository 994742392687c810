"""Folders with finished small studies, each run once per test run by whichever worker needs it first."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.workflow.folders import ROOT, Folder, write_study
from tests.workflow.studies import EVERYTHING

Prepare = Callable[..., Folder]


def install_plugin(extra: str, folder: Path, *others: str) -> str:
    """Install the Snakemake plugin of an extra of the project into a folder, or skip the test."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--target", str(folder), *project["optional-dependencies"][extra], *others]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the plugin cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return str(folder)


@pytest.fixture(scope="session")
def prepare(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Prepare:
    """Return a function that runs the small study with other values of its top keys under a name, once.

    What the folder `like` has done stays done. Tests read the folder that it returns, and copy it before they
    change anything.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "studies"

    def run(
        name: str,
        files: dict[str, str] | None = None,
        targets: tuple[str, ...] = (),
        like: Folder | None = None,
        **changes: object,
    ) -> Folder:
        shared.mkdir(exist_ok=True)
        done = shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                if like is not None:
                    like.copy(shared / name)
                write_study(shared / name, files, **changes).run(*targets)
                done.touch()
        return Folder(shared / name)

    return run


@pytest.fixture(scope="session")
def finished(prepare: Prepare) -> Folder:
    """Return a folder in which the small study has run with every kind of job."""
    return prepare("finished", **EVERYTHING)


@pytest.fixture
def folder(finished: Folder, tmp_path: Path) -> Folder:
    """Return a folder of its own in which the small study has run."""
    return finished.copy(tmp_path / "study")
