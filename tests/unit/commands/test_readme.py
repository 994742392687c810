"""Five tasks from the README alone: its commands run, and print what it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TASK = re.compile(
    r"^## ([^\n]+)\n(?:(?!## |```).*\n)*```sh\n((?:(?!```).*\n)+)```\n\n```\n((?:(?!```).*\n)+)```\n",
    re.MULTILINE,
)
TASKS = {
    title: (commands, shown) for title, commands, shown in TASK.findall((ROOT / "README.md").read_text())
}
CUT = "…\n"
"""Line for output that is not shown."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tasks, which run in their order."""
    return tmp_path_factory.mktemp("readme")


def test_the_readme_is_short_and_has_five_tasks() -> None:
    assert len(TASKS) == 5
    assert (ROOT / "README.md").read_text().count("\n") <= 150
    for commands, _ in TASKS.values():
        assert len(re.findall(r"^phaze ", commands, re.MULTILINE)) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("title", TASKS)
def test_a_task_prints_what_the_readme_shows(title: str, folder: Path) -> None:
    commands, shown = TASKS[title]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands], cwd=folder, env=os.environ | {"PATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pattern = ".*".join(map(re.escape, shown.split(CUT)))
    assert re.fullmatch(pattern, done.stdout, re.DOTALL), done.stdout
