"""A change re-computes the results that depend on it, and no others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.commands import invoke
from tests.workflow.conftest import Prepare
from tests.workflow.folders import ROOT, STUDY, TINY, Folder
from tests.workflow.studies import FAST

pytestmark = pytest.mark.workflow

POINT = "tiny/tp1-b2"
SIMULATED = {"simulations", "report"}


def tables_of(stale: set[str]) -> set[str]:
    """Return the stale tables, without those of the common architecture, which runs all stages in memory."""
    return {path.split("/")[0] for path in stale if not path.endswith("/common.parquet")}


def test_a_second_run_does_nothing_also_with_equal_files_of_other_times(folder: Folder) -> None:
    before = folder.tables()
    for table in ("placements", "screens", "estimates", "operators"):
        for path in (folder.path / "results" / table).rglob("*.parquet"):
            path.touch()
    assert "Nothing to be done" in folder.snakemake("--cores", "2").output
    assert folder.tables() == before


def test_the_status_of_a_study_says_what_is_done_and_what_is_stale_and_why(folder: Folder) -> None:
    question = ["status", "--directory", str(folder.path), "--cores", "2"]
    question += ["--configfile", str(folder.path / "study.yaml")]

    def answer() -> str:
        return invoke(*question).stdout

    assert answer().splitlines()[-1] == "complete: no jobs left"
    folder.edit(lambda study: study["schedule"].update(node_limit=12345))
    found = answer()
    assert re.search(r"^extract +1 of +1 done$", found, re.MULTILINE), found
    assert re.search(
        r"^schedule +0 of +1 done +1 to run: its settings or its code changed$", found, re.MULTILINE
    ), found
    assert re.search(
        r"^\d+ jobs left: \d+ (s|min) of work, about \d+ (s|min) on 2 cores$", found, re.MULTILINE
    )


def test_every_check_of_the_small_study_passes(finished: Folder) -> None:
    checks = finished.reported("checks")
    assert len(checks) > 20
    assert checks.loc[~checks["passed"], ["check", "example"]].to_numpy().tolist() == []


def test_every_file_of_the_report_is_an_output(finished: Folder) -> None:
    lines = finished.snakemake("--summary").output.splitlines()
    declared = {line.split("\t")[0] for line in lines if line.startswith("results/report/")}
    written = {str(path.relative_to(finished.path)) for path in (finished.path / "results/report").iterdir()}
    assert declared == written


def test_one_more_microbatch_width_or_model_computes_only_its_own_chain(folder: Folder) -> None:
    def add(study: dict) -> None:
        study["training"].update(microbatches=[2, 4])
        study["workloads"]["tiny"].update(tensor=[1, 2])
        study["workloads"]["other"] = study["workloads"]["tiny"]
        study["models"].append("other")

    folder.edit(add)
    stale = folder.stale()
    assert not {path for path in stale if POINT in path}
    for chain in ("tiny/tp1-b4", "tiny/tp2-b2", "other/tp1-b2"):
        assert {path for path in stale if chain in path}


@pytest.mark.long
def test_one_more_microbatch_leaves_other_points_alone(folder: Folder) -> None:
    """Their jobs do not run, and jobs across points give the same result with and without a cache."""
    evaluated = folder.path / "results/evaluations"
    jobs = {path: path.stat().st_mtime_ns for path in (folder.path / "results/logs").rglob("tp1-b2/*.log")}
    known = {path: path.read_bytes() for path in evaluated.rglob("*.json")}
    assert jobs
    assert known
    folder.edit(lambda study: study["training"].update(microbatches=[2, 4]))
    files = ("fronts/paper/tiny", "placements/paper/tiny/front", "placements/paper/tiny/common")
    folder.run(*(f"results/{file}.parquet" for file in files))
    assert {path: path.stat().st_mtime_ns for path in jobs} == jobs
    assert {path: path.read_bytes() for path in known} == known
    found = folder.tables()
    shutil.rmtree(evaluated)
    folder.snakemake("--cores", "2", "--force", *(f"results/{file}.parquet" for file in files))
    again = folder.tables()
    assert [file for file in files if again[f"{file}.parquet"] != found[f"{file}.parquet"]] == []


def test_a_wider_range_computes_only_the_shards_whose_members_change(folder: Folder) -> None:
    folder.edit(lambda study: study["architectures"]["grid"].update(glb_mib=[2, 16, 256]))
    stale = folder.stale()
    assert {path for path in stale if path.endswith("large-buffer.parquet")}
    assert not {path for path in stale if path.endswith("small-buffer.parquet")}


def test_one_more_architecture_computes_only_its_shard(folder: Folder) -> None:
    """Even if the area limit leaves another shard empty, which is no failure."""
    folder.edit(lambda study: study["architectures"]["grid"].update(glb_mib=[2, 16, 256]))
    folder.run("certificates", "placements")
    assert pd.read_parquet(folder.path / "results/placements/paper" / POINT / "large-buffer.parquet").empty
    folder.edit(lambda study: study["architectures"].update(named=["tpu-v4", "phaze-common"]))
    stale = {path for path in folder.stale() if f"{POINT}/" in path}
    assert stale
    assert all(path.endswith("/small-buffer.parquet") for path in stale)


@pytest.mark.long
def test_more_layers_and_hbm_sizes_estimate_nothing_and_solve_nothing_again(folder: Folder) -> None:
    folder.edit(lambda study: study["training"].update(hbm_gib=[32, 64]))
    assert not {"operators", "estimates"} & tables_of(folder.stale())
    folder.edit(lambda model: model.update(layers=6), "tiny.yaml")
    assert not {"operators", "parts", "layers", "estimates"} & tables_of(folder.stale())
    before = folder.solutions()
    folder.run("placements")
    assert folder.solutions() == before > 0


def test_another_solver_limit_reruns_schedules_onwards_only(folder: Folder) -> None:
    folder.edit(lambda study: study["schedule"].update(node_limit=12345))
    stale = tables_of(folder.stale())
    assert {"solves", "schedules", "placements", "stages"} <= stale
    assert not {"operators", "estimates", "screens", "graphs"} & stale


def copy_of_the_workflow(to: Path) -> Path:
    """Copy the files of the workflow, so that a test can edit them."""
    for name in ("phaze", "rules", "scripts", "config", "envs"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("compiled"))
    shutil.copy(ROOT / "Snakefile", to / "Snakefile")
    return to


@pytest.fixture(name="edited")
def folder_with_its_own_workflow(folder: Folder, tmp_path: Path) -> Folder:
    """Return the finished folder, driven by a copy of the workflow."""
    return Folder(folder.path, copy_of_the_workflow(tmp_path / "workflow"))


def append(edited: Folder, module: str, text: str) -> None:
    path = edited.workflow / module
    path.write_text(path.read_text() + text)


def test_an_edit_of_the_library_reruns_the_stages_that_use_it_and_what_follows(edited: Folder) -> None:
    """A comment reruns nothing; an edit of the simulator, our planner, or the costs reruns more and more."""
    append(edited, "phaze/cost/vector.py", "\n# A comment changes nothing.\n")
    assert edited.stale() == set()
    append(edited, "phaze/pipeline/steady.py", "\nEDITED = True\n")
    # Pipelines of stages on a topology have a simulator of their own (`phaze/pipeline/gpipe.py`).
    besides = {"tiled_besides.parquet"}
    assert tables_of(edited.stale()) == SIMULATED | besides
    append(edited, "phaze/formulas/piper/planner.py", "\nEDITED = True\n")
    of_papers = {"inputs", "cases", "pipelines", "curves"}
    assert tables_of(edited.stale()) == SIMULATED | besides | of_papers
    append(edited, "phaze/formulas/phaze/rows.py", "\nEDITED = True\n")
    stale = tables_of(edited.stale())
    assert {"placements", "stages"} <= stale
    assert not {"operators", "estimates", "screens", "solves"} & stale
    append(edited, "phaze/cost/vector.py", "\nEDITED = True\n")
    stale = tables_of(edited.stale())
    assert {"estimates", "screens", "solves", "placements"} <= stale
    assert not {"operators", "parts", "graphs"} & stale


@pytest.fixture(scope="session", name="changed")
def folder_with_another_strategy_and_model(prepare: Prepare, finished: Folder) -> Folder:
    """Return the finished folder with the paper's strategy and a model too large."""
    big = TINY | {"hidden": 32768, "feed_forward": 131072, "vocabulary": 50000}
    workloads = {**STUDY["workloads"], "big": {"model": "./big.yaml", "sequence": 64}}
    compared = {"models": ["tiny"]}
    return prepare(
        "changed", like=finished, files={"big.yaml": yaml.safe_dump(big)}, readings={"fast": FAST},
        models=["tiny", "big"], workloads=workloads,
        screen={"strategy": "hysteresis", "hysteresis": 1}, report=STUDY["report"] | {"strategies": compared},
    )  # fmt: skip


