"""`place` of a model answers as `plan --architecture --planners` does, on one architecture or several."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaze.base.errors import PhazeError
from phaze.plan.chips import load_chips
from phaze.plan.time_limit import TimeLimit
from phaze.spec.config import load_scenario
from phaze.spec.study import ScenarioChoice
from tests.chip_parts import stored_chips
from tests.commands import assert_refused, invoke, invoke_json
from tests.plans import planner_of

SMALL = ("--devices", "8", "--global-batch", "32", "--rank", "expected")


@pytest.mark.slow
def test_a_model_is_placed_as_planned_on_an_architecture(model: str, tmp_path: Path) -> None:
    """Plan, certificate, and the formulas' claims with their prices: the same file."""
    placed, planned = tmp_path / "placed.json", tmp_path / "planned.json"
    printed = invoke("place --model", model, *SMALL, "-a", "tpu-v4", "-o", placed).stdout
    command = ("plan", model, "--system", "tpu-v4", *SMALL, "-a", "tpu-v4", "--planners", "-o", planned)
    assert invoke(*command).stdout == printed
    assert placed.read_bytes() == planned.read_bytes()
    answer = json.loads(placed.read_text())
    by_name = {row["planner"]: row for row in answer["planners"]}
    assert by_name.keys() == {"phaze", "piper"}
    # The certified plan is the best one of the space that holds the formula's plan.
    assert by_name["phaze"]["time_s"] >= answer["certificate"]["bound_s"] * (1 - 1e-9)
    assert f"phaze claims {by_name['phaze']['planned_s']:.4g} s" in printed


def test_the_default_architecture_is_the_device_of_the_system(model: str) -> None:
    shared = ("--model", model, *SMALL, "--fix", "cp=1,tp=1,pp=1,zero=1")
    for cluster, device in ((("--system", "h100"), "h100-80gb"), ((), "tpu-v4-as-built")):
        question = invoke_json("place", *shared, *cluster)["question"]
        assert question["machine"]["device"]["name"] == device


def test_a_time_limit_also_ends_a_search_on_chips_without_a_plan(model: str) -> None:
    """On chips a first plan may take minutes, on devices seconds, for which a search waits."""
    limited = ("place", "--model", model, *SMALL, "--seconds", "0.001")
    with pytest.raises(PhazeError, match=r"no plan was found: its time limit of 0.001 s was reached"):
        invoke(*limited)


def test_a_search_over_chips_that_ends_without_a_plan_says_so(model: str) -> None:
    limited = ("plan", model, "--system", "tpu-v4", *SMALL, "-a", "tpu-v4,phaze-common", "--seconds", "0.001")
    with pytest.raises(PhazeError, match=r"no plan was found: its time limit of 0.001 s was reached"):
        invoke(*limited)


def test_a_table_has_the_reason_of_a_row_without_a_plan(model: str) -> None:
    """The status is 3 if no row has a plan; every row has its own seconds."""
    table = ("place", "--model", model, *SMALL, "-a", "tpu-v4, phaze-common", "--seconds", "0.001")
    printed = invoke(*table, "--json")
    assert printed.exit_code == 3
    rows = json.loads(printed.stdout)
    assert [row["architecture"] for row in rows] == ["tpu-v4", "phaze-common", "tpu-v4-as-built"]
    assert all("no plan was found: its time limit" in row["reason"] for row in rows)


def test_an_explanation_that_ran_out_of_time_is_not_a_rule() -> None:
    chips: dict[str, Any] = {"system": "tpu-v4", "stack": "chip", "machine": stored_chips("tpu-v4")}
    planner = planner_of(devices=8, global_batch=8, runtime="chip", fixed={"pp": 1, "cp": 1}, **chips)
    best = planner.best(1).plans[0]
    late = replace(planner, limit=TimeLimit(0.0))
    assert late.explained(best, {"tp": 2}).reason == "not known, as its time limit of 0 s was reached"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-a tpu-v4,", "place: --architecture tpu-v4,: must be names separated by commas"),
        ("-a {space}", "space.yaml: is a space of architectures"),
        ("-a tpu-v4,phaze-common --explain tp=2", "place: --explain applies to one architecture only"),
        ("-a tpu-v4,phaze-common --devices 8,16", "place: --devices: must be one number for a table, got 2"),
    ],
)
def test_a_table_refuses_what_it_cannot_show(
    model: str, tmp_path: Path, arguments: str, message: str
) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("named: [tpu-v4, phaze-common]\n")
    words = arguments.format(space=space).split()
    assert_refused(message, "", "place", "--model", model, "--global-batch", "8", *words)


def test_paths_in_a_space_are_relative_to_its_file(tmp_path: Path, project_root: Path) -> None:
    folder = tmp_path / "designs"
    folder.mkdir()
    for name in ("tpu-v4", "phaze-common"):
        text = (project_root / f"config/architectures/{name}.yaml").read_text()
        (folder / f"{name}-copy.yaml").write_text(text)
    (folder / "space.yaml").write_text("named: [./tpu-v4-copy.yaml, ./phaze-common-copy.yaml]\n")
    _, chips = load_chips(str(folder / "space.yaml"), "tpu-v4")
    assert chips is not None
    assert [chip.name for chip in chips] == ["tpu-v4-copy", "phaze-common-copy"]


def test_a_study_says_the_bandwidth_of_a_flat_network_in_place_of_levels() -> None:
    with pytest.raises(PhazeError, match="network_bandwidth_bytes_per_s"):
        load_scenario(ScenarioChoice(system="h100"))
    flat = load_scenario(ScenarioChoice(system="h100", network_bandwidth_bytes_per_s=4e11))
    assert flat.network_bandwidth_bytes_per_s == 4e11
