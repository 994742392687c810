"""Every planner plans the same scheduled layers, and the tables contain the plans of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest

from phaze.formulas.phaze.model import place_model
from phaze.formulas.phaze.point import Conditions
from phaze.formulas.piper.layers import FlatCluster, PiperPlan, ProfiledLayers
from phaze.formulas.piper.stages import best_stage
from phaze.formulas.piper.study import cluster_of, models_of
from phaze.formulas.planners import Planned, PlanningTask, PlansAsked, read_tasks
from phaze.formulas.side_by_side import PLANNERS as PLANNING
from phaze.formulas.side_by_side import plan_model
from phaze.layout import Layout, layouts_of
from phaze.tables import PLANNERS, Placements, Plans, PlanStages
from phaze.tables import Layers as LayerTable
from tests.unit.formulas.phaze.test_model import CONDITIONS, solves, tables

SMALL = replace(
    CONDITIONS,
    scenario=CONDITIONS.scenario.model_copy(update={"devices": 8, "global_batch": 32}),
    training=CONDITIONS.training.model_copy(update={"hbm_gib": (1.0, 2.0)}),
)
TIGHT = replace(SMALL, training=SMALL.training.model_copy(update={"hbm_gib": (0.1,)}))
POINTS = [{"model": "toy", "layout": layout.key} for layout in layouts_of((1, 2), (1, 2))]
ASKED = [PlansAsked("a0", 2.0, PLANNERS), PlansAsked("a1", 1.0, PLANNERS), PlansAsked("a2", 2.0, ("piper",))]
EXPERT = Layout(pp=2, dp=2, tp=2)
KEY = ["model", "architecture", "hbm_gib", "planner"]


def model() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return layers, graph, solves and architectures of three blocks at two widths and two microbatches."""
    layers, graph, _, architectures, _ = tables()
    graph = graph.assign(count=[1, 1, 3])
    sliced = []
    for point in POINTS:
        layout = Layout.of_key(point["layout"])
        share, b = 1 / layout.tp, layout.microbatch
        bytes_ = {name: b * layers[name] for name in ("activation_bytes", "input_bytes", "output_bytes")}
        own = layers.assign(**point, **bytes_, tensor_parallel=share < 1)
        own["activation_bytes"] *= share
        sliced.append(own.assign(parameters=(own["parameters"] * share).astype(int)))
    spent = [solves(point).assign(**_scaled(solves(point), point)) for point in POINTS]
    return LayerTable.check(pd.concat(sliced)), graph, pd.concat(spent, ignore_index=True), architectures


def _scaled(table: pd.DataFrame, point: dict[str, str]) -> dict[str, pd.Series]:
    """Return the latencies of tensor-parallel ranks: slightly more than 1/t."""
    layout = Layout.of_key(point["layout"])
    factor = layout.microbatch * (1.0 if layout.tp == 1 else 0.6)
    return {name: factor * table[name] for name in ("objective_s", "bound_s")}


def least_time(layers: ProfiledLayers, cluster: FlatCluster) -> float:
    """Return the best time per sample of a short chain by brute force; infinite if no plan fits."""
    plans = (plan for starts in _cuts(len(layers)) for plan in _plans(layers, cluster, starts))
    return min((plan.time_per_sample_s for plan in plans), default=np.inf)


def _cuts(n: int) -> Iterator[tuple[int, ...]]:
    for size in range(n):
        yield from ((0, *inner) for inner in combinations(range(1, n), size))


def _plans(layers: ProfiledLayers, cluster: FlatCluster, starts: tuple[int, ...]) -> Iterator[PiperPlan]:
    shapes = [(t, int(d)) for t in layers.options for d in cluster.data_widths()]
    parts = [tuple(range(i, j)) for i, j in zip(starts, (*starts[1:], len(layers)), strict=True)]
    for chosen in product(shapes, repeat=len(parts)):
        if sum(t * d for t, d in chosen) <= cluster.devices:
            degrees = np.cumsum([d for _, d in chosen][::-1])[::-1]
            stages = [
                best_stage(layers, cluster, part, Layout(tp=t, dp=d), int(s))
                for part, (t, d), s in zip(parts, chosen, degrees, strict=True)
            ]
            if all(stages):
                yield PiperPlan(tuple(stage for stage in stages if stage is not None))


@pytest.fixture(scope="module")
def planned() -> tuple[pd.DataFrame, pd.DataFrame]:
    plans, stages = plan_model(read_tasks(*model(), ASKED, SMALL, EXPERT))
    return Plans.check(plans), PlanStages.check(stages)


@pytest.fixture(scope="module")
def plans(planned: tuple[pd.DataFrame, pd.DataFrame]) -> pd.DataFrame:
    return planned[0].set_index(["architecture", "planner"])


def test_every_planner_asked_has_a_row(plans: pd.DataFrame) -> None:
    assert set(plans.index) == {*((a, p) for a in ("a0", "a1") for p in PLANNERS), ("a2", "piper")}
    assert set(plans["status"]) == {"placed"}


