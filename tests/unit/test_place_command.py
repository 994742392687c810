"""`place` of a model answers as `plan --architecture --planners` does, on one architecture or several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.config import load_scenario
from phaze.spec.study import ScenarioChoice
from tests.commands import invoke, invoke_json

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


def test_a_study_says_the_bandwidth_of_a_flat_network_in_place_of_levels() -> None:
    with pytest.raises(PhazeError, match="network_bandwidth_bytes_per_s"):
        load_scenario(ScenarioChoice(system="h100"))
    flat = load_scenario(ScenarioChoice(system="h100", network_bandwidth_bytes_per_s=4e11))
    assert flat.network_bandwidth_bytes_per_s == 4e11
