"""GitHub's workflow runs the same checks as any machine, with supported Pythons."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml


@pytest.fixture(scope="module")
def workflow(project_root: Path) -> dict[object, object]:
    """Return the workflow; YAML reads its key `on` as true."""
    loaded: dict[object, object] = yaml.safe_load((project_root / ".github/workflows/ci.yml").read_text())
    return loaded


def test_the_workflow_runs_the_checks_of_every_machine(workflow: dict, project_root: Path) -> None:
    """One command, so that both have the same result."""
    commands = [step["run"] for step in workflow["jobs"]["run"]["steps"] if "run" in step]
    assert commands == [".ci/run"]
    script = project_root / commands[0]
    assert script.is_file()
    assert script.stat().st_mode & 0o100


def test_it_runs_for_every_change(workflow: dict) -> None:
    """Pull requests and pushes."""
    assert {"push", "pull_request"} <= set(workflow[True])


def test_every_night_all_shipped_studies_run_in_full(project_root: Path) -> None:
    """A job for the default study, which `make study` runs, and one for each file of studies."""
    nightly = yaml.safe_load((project_root / ".github/workflows/nightly.yml").read_text())
    assert nightly[True]["schedule"]
    job = nightly["jobs"]["study"]
    names = {path.stem for path in (project_root / "config/studies").glob("*.yaml")}
    assert set(job["strategy"]["matrix"]["study"]) == {"default", *names}
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[:2] == ["make setup", "make study"]
    assert commands[2].endswith("$CONFIG -- all check")


def test_it_begins_with_the_oldest_supported_python(workflow: dict, project_root: Path) -> None:
    """A newer minimum needs a newer matrix; the container has the Python named by the matrix."""
    job = workflow["jobs"]["run"]
    assert "matrix.python" in job["container"]
    oldest = job["strategy"]["matrix"]["python"][0]
    assert f'requires-python = ">={oldest}"' in (project_root / "pyproject.toml").read_text()


def test_what_is_cached_follows_the_lock(workflow: dict) -> None:
    """Pip's downloads are in the cached folder."""
    job = workflow["jobs"]["run"]
    cache = next(step["with"] for step in job["steps"] if "cache" in step.get("uses", ""))
    assert job["env"]["PIP_CACHE_DIR"] == cache["path"]
    assert "requirements.lock" in cache["key"]


def test_a_package_may_grow_by_two_percent(project_root: Path, tmp_path: Path) -> None:
    """Docstrings, comments and imports are free; a package without a line of its own may not exist."""
    shutil.copytree(project_root / ".ci", tmp_path / ".ci")
    package = tmp_path / "phaze" / "cost"
    package.mkdir(parents=True)
    (tmp_path / ".ci" / "size.toml").write_text("[pure]\ncost = 100\n")
    command = [sys.executable, tmp_path / ".ci" / "size"]
    for lines, status in ((102, 0), (103, 1)):
        code = "\n".join(['"""A docstring."""', "import os", "# a comment", "", *["x = 1"] * lines])
        (package / "kernels.py").write_text(code)
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == status
        assert ("cost: has 103 lines of pure code" in ended.stderr) == bool(status)
    (package / "kernels.py").rename(tmp_path / "phaze" / "__init__.py")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
