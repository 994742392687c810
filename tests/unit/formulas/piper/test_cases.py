"""A point of a case becomes rows: plans with their stages, and the steps of curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.units import GIB
from phaze.formulas.piper.layers import FlatCluster, PiperPlan, PlannedStage, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions
from phaze.formulas.piper.study import plan_point
from phaze.layout import Layout
from phaze.spec.planning import PlanPoint
from tests.unit.formulas.piper.chains import layers_of, repeated

POINT = {
    "blocks": 0,
    "memory_gib": 1.0,
    "microbatches": 4,
    "devices": (1, 2),
    "bandwidth_gib": 25.0,
    "planners": ("piper",),
    "modes": ("program",),
    "show": "throughput",
}


class OneStage:
    """Planner of one stage on two devices and none on one, which records its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, FlatCluster, SearchOptions]] = []

    def restrict(self, layers: ProfiledLayers) -> ProfiledLayers:
        return layers

    def plan(self, layers: ProfiledLayers, cluster: FlatCluster, how: SearchOptions) -> PiperPlan | None:
        self.asked.append((len(layers), cluster, how))
        members = tuple(range(len(layers)))
        stage = PlannedStage(members, Layout(tp=2), 3.5, members, 1, 100.0)
        return PiperPlan((stage,)) if cluster.devices > 1 else None

    def sweep(self, layers: ProfiledLayers, cluster: FlatCluster, how: SearchOptions) -> np.ndarray:
        self.asked.append((len(layers), cluster, how))
        return np.array([np.inf, 3.5, 3.5, 3.0, 3.0, 2.0])[: cluster.devices]


def planned(folder: Path, one: OneStage, **changes: object) -> dict[str, pd.DataFrame]:
    point = PlanPoint.model_validate({**POINT, **changes})
    return plan_point("figure", "toy", layers_of(repeated(), folder), point, {"piper": one})


def test_a_row_for_every_number_of_devices_with_the_stages_of_its_plan(tmp_path: Path) -> None:
    found = planned(tmp_path, OneStage())
    cases, stages = found["cases"], found["pipelines"]
    assert cases["status"].tolist() == ["infeasible", "planned"]
    assert cases["time_per_sample"].tolist() == [np.inf, 3.5]
    assert cases[["devices_used", "degree", "stages"]].iloc[1].tolist() == [2, 1, 1]
    assert stages[["layers", "configurations"]].to_numpy().tolist() == [["0 1 2 3 4 5 6", "7 × vanilla"]]
    assert found["curves"].empty


def test_a_curve_holds_the_steps_only_and_over_several_numbers_of_devices_plans_each(tmp_path: Path) -> None:
    found = planned(tmp_path, OneStage(), show="curve", devices=(6,))
    steps = found["curves"][["devices", "time_per_sample"]].to_numpy().tolist()
    assert steps == [[2, 3.5], [4, 3.0], [6, 2.0]]
    assert found["cases"].empty
    one = OneStage()
    curves = planned(tmp_path, one, show="curve", devices=(1, 3, 5))["curves"]
    assert curves[["devices", "time_per_sample"]].to_numpy().tolist() == [[3, 3.5]]
    assert [cluster.devices for _, cluster, _ in one.asked] == [1, 3, 5]


def test_the_cluster_is_that_of_the_point_and_the_mode(tmp_path: Path) -> None:
    one = OneStage()
    planned(tmp_path, one, modes=("program", "table-1"), memory_gib=0.5, blocks=6)
    layers, cluster, how = one.asked[-1]
    assert (layers, how) == (9, SearchOptions(linear=True))
    assert cluster == FlatCluster(2, 0.5 * GIB, 25.0 * GIB, 4, synchronisation="round")
    assert {asked.synchronisation for _, asked, how in one.asked if not how.linear} == {"batch"}
