"""GitHub's workflow runs the same checks as any machine, with supported Pythons."""

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
