"""A plan of a study, mapped from the command line to any topology and evaluated with its own schedule."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from phaze.base.deadline import Deadline
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.formulas.planners import PlansAsked, read_tasks
from phaze.formulas.side_by_side import plan_model
from phaze.map.ensemble import MapSettings
from phaze.map.plan_maps import PlanOnDevices, map_one
from phaze.map.search import SearchLimits
from phaze.spec.documents import read_as
from phaze.spec.mapping import StoredMapping
from phaze.tables import Plans, PlanStages
from tests.commands import assert_refused, invoke
from tests.unit.formulas.test_side_by_side import EXPERT, SMALL, model
from tests.unit.map.test_plan_maps import PLANS

FAST = ("--tries", "2000", "--steps", "500")
SETTINGS = MapSettings(limits=SearchLimits(tries=2000), steps=500)
BANDWIDTHS = [[(1 + (i * j) % 7) * 1e8 for j in range(16)] for i in range(16)]


def mapped(name: str) -> PlanOnDevices:
    bandwidth = np.array(BANDWIDTHS)
    return map_one(PLANS[name], "m", DeviceNetwork(bandwidth, np.zeros_like(bandwidth)), SETTINGS)


@pytest.mark.parametrize("name", list(PLANS))
def test_every_slice_has_a_device_and_no_default_order_is_faster(name: str) -> None:
    found = mapped(name)
    used = [device for replicas in found.devices for slices in replicas for device in slices]
    assert len(set(used)) == len(used) == PLANS[name].devices
    assert found.simulated_s[found.best.method] == min(found.simulated_s.values())
    assert found.alone_s <= found.simulated_s[found.best.method] * (1 + 1e-9)


def test_at_the_time_limit_one_mapping_is_simulated_and_is_the_answer() -> None:
    bandwidth = np.array(BANDWIDTHS)
    network = DeviceNetwork(bandwidth, np.zeros_like(bandwidth))
    found = map_one(PLANS["equal"], "m", network, SETTINGS, Deadline(0.0))
    assert list(found.simulated_s) == [found.best.method]
    assert found.best.step_s == min(one.step_s for one in found.mapped.candidates)


@pytest.fixture(scope="module", name="tables")
def planned_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    return plan_model(read_tasks(*model(), [PlansAsked("a0", 2.0, ("phaze", "piper"))], SMALL, EXPERT))


@pytest.fixture(name="plans")
def file_of_plans(tables: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path) -> str:
    for table, frame in zip((Plans, PlanStages), tables, strict=True):
        table.save(frame, tmp_path / f"{table.name}/paper/toy.parquet")
    return str(tmp_path / "plans/paper/toy.parquet")


@pytest.mark.parametrize("planner", ["phaze", "piper"])
def test_a_plan_of_a_file_is_mapped_the_same_twice(plans: str, tmp_path: Path, planner: str) -> None:
    texts = []
    for name in ("one.json", "two.json"):
        options = ("--planner", planner, "--topology", "two-level", "-o", str(tmp_path / name))
        result = invoke("map", plans, *options, *FAST)
        assert result.exit_code == 0, result.exception
        texts.append((tmp_path / name).read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    found = read_as(StoredMapping, tmp_path / "one.json")
    assert found.plan is not None
    assert (found.model, found.plan.planner) == (json.loads(texts[0])["model"], planner)
    assert found.plan.simulated_s == min(one.simulated_s for one in found.plan.times)
    assert found.found_by in {one.name for one in found.ways}
    units = {device // found.plan.unit for stage in found.plan.devices for one in stage for device in one}
    assert units == {unit for row in found.mapping for unit in row}
    assert len(found.plan.workers) == len(found.mapping)
    assert f"planned by {planner}" in result.output
    assert f"batch {found.plan.simulated_s:.6g} s" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--planner nobody", "has no plan with planner nobody; allowed: phaze, piper"),
        ("-a a9", "has no plan with architecture a9; allowed: a0"),
        ("--memory-gib-per-s 9", "--memory-gib-per-s applies to stages only"),
    ],
)
def test_a_mistake_is_one_message(plans: str, options: str, message: str) -> None:
    assert_refused(message, f"map {plans} --topology two-level {options}", *FAST)


def test_a_plan_that_needs_more_devices_is_refused(plans: str, tmp_path: Path) -> None:
    pair = tmp_path / "pair.csv"
    pair.write_text(",1e9\n1e9,\n", encoding="utf-8")
    assert_refused("network: has 2 devices, the plan needs", "map", plans, "--topology", pair, *FAST)


def test_a_file_that_is_absent_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(PhazeError, match="file does not exist; a study writes results/plans"):
        invoke("map", tmp_path / "none.parquet", "--topology", "two-level")


def test_options_of_plans_are_refused_for_stages(tmp_path: Path) -> None:
    command = ["map", str(tmp_path / "s.json"), "--topology", "two-level", "--planner", "phaze"]
    assert_refused("--planner selects a plan of a study", *command)
