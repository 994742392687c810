"""The profiles for PBS and LSF, with stand-ins for their programs that run jobs on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workflow.batch.programs import PROGRAMS
from tests.workflow.conftest import Prepare, install_plugin
from tests.workflow.folders import ROOT, write_study
from tests.workflow.studies import SMALL

pytestmark = pytest.mark.workflow

STAND_INS = Path(__file__).with_name("programs.py")
SUBMIT = {"pbs": "qsub", "lsf": "bsub"}


@dataclass(frozen=True)
class Batch:
    """Batch system: its folder of jobs, and the environment for its programs."""

    spool: Path
    variables: dict[str, str]

    def calls(self, program: str) -> list[str]:
        """Return how one of its programs was called."""
        lines = (self.spool / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith(f"{program} ")]

    def status(self, system: str, job: str, folder: Path) -> str:
        """Return the output of a profile's status script for a job."""
        script = ROOT / "config/profiles" / system / "status.sh"
        done = subprocess.run(
            [str(script), job],
            cwd=folder,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with Snakemake's plugin for such systems."""
    return install_plugin("batch", tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    """Return a batch system."""
    folder = tmp_path / "bin"
    spool = tmp_path / "spool"
    for path in (folder, spool):
        path.mkdir()
    for program in PROGRAMS:
        (folder / program).symlink_to(STAND_INS)
    return Batch(spool, {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "BATCH": str(spool)})


def on(system: str, every_s: int = 1) -> list[str]:
    """Return arguments for a run on a batch system that is asked more often than a user would."""
    profile = str(ROOT / "config/profiles" / system)
    return ["--profile", profile, "--seconds-between-status-checks", str(every_s), "--", "estimates"]


@pytest.mark.parametrize("system", SUBMIT)
def test_a_study_gives_the_same_bytes_and_a_killed_job_goes_again(
    system: str, batch: Batch, plugin: str, prepare: Prepare, tmp_path: Path
) -> None:
    """The second attempt has twice the memory and time."""
    here = prepare("extracted", targets=("estimates",), **SMALL)
    there = write_study(tmp_path / "study", **SMALL)
    (batch.spool / "doomed").write_text("1")
    run = there.snakemake(*on(system), variables={**batch.variables, "PYTHONPATH": plugin})
    assert there.tables() == here.tables()
    first, second = (re.search(r"mem=(\d+)", call) for call in batch.calls(SUBMIT[system]))
    assert first, run.output
    assert second, run.output
    assert int(second[1]) == 2 * int(first[1])
    assert there.stale("estimates") == set()


def test_a_run_that_is_interrupted_takes_its_jobs_with_it(batch: Batch, plugin: str, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", **SMALL)
    process = subprocess.Popen(
        # Tests in the background may ignore interrupts; and what is just asked for is not cancelled.
        ["env", "--default-signal=INT", *folder.command(*on("lsf", every_s=15))],
        env={**os.environ, **batch.variables, "PYTHONPATH": plugin},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    interrupt_once_submitted(process)
    assert process.returncode != 0
    assert batch.calls("bkill") == ["bkill 1"]


def interrupt_once_submitted(process: subprocess.Popen[str]) -> None:
    """Interrupt a run after it has submitted a job, and wait for its end."""
    assert process.stderr is not None
    heard = threading.Event()

    def insist() -> None:
        while not heard.wait(1.0):  # Snakemake does not hear what comes while it writes a message
            process.send_signal(signal.SIGINT)

    next(line for line in process.stderr if line.startswith("Submitted "))
    thread = threading.Thread(target=insist)
    thread.start()
    next((line for line in process.stderr if line.startswith("Terminating processes")), None)
    heard.set()
    thread.join()
    process.communicate()


def test_a_server_that_forgets_its_jobs_does_not_matter(batch: Batch, tmp_path: Path) -> None:
    """PBS forgets ended jobs by default: a file of the job gives its result."""
    (batch.spool / "forgetful").touch()
    left = tmp_path / ".snakemake/pbs/1.server.exit"
    left.parent.mkdir(parents=True)
    left.write_text("0\n")
    assert batch.status("pbs", "1.server", tmp_path) == "success"
    left.write_text("1\n")
    assert batch.status("pbs", "1.server", tmp_path) == "failed"
    left.unlink()
    assert batch.status("pbs", "1.server", tmp_path) == "failed"


@pytest.mark.parametrize(("system", "program"), [("pbs", "qstat"), ("lsf", "bjobs")])
def test_a_server_that_does_not_answer_is_asked_again(
    system: str, program: str, batch: Batch, tmp_path: Path
) -> None:
    asked = tmp_path / "bin" / program
    asked.unlink()
    asked.write_text("#!/bin/sh\necho cannot connect to server >&2\nexit 1\n")
    asked.chmod(0o755)
    assert batch.status(system, "1", tmp_path) == "running"
