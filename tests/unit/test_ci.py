"""GitHub's workflow runs the same checks as any machine, with supported Pythons."""

import re
import runpy
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


def test_every_week_tests_run_with_the_newest_dependencies(project_root: Path) -> None:
    """The lock is resolved again before it is installed."""
    newest = yaml.safe_load((project_root / ".github/workflows/newest.yml").read_text())
    assert newest[True]["schedule"]
    commands = [step["run"] for step in newest["jobs"]["test"]["steps"] if "run" in step]
    assert commands == ["make lock", "make setup", "make lint", "make test"]


def test_hooks_of_commits_need_no_network_and_are_checks_of_lint(project_root: Path) -> None:
    """Hooks run what `make setup` has installed, in the order in which they change files."""
    config = yaml.safe_load((project_root / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    programs = [hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks]
    assert programs == ["ruff", "ruff", "codespell", "snakefmt", "mypy"]
    lint = (project_root / ".ci" / "lint").read_text()
    assert all(f"check {program}" in lint for program in programs)


def test_a_bug_report_asks_for_what_is_needed_to_repeat_it(project_root: Path) -> None:
    """Every form has a label for each field, and a field that must be filled in."""
    forms = {
        path.stem: yaml.safe_load(path.read_text())
        for path in (project_root / ".github/ISSUE_TEMPLATE").iterdir()
    }
    del forms["config"]
    assert set(forms) == {"bug", "prediction", "question"}
    needed = {
        name: [field["id"] for field in form["body"] if field.get("validations", {}).get("required")]
        for name, form in forms.items()
    }
    assert needed["bug"] == ["command", "output", "version"]
    assert {"layout", "measured", "predicted"} <= set(needed["prediction"])
    assert all(field["attributes"]["label"] for form in forms.values() for field in form["body"])


@pytest.mark.slow
def test_ratios_of_a_tree_to_itself_are_printed(tmp_path: Path, project_root: Path) -> None:
    """A commit is checked out beside the tree for the time of the run."""
    shutil.copytree(project_root / ".ci", tmp_path / ".ci")
    (tmp_path / "tests" / "benchmarks").mkdir(parents=True)
    benchmark = tmp_path / "tests" / "benchmarks" / "test_sum.py"
    benchmark.write_text("def test_sum(benchmark):\n    benchmark(sum, range(1000))\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "Time a sum"]):
        subprocess.run([*git, *arguments], check=True)
    command = [sys.executable, tmp_path / ".ci" / "ratios", "HEAD"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[2].startswith("| test_sum.py::test_sum | ")
    assert (
        subprocess.run([*git, "worktree", "list"], capture_output=True, check=True).stdout.count(b"\n") == 1
    )


def test_predictions_that_got_worse_fail_unless_the_changelog_names_the_source(project_root: Path) -> None:
    accuracy = runpy.run_path(str(project_root / ".ci" / "accuracy"))
    before = {"large": {"answered": 20, "mean_error": 0.05, "covered": 0.8}}
    for changed, reason in (
        ({"mean_error": 0.0529}, ""),
        ({"mean_error": 0.0531}, "large: mean error 5.00% -> 5.31%"),
        ({"covered": 0.9}, ""),
        ({"covered": 0.95}, "large: inside their interval 80% -> 95%"),
        ({"mean_error": 0.2, "answered": 19}, ""),
    ):
        after = {"large": {**before["large"], **changed}, "new": {"answered": 99, "mean_error": 1.0}}
        assert accuracy["failures"](before, after, "") == [reason] * bool(reason)
        assert accuracy["failures"](before, after, "+ times of `large`") == []


def test_most_tests_are_in_the_fast_lane(project_root: Path) -> None:
    """`make check` runs at least 85 % of the tests, and every law."""
    functions, left_out = 0, []
    for path in sorted((project_root / "tests").rglob("test_*.py")):
        text = path.read_text()
        tests = text.count("\ndef test_")
        functions += tests
        if re.search(r"^pytestmark = .*(workflow|browser)", text, re.MULTILINE):
            left_out += [path.parent.name] * tests
        else:
            left_out += [path.parent.name] * len(
                re.findall(r"^@pytest\.mark\.(?:slow|long)$", text, re.MULTILINE)
            )
    assert len(left_out) < 0.15 * functions
    assert "laws" not in left_out


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
