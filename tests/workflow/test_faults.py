"""Full disks, read-only folders, damaged files, concurrent runs, and edited studies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.workflow.conftest import Prepare
from tests.workflow.folders import ROOT, Folder, Run, forked, full, read_only, write_study
from tests.workflow.studies import SMALL

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="session")
def extracted(prepare: Prepare) -> Folder:
    """Return a folder in which operators were extracted and estimated."""
    return prepare("extracted", targets=("estimates",), **SMALL)


@pytest.fixture
def folder(extracted: Folder, tmp_path: Path) -> Folder:
    """Return a folder of its own in which this was done."""
    return extracted.copy(tmp_path / "study")


def messages(run: Run) -> list[str]:
    """Return the error messages of our jobs."""
    return [line for line in run.output.splitlines() if line.startswith("error: ")]


def failed_with_one_message(run: Run) -> str:
    """Return the one message of a run that failed without a traceback."""
    assert run.returncode not in (0, None)
    assert "Traceback" not in run.output, run.output
    assert len(messages(run)) == 1, run.output
    return messages(run)[0]


def test_a_full_disk_is_one_message_and_the_next_run_goes_on(folder: Folder) -> None:
    expected = folder.tables()
    estimates = folder.path / "results/estimates"
    shutil.rmtree(estimates)
    with full(estimates):
        run = folder.snakemake("--cores", "1", "estimates", check=False)
        message = failed_with_one_message(run)
        assert list(estimates.rglob("*.parquet")) == []
    assert re.search(r"named-[a-z0-9-]+\.parquet: cannot be written: No space left on device", message)
    folder.run("estimates")
    assert folder.tables() == expected


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("results", "results/.writable: cannot be written: Read-only file system"),
        (".", "a study cannot run here: Read-only file system; --directory names another folder"),
    ],
)
def test_a_folder_that_cannot_be_written_is_one_message(folder: Folder, place: str, message: str) -> None:
    closed = folder.path / place
    shutil.rmtree(folder.path / "results/estimates")
    (folder.path / ".snakemake/held").unlink(missing_ok=True)
    with read_only(closed):
        run = folder.snakemake("--cores", "1", "estimates", check=False)
    assert run.returncode != 0
    assert message in run.output
    assert "Read-only file system" in run.output
    assert "Traceback" not in run.output
    assert not re.search(r'File ".*site-packages', run.output), run.output


def test_a_damaged_table_is_a_message_that_says_what_to_do(folder: Folder) -> None:
    expected = folder.tables()
    parts = folder.path / "results/parts/tiny/tp1-b2.parquet"
    whole = parts.read_bytes()
    (folder.path / "results/estimates/paper/tiny/tp1-b2/named-tpu-v4.parquet").unlink()
    written = parts.stat().st_mtime_ns
    parts.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    os.utime(parts, ns=(written, written))
    message = failed_with_one_message(folder.snakemake("--cores", "1", "estimates", check=False))
    assert "results/parts/tiny/tp1-b2.parquet: cannot be read as table parts" in message
    assert message.endswith("; delete it and run again")
    parts.unlink()
    folder.run("estimates")
    assert folder.tables() == expected


@contextmanager
def running(folder: Folder, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Snakemake until its first job has started."""
    process = subprocess.Popen(
        folder.command("--cores", "1", *arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Job "):
            break
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def finished(process: subprocess.Popen[str]) -> bool:
    """Wait for a run, and return whether it succeeded."""
    assert process.stderr is not None
    process.stderr.read()
    return process.wait() == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"models: [\xff]\n",
            "study.yaml: cannot be read: 'utf-8' codec can't decode byte 0xff in position 9",
        ),
        (b"models: [tiny\n", "study.yaml: is not valid YAML: while parsing a flow sequence"),
        (
            b"__use_yte__: true\n__definitions__: [\"open('run', 'w')\"]\n",
            "study.yaml: __use_yte__: is not allowed",
        ),
        (None, "study.yaml: cannot be read: No such file or directory"),
    ],
    ids=["bytes", "syntax", "template", "absent"],
)
def test_a_file_that_is_no_study_is_one_message(content: bytes | None, message: str, tmp_path: Path) -> None:
    """Snakemake reads it first, and would show a traceback, name no file, or run code of a template."""
    folder = write_study(tmp_path / "study")
    (folder.path / "study.yaml").unlink()
    if content is not None:
        (folder.path / "study.yaml").write_bytes(content)
    run = folder.snakemake("--dry-run", check=False)
    assert run.returncode == 1
    assert [line for line in run.output.splitlines() if message in line] == run.output.splitlines()[1:]
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "way",
    [["--configfile", "STUDY", "TEMPLATE"], ["--profile", "OWN"], ["--profile", "OWN", "--", "extract"], []],
    ids=["second-file", "profile", "profile-and-target", "environment"],
)  # fmt: skip
def test_no_code_of_a_study_runs_in_whatever_way_it_comes(way: list[str], tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study")
    template, ran = folder.path / "template.yaml", tmp_path / "run"
    template.write_text(f"__use_yte__: true\n__definitions__: [\"open('{ran}', 'w')\"]\n")
    (folder.path / "own.yaml").write_text(f"configfile: {template}\n")
    known = {"STUDY": folder.path / "study.yaml", "TEMPLATE": template, "OWN": folder.path / "own.yaml"}
    run = forked(
        "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--dry-run", "--directory", str(folder.path),
        *(str(known.get(word, word)) for word in way),
        variables={} if way else {"SNAKEMAKE_PROFILE": str(known["OWN"])},
    )  # fmt: skip
    assert run.returncode == 1
    assert "template.yaml: __use_yte__: is not allowed: a study is data" in run.output
    assert "Traceback" not in run.output
    assert not ran.exists()


def test_a_default_study_that_was_broken_is_one_message(tmp_path: Path) -> None:
    """It is part of the workflow, and is read for every study."""
    workflow = tmp_path / "workflow"
    (workflow / "config").mkdir(parents=True)
    for path in (*ROOT.iterdir(), *(ROOT / "config").iterdir()):
        if path.name not in ("config", "config.yaml"):
            (workflow / path.relative_to(ROOT)).symlink_to(path)
    (workflow / "config/config.yaml").write_text("models: [tiny\n")
    run = Folder(write_study(tmp_path / "study").path, workflow).snakemake("--dry-run", check=False)
    assert run.returncode == 1
    assert "config/config.yaml: is not valid YAML: while parsing a flow sequence" in run.output
    assert "Traceback" not in run.output


def test_the_lock_of_a_killed_run_gives_way(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", **SMALL)
    with running(folder, "estimates") as first:
        first.kill()
        first.wait()
    assert list((folder.path / ".snakemake/locks").iterdir())
    run = folder.snakemake("--cores", "1", "estimates")
    assert "the last run in this folder was killed: its lock is removed" in run.output


def test_a_study_that_is_run_and_edited_while_it_runs_gives_the_results_it_began_with(
    folder: Folder, tmp_path: Path
) -> None:
    """A second run is refused until the first one ends."""
    expected = folder.tables()
    fresh = write_study(tmp_path / "fresh", **SMALL)
    with running(fresh, "estimates") as first:
        fresh.edit(lambda model: model.update(hidden=128), "tiny.yaml")
        # Files of both runs are locked: those of microbatches of 2.
        fresh.edit(lambda study: study["training"].update(microbatches=[2, 4]))
        second = fresh.snakemake("--cores", "1", "estimates", check=False)
        assert finished(first)
    assert second.returncode != 0
    assert "Directory cannot be locked" in second.output
    assert "Traceback" not in second.output
    assert fresh.tables() == expected
    stale = fresh.snakemake("--dry-run", "estimates").output
    assert "extract tiny tp1-b4" in stale


def test_a_cluster_job_of_a_study_that_was_edited_does_not_start(folder: Folder) -> None:
    """Jobs of a cluster read the study again; here Snakemake in the mode of such a job."""
    folder.edit(lambda model: model.update(hidden=128), "tiny.yaml")
    run = folder.snakemake(
        "--cores", "1", "--mode", "remote", "--allowed-rules", "extract", "--",
        "results/parts/tiny/tp1-b2.parquet", check=False, variables={"PHAZE_STUDY": "of another study"},
    )  # fmt: skip
    assert run.returncode != 0
    assert "the study, or a file that it names, changed while the study was running" in run.output
    assert "Traceback" not in run.output
