"""Jobs in forks see what a process of their own would see, and end with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phaze.base.fork_server import fork_jobs

PARENT = """
import os, subprocess, sys
from pathlib import Path
from phaze.base.fork_server import fork_jobs
fork_jobs(Path("."))
print(sys.executable, os.environ["PHAZE_FORKS"], flush=True)
sys.stdin.read()
"""
"""Program that starts a server, as a Snakemake does, and ends when its standard input is closed."""


class Jobs:
    """A program that starts a server, and scripts that its jobs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-c", PARENT]
        pipe = subprocess.PIPE
        self.parent = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, text=True)
        assert self.parent.stdout
        self.python, self.socket = self.parent.stdout.readline().split()

    def start(self, script: str, *, threads: int = 1) -> subprocess.Popen[str]:
        """Start a script with the Python of the jobs."""
        path = self.folder / "script.py"
        path.write_text(script)
        variables = {**os.environ, "PHAZE_FORKS": self.socket, "OMP_NUM_THREADS": str(threads)}
        command, pipe = [self.python, str(path)], subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=variables, text=True, stdout=pipe, stderr=pipe)

    def run(self, script: str, *, threads: int = 1) -> tuple[int, str, str]:
        """Exit status, output and errors of a script."""
        with self.start(script, threads=threads) as job:
            output, errors = job.communicate(timeout=60)
        return job.returncode, output, errors

    def end(self) -> None:
        """End the program that started the server."""
        with self.parent:
            self.parent.communicate(timeout=60)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Jobs with a server, which ends with the test."""
    started = Jobs(tmp_path)
    yield started
    started.end()


def vanishes(path: Path) -> bool:
    """Return whether a path vanishes within a minute."""
    for _ in range(1200):
        if not path.exists():
            return True
        time.sleep(0.05)
    return False


def test_a_script_runs_in_a_fork_with_its_own_streams_folder_and_arguments(jobs: Jobs) -> None:
    script = "import os, sys; print(os.getppid(), os.getcwd(), sys.argv, __name__); sys.stderr.write('said')"
    status, output, errors = jobs.run(script)
    parent, folder, *arguments = output.split()
    command = Path("/proc", parent, "cmdline").read_bytes().split(b"\0")
    assert b"phaze.base.fork_server" in command
    assert (status, folder, arguments[-1], errors) == (0, str(jobs.folder), "__main__", "said")
    assert arguments[0].strip("[]'").endswith(".py")


def test_the_configuration_is_found_from_the_folder_of_a_job(jobs: Jobs) -> None:
    script = "import phaze.spec.files as files; print((files.FOLDER / 'models').is_dir())"
    assert jobs.run(script) == (0, "True\n", "")


@pytest.mark.parametrize(
    ("ending", "status", "errors"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no')", 1, "no\n"),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
    ],
)
def test_the_caller_ends_as_its_fork_does(jobs: Jobs, ending: str, status: int, errors: str) -> None:
    assert jobs.run(f"import os, sys\n{ending}") == (status, "", errors)


def test_an_exception_is_shown_with_its_traceback(jobs: Jobs) -> None:
    status, _, errors = jobs.run("def asked():\n    raise ValueError('odd')\nasked()")
    assert status == 1
    assert "in asked" in errors
    assert errors.endswith("ValueError: odd\n")


def test_a_fork_ends_with_its_caller(jobs: Jobs) -> None:
    with jobs.start("import os, time; print(os.getpid(), flush=True); time.sleep(600)") as job:
        assert job.stdout
        fork = int(job.stdout.readline())
        job.kill()
    assert vanishes(Path(f"/proc/{fork}"))


def test_the_server_imports_the_modules_of_a_script_for_later_ones(jobs: Jobs) -> None:
    ask = "import sys; print('colorsys' in sys.modules)"
    assert jobs.run(ask) == (0, "False\n", "")
    assert jobs.run("import colorsys") == (0, "", "")
    assert jobs.run(ask) == (0, "True\n", "")


@pytest.mark.parametrize("script", ["import nothing_of_this_name", "this is no Python"])
def test_a_script_that_cannot_start_says_so_itself(jobs: Jobs, script: str) -> None:
    status, _, errors = jobs.run(script)
    assert status == 1
    assert "Error" in errors


def test_jobs_of_several_threads_and_without_a_server_start_as_usual(jobs: Jobs) -> None:
    script = "import os; print(open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0)))"
    assert "phaze.base.fork_server" in jobs.run(script)[1]
    assert "phaze.base.fork_server" not in jobs.run(script, threads=4)[1]
    jobs.end()
    assert vanishes(Path(jobs.socket).parent)
    assert "phaze.base.fork_server" not in jobs.run(script)[1]


@pytest.mark.parametrize(
    ("folder", "variable", "reason"),
    [("jobs", "off", "PHAZE_FORKS is off"), ("my jobs", None, "needs quotes in a shell")],
)
def test_jobs_that_start_one_by_one_have_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, variable: str | None, reason: str
) -> None:
    python = sys.executable
    monkeypatch.delenv("PHAZE_FORKS", raising=False)
    if variable is not None:
        monkeypatch.setenv("PHAZE_FORKS", variable)
    assert reason in fork_jobs(tmp_path / folder)
    assert sys.executable == python


def test_the_program_in_place_of_python_runs_anything_else_with_python(jobs: Jobs) -> None:
    command = [jobs.python, "-c", "import sys; print(sys.executable)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.executable}\n"


def test_there_are_no_forks_in_a_folder_with_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "my study"
    folder.mkdir()
    code = PARENT.replace('os.environ["PHAZE_FORKS"]', '"PHAZE_FORKS" in os.environ')
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, input="", capture_output=True, text=True, check=True)
    assert done.stdout == f"{sys.executable} False\n"
    assert not list(folder.iterdir())
