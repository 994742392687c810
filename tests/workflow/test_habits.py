"""A study runs as Snakemake's users expect: from any folder, as a module, with a report and with profiles."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

import pytest

from tests.workflow.folders import ROOT, Folder, forked

pytestmark = pytest.mark.workflow

MODULE = """
configfile: "study.yaml"

module phaze:
    snakefile: "{snakefile}"
    config: config

use rule * from phaze as phaze_*

rule mine:
    default_target: True
    input: rules.phaze_all.input
"""


def snakemake(folder: Path, *arguments: str) -> str:
    """Run Snakemake in a working directory, and return what it prints."""
    with chdir(folder):
        run = forked("snakemake", *arguments)
    assert run.returncode == 0, run.output
    return run.output


def test_a_study_runs_from_the_folder_of_its_results(folder: Folder) -> None:
    """Paths in the study are relative to the working directory, those of the workflow are not."""
    study = ("--snakefile", str(ROOT / "Snakefile"), "--configfile", "study.yaml")
    assert "Nothing to be done" in snakemake(folder.path, *study, "--dry-run")


def test_a_study_is_a_module_of_another_workflow(folder: Folder) -> None:
    """The module has the same parameters as the study by itself, defaults included, so nothing is stale."""
    (folder.path / "Snakefile").write_text(MODULE.format(snakefile=ROOT / "Snakefile"))
    printed = snakemake(folder.path, "--dry-run", "--quiet", "rules")
    assert "phaze_" not in printed
    graph = folder.path / "results/graphs/tiny.parquet"
    whole = graph.read_bytes()
    graph.unlink()
    snakemake(folder.path, "--cores", "1", str(graph.relative_to(folder.path)))
    assert graph.read_bytes() == whole


def test_the_report_of_snakemake_has_page_and_results(folder: Folder) -> None:
    folder.snakemake("--report", "all.html")
    written = (folder.path / "all.html").read_text()
    assert "The best accelerators and placements of every model" in written
    assert "The winning architecture and placement of every model" in written


def test_a_profile_runs_a_study_on_a_workstation(folder: Folder) -> None:
    """Command-line options come before those of the profile."""
    profile = ("--profile", str(ROOT / "config/profiles/workstation"))
    assert "Nothing to be done" in folder.snakemake(*profile, "--dry-run").output
    graph = ("--force", "results/graphs/tiny.parquet")
    assert "Provided cores: 64" in folder.snakemake(*profile, *graph).output
    assert "Provided cores: 2" in folder.snakemake(*profile, "--cores", "2", *graph).output
