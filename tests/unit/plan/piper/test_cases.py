"""A point of a case becomes rows: plans with their stages, curves where they change, and measured times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phaze.base.units import GIB
from phaze.layout import Layout
from phaze.plan.piper.cases import RUNS, Contender, Record, plan_point
from phaze.plan.piper.layers import Cluster, Layers, Plan, PlannedStage
from phaze.spec.planning import Mode, PlanPoint
from tests.unit.plan.piper.chains import layers_of, repeated


def point(**changes: object) -> PlanPoint:
    given = {
        "blocks": 0,
        "memory_gib": 1.0,
        "microbatches": 4,
        "devices": (1, 2),
        "bandwidth_gib": 25.0,
        "planners": ("piper",),
        "modes": ("program",),
        "show": "throughput",
    }
    return PlanPoint.model_validate({**given, **changes})


class OneStage:
    """Plans one stage on two devices and nothing on one, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Cluster, Mode]] = []

    def plan(self, layers: Layers, cluster: Cluster, mode: Mode) -> Plan | None:
        self.asked.append((len(layers), cluster, mode))
        if cluster.devices < 2:
            return None
        members = tuple(range(len(layers)))
        return Plan((PlannedStage(members, Layout(tp=2), members, 1, 3.5, 100.0),))

    def sweep(self, layers: Layers, cluster: Cluster, mode: Mode) -> np.ndarray:
        self.asked.append((len(layers), cluster, mode))
        return np.array([np.inf, 3.5, 3.5, 3.0, 3.0, 2.0])[: cluster.devices]


def planned(folder: Path, one: OneStage, **changes: object) -> Record:
    by = {"piper": Contender(lambda layers: layers, one.plan, one.sweep)}
    return plan_point("figure", "toy", layers_of(repeated(), folder), point(**changes), by)


def test_a_row_for_every_number_of_devices_with_the_stages_of_its_plan(tmp_path: Path) -> None:
    record = planned(tmp_path, OneStage())
    cases, stages = record.frame("cases"), record.frame("pipelines")
    assert cases["status"].tolist() == ["infeasible", "planned"]
    assert cases["time_per_sample"].tolist() == [np.inf, 3.5]
    assert cases[["devices_used", "degree", "stages"]].iloc[1].tolist() == [2, 1, 1]
    assert stages[["layers", "configurations"]].to_numpy().tolist() == [["0 1 2 3 4 5 6", "7 × vanilla"]]
    assert record.frame("curves").empty


def test_a_curve_holds_the_steps_only(tmp_path: Path) -> None:
    record = planned(tmp_path, OneStage(), show="curve", devices=(6,))
    curves = record.frame("curves")
    assert curves[["devices", "time_per_sample"]].to_numpy().tolist() == [[2, 3.5], [4, 3.0], [6, 2.0]]
    assert record.frame("cases").empty


def test_a_curve_over_several_numbers_of_devices_plans_each(tmp_path: Path) -> None:
    one = OneStage()
    curves = planned(tmp_path, one, show="curve", devices=(1, 3, 5)).frame("curves")
    assert curves[["devices", "time_per_sample"]].to_numpy().tolist() == [[3, 3.5]]
    assert [cluster.devices for _, cluster, _ in one.asked] == [1, 1, 3, 5]


def test_the_cluster_is_that_of_the_point_and_the_mode(tmp_path: Path) -> None:
    one = OneStage()
    planned(tmp_path, one, modes=("program", "table-1"), memory_gib=0.5, blocks=6)
    layers, cluster, mode = one.asked[-1]
    assert (layers, mode) == (9, "table-1")
    assert cluster == Cluster(2, 0.5 * GIB, 25.0 * GIB, 4, synchronisation="round")
    assert {asked.synchronisation for _, asked, mode in one.asked if mode == "program"} == {"batch"}


@pytest.mark.parametrize(("show", "runs"), [("throughput", 1), ("runtime", RUNS)])
def test_running_times_are_measured_several_times_after_one_that_compiles(
    show: str, runs: int, tmp_path: Path
) -> None:
    one = OneStage()
    durations = planned(tmp_path, one, show=show).frame("durations")
    assert len(durations) == 2 * runs
    assert len(one.asked) == 1 + 2 * runs