def test_phazes_plan_is_its_best_placement(plans: pd.DataFrame) -> None:
    layers, graph, solved, architectures = model()
    screens = pd.DataFrame({"architecture": ["a0", "a1"], "kept": True})
    found = [
        place_model(own, graph, solved[same], architectures, screens, SMALL, EXPERT)[0]
        for layout, own in layers.groupby("layout")
        for same in [solved["layout"] == layout]
    ]
    placements = Placements.check(pd.concat(found))
    for name, hbm in (("a0", 2.0), ("a1", 1.0)):
        mine = placements[(placements["architecture"] == name) & (placements["hbm_gib"] == hbm)]
        best = mine[mine["planner"] == "phaze"]["time_per_batch_s"].min()
        assert plans.loc[(name, "phaze"), "time_per_sample_s"] == pytest.approx(best / 32, rel=1e-12)
    expert = placements[(placements["planner"] == "expert") & (placements["hbm_gib"] == 2.0)]
    best = expert["time_per_batch_s"].min()
    assert plans.loc[("a0", "expert"), "time_per_sample_s"] == pytest.approx(best / 32, rel=1e-12)


def test_pipers_plan_is_the_best_over_microbatches_of_all_that_there_are(plans: pd.DataFrame) -> None:
    for asked, task in read_tasks(*model(), ASKED, SMALL, EXPERT):
        times = {}
        for b, layers in models_of(task).items():
            cluster = cluster_of(task, b)
            assert cluster == FlatCluster(8, asked.hbm_gib * 2**30, 1e9, 32 // b)
            times[b] = least_time(layers, cluster) / b
        row = plans.loc[(asked.architecture, "piper")]
        assert row["time_per_sample_s"] == pytest.approx(min(times.values()), rel=1e-9)
        assert times[row["microbatch"]] == pytest.approx(row["time_per_sample_s"], rel=1e-9)
        assert not row["flushes"]


def test_a_planner_says_what_nothing_goes_below() -> None:
    task = task_of(SMALL, ASKED[0], EXPERT)
    for planner in PLANNING.values():
        found = planner(task)
        assert isinstance(found, Planned)
        assert found.bound_s <= found.plan.claimed.time_per_sample_s
        assert 0 <= found.gap < 1e-9


def test_equal_and_experts_stages_are_no_faster_than_phazes(plans: pd.DataFrame) -> None:
    for name in ("a0", "a1"):
        for planner in ("equal", "expert"):
            slower = plans.loc[(name, planner), "time_per_sample_s"]
            assert plans.loc[(name, "phaze"), "time_per_sample_s"] <= slower * (1 + 1e-12)


def test_stages_sum_to_their_plan(planned: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    plans, stages = planned
    for key, cut in stages.groupby(KEY):
        plan = plans.set_index(KEY).loc[key]
        assert cut["first_layer"].tolist() == [0, *(cut["last_layer"] + 1)][:-1]
        assert cut["last_layer"].iloc[-1] == 4
        assert (cut["data"] * cut["tensor"]).sum() == plan["devices_used"] <= 8
        assert cut["data"].sum() == plan["degree"]
        assert ",".join(dict.fromkeys(map(str, cut["tensor"]))) == plan["tensor"]
        assert (cut["headroom_bytes"] >= 0).all()
        slowest = cut["time_per_sample_s"].max()
        time_s = plan["time_per_sample_s"]
        assert slowest == time_s or (plan["flushes"] and slowest < time_s)


def task_of(conditions: Conditions, asked: PlansAsked, expert: Layout | None) -> PlanningTask:
    return next(task for _, task in read_tasks(*model(), [asked], conditions, expert))


@pytest.mark.parametrize(
    ("planner", "conditions", "expert", "reason"),
    [
        ("piper", TIGHT, EXPERT, "memory: layer 4 (head) alone takes at least"),
        ("phaze", TIGHT, EXPERT, "memory: the leanest placement"),
        ("equal", TIGHT, EXPERT, "memory: stage"),
        ("expert", SMALL, None, "widths: the workload has no expert's placement"),
        ("expert", SMALL, Layout(pp=2, dp=2, tp=4), "widths: t = 4 is not among the TMP widths of the"),
    ],
)
def test_where_there_is_no_plan_the_row_says_why(
    planner: str, conditions: Conditions, expert: Layout | None, reason: str
) -> None:
    asked = PlansAsked("a0", conditions.training.hbm_gib[-1], (planner,))
    plans, stages = plan_model(read_tasks(*model(), [asked], conditions, expert))
    (row,) = Plans.check(plans).to_dict("records")
    assert row["status"] == "infeasible"
    assert row["reason"].startswith(reason)
    assert PlanStages.check(stages).empty


def test_what_the_layers_need_is_what_the_tables_hold() -> None:
    task = task_of(SMALL, ASKED[0], None)
    layers = models_of(task)[2]
    assert layers.names == ("embedding", "block", "block", "block", "head")
    assert list(layers.options) == [1, 2]
    # Adam in mixed precision takes 16 bytes of each parameter; PipeDream-2BW another 2 for its weights.
    assert layers.options[1].fixed_bytes[2] == 18 * 20_000_000
    assert layers.options[2].fixed_bytes[2] == 18 * 10_000_000
    assert layers.options[2].stash_bytes[2] == 2 * 1e8 / 2
    assert layers.options[2].time_s[2] == pytest.approx(2 * 0.6 * (0.02 + 0.04))
