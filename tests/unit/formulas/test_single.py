"""The command replays a plan of a study's files, and reports invalid options."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from phaze.base.store import Store
from phaze.formulas.planners import PlansAsked, read_tasks
from phaze.formulas.replay import replay_plans
from phaze.formulas.side_by_side import plan_model
from phaze.tables import PLANNERS, Plans, PlanStages
from tests.commands import assert_refused, invoke
from tests.unit.formulas.test_side_by_side import EXPERT, SMALL, model

Planned = tuple[pd.DataFrame, pd.DataFrame]


@pytest.fixture(scope="module", name="tables")
def planned_tables() -> Planned:
    asked = [PlansAsked("a0", 2.0, PLANNERS), PlansAsked("a1", 1.0, ("phaze",))]
    return plan_model(read_tasks(*model(), asked, SMALL, EXPERT))


@pytest.fixture(name="study")
def study_results(tables: Planned, tmp_path: Path) -> Path:
    for table, frame in zip((Plans, PlanStages), tables, strict=True):
        for path in (f"{table.name}/paper/toy.parquet", f"report/{table.name}.parquet"):
            table.save(frame, tmp_path / path)
    return tmp_path


def run(study: Path, command: str, *arguments: object) -> str:
    return invoke(f"simulate {study}/{command}", *arguments).stdout


@pytest.mark.parametrize("file", ["plans/paper/toy.parquet", "report/plans.parquet"])
def test_a_plan_of_either_file_is_replayed_as_in_the_study(study: Path, file: str, tables: Planned) -> None:
    found = json.loads(run(study, f"{file} --planner phaze --architecture a0 --json"))
    simulations = replay_plans(*tables, Store())[0]
    same = (simulations["planner"] == "phaze") & (simulations["architecture"] == "a0")
    row = simulations[same].iloc[0].to_dict()
    stages, memory = found.pop("stages"), found.pop("memory")
    assert found == pytest.approx(row)
    assert [max(profile["bytes"]) for profile in memory] == [stage["peak_bytes"] for stage in stages]
    assert [stage["stage"] for stage in stages] == list(range(len(stages)))


def test_the_fastest_plan_is_taken(study: Path, tables: Planned) -> None:
    text = run(study, "plans/paper/toy.parquet")
    best = tables[0]["time_per_sample_s"].min() * SMALL.scenario.global_batch
    assert f"planned {best:.4g} s per batch" in text
    assert "planned by phaze" in text, "where planners are as fast, the first of them"
    assert "bound by" in text
    assert "stage 0" in text
    assert "Piper charges every stage 4 (d - 1)/d of its weights" in text
    assert "The simulator counts 2 (d - 1)/d in each direction" in text


def test_a_plan_is_simulated_on_the_flat_network_that_it_was_made_for(study: Path) -> None:
    flat = study / "flat.yaml"
    planned = "report/plans.parquet --planner phaze -a a0"
    command = f"{planned} --system {flat}"
    flat.write_text("network_bandwidth_bytes_per_s: 1.0e+9\n", encoding="utf-8")
    assert run(study, command) == run(study, planned)
    flat.write_text("network_bandwidth_bytes_per_s: 2.0e+9\n", encoding="utf-8")
    message = r"network_bandwidth_bytes_per_s is 2e\+09, but the plan was made for 1e"
    assert_refused(message, f"simulate {study}/{command}")


def test_a_plan_for_another_system_takes_its_planners_time_under_its_planners_assumptions(
    tmp_path: Path,
) -> None:
    """Simulated on `paper`, with less bandwidth than planned for, it would wait for its links."""
    scenario = SMALL.scenario.model_copy(
        update={"network_bandwidth_bytes_per_s": 50e9, "hbm_bandwidth_bytes_per_s": 3e12}
    )
    fast = replace(SMALL, scenario=scenario)
    asked = [PlansAsked("a0", 2.0, ("equal",))]
    for table, frame in zip(
        (Plans, PlanStages), plan_model(read_tasks(*model(), asked, fast, EXPERT)), strict=True
    ):
        table.save(frame, tmp_path / f"report/{table.name}.parquet")
    row = json.loads(run(tmp_path, "report/plans.parquet", "--json"))
    own = Plans.load(tmp_path / "report/plans.parquet").iloc[0]
    assert (own["network_bandwidth_bytes_per_s"], own["hbm_bandwidth_bytes_per_s"]) == (50e9, 3e12)
    assert row["assumed_s"] == pytest.approx(row["planned_s"])


LEVELS = "device: tpu-v4\nlevels: [{devices: 8, bandwidth_bytes_per_s: 1.0e+9}]\n"


@pytest.mark.parametrize(
    "text",
    [
        f"bandwidths_bytes_per_s: {[[1e9] * 8] * 8}",
        LEVELS,
        LEVELS.replace("[{", "[{devices: 2, bandwidth_bytes_per_s: 2.0e+9}, {"),
        LEVELS + "torus: {shape: [4, 2], bandwidth_bytes_per_s: 1.0e+9}",
    ],
)
def test_a_plan_is_simulated_on_any_network(study: Path, text: str) -> None:
    (study / "net.yaml").write_text(text, encoding="utf-8")
    command = f"report/plans.parquet --system {study}/net.yaml -a a0 --planner phaze"
    trace = study / "trace.json"
    words = run(study, command, "--trace", trace)
    assert "links carry traffic" in words
    assert json.loads(trace.read_text())["traceEvents"]
    row = json.loads(run(study, command, "--json"))
    assert row["simulated_s"] > 0
    assert 0 <= row["link_share"] <= row["busiest_link_share"] <= 1


@pytest.mark.parametrize("planner", ["phaze", "piper"])
def test_the_trace_holds_every_pass(study: Path, planner: str) -> None:
    trace = study / "trace.json"
    run(study, f"report/plans.parquet --planner {planner} -a a0 --trace {trace}")
    events = json.loads(trace.read_text())["traceEvents"]
    passes = [event["name"] for event in events if event["ph"] == "X"]
    forward = sum(name.startswith("forward") for name in passes)
    assert forward == sum(name.startswith("backward") for name in passes) > 0


@pytest.mark.parametrize(
    ("name", "begins"), [("p.svg", b"<svg"), ("deep/p.PNG", b"\x89PNG"), ("p.pdf", b"%PDF")]
)
def test_a_picture_is_written_in_the_format_of_its_name(study: Path, name: str, begins: bytes) -> None:
    (study / name).parent.mkdir(exist_ok=True)
    words = run(study, f"report/plans.parquet --planner phaze -a a0 --picture {study}/{name}")
    assert "planned by phaze" in words
    assert (study / name).read_bytes().startswith(begins)
    assert not list((study / name).parent.glob(".*")), "nothing unfinished stays behind"


@pytest.mark.parametrize("planner", ["phaze", "piper"])
def test_the_picture_says_which_plan_it_is_and_what_is_what(study: Path, planner: str) -> None:
    (study / "net.yaml").write_text(LEVELS, encoding="utf-8")
    for system in ("", f"--system {study}/net.yaml"):
        picture = study / "p.svg"
        run(study, f"report/plans.parquet --planner {planner} -a a0 {system} --picture {picture}")
        text = picture.read_text(encoding="utf-8")
        for words in (f"planned by {planner}", "forward", "backward", "GiB a device"):
            assert words in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("plans/paper/none.parquet --picture p.jpg", "--picture p.jpg: must end in .svg, .png, .pdf"),
        ("plans/paper/toy.parquet --planner nobody", "planner nobody; allowed: equal, expert, phaze"),
        ("plans/paper/toy.parquet -a a1 --planner piper", "planner piper; allowed: phaze"),
        ("plans/paper/toy.parquet --hbm-gib 7", "no plan with hbm_gib 7.0; allowed: 1.0, 2.0"),
        ("plans/paper/none.parquet", "none.parquet: file does not exist"),
        ("", "must be a .parquet file with plans of a study"),
        ("plan_stages/paper/toy.parquet", "expected table plans"),
        ("plans/paper/toy.parquet -o x.csv", "-o applies to --runs only"),
        ("plans/paper/toy.parquet --runs x.csv", "give a file of plans or --runs, not both"),
    ],
)
def test_a_mistake_is_one_message(study: Path, command: str, message: str) -> None:
    assert_refused(message, f"simulate {study}/{command}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "^simulate: give a file of plans or --runs$"),
        ("--runs x.csv", "^simulate: --runs needs -o, "),
        ("--runs x.csv -o y.csv --trace t.json", "--trace applies to plans, not to --runs"),
        ("--runs x.csv -o y.csv --picture p.svg", "--picture applies to plans, not to --runs"),
    ],
)
def test_what_is_missing_or_does_not_apply_is_named(options: str, message: str) -> None:
    assert_refused(message, f"simulate --system h100 {options}")


def test_what_is_not_feasible_says_why(tables: Planned, study: Path) -> None:
    plans = tables[0].assign(status="infeasible", reason="memory: too little")
    Plans.save(plans, study / "plans/paper/toy.parquet")
    message = "no feasible plan of those asked for: memory: too little"
    assert_refused(message, f"simulate {study}/plans/paper/toy.parquet")