def test_a_model_that_fits_nowhere_is_a_row_and_the_study_goes_on(changed: Folder) -> None:
    report = (changed.path / "results/report/report.md").read_text()
    assert "big" in report
    assert "infeasible" in report.lower() or "does not fit" in report.lower()


def test_every_compared_placement_is_priced(finished: Folder) -> None:
    simulations = pd.read_parquet(finished.path / "results/simulations/paper/tiny.parquet")
    assert {"phaze"} <= set(simulations["planner"])
    checks = finished.reported("checks").set_index("check")
    priced = checks[checks.index.str.contains("priced|has a price")]
    assert len(priced) == 2
    assert priced["passed"].all(), priced
    assert (priced["rows"] > 0).all()
    assert "## Claim and price" in (finished.path / "results/report/report.md").read_text()


def test_a_planner_of_an_old_study_is_refused_with_the_reason(folder: Folder) -> None:
    folder.edit(lambda study: study.update(place={"planner": "piper"}))
    run = folder.snakemake("--cores", "2", "-n", check=False)
    assert run.returncode != 0
    assert "place: was removed, as all models are placed by Phaze's formula" in run.output
    assert "Traceback" not in run.output


def test_bad_input_stops_before_anything_runs(folder: Folder) -> None:
    folder.edit(lambda study: study["training"].update(microbatches=[3]))
    run = folder.snakemake("--cores", "2", check=False)
    assert run.returncode != 0
    assert "3 does not divide scenarios.paper.global_batch 32" in run.output
    assert "Traceback" not in run.output


def test_the_papers_strategy_walks_before_it_screens(changed: Folder) -> None:
    visits = pd.read_parquet(changed.path / "results/visits/paper/tiny.parquet")
    screens = pd.read_parquet(changed.path / f"results/screens/paper/{POINT}/small-buffer.parquet")
    kept = set(screens.loc[screens["kept"], "architecture"])
    assert not visits.empty
    assert kept
    assert kept <= {*visits["architecture"], "tpu-v4"}
    assert not pd.read_parquet(changed.path / "results/trials/paper/tiny.parquet").empty
    assert (changed.path / "results/report/report.html").is_file()
