"""Prices of plans read from tables of a study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import phaze.formulas.replay
from phaze.base.store import Store
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.formulas.planners import PlansAsked, read_tasks
from phaze.formulas.replay import (
    read_plan,
    replay,
    replay_plans,
    replayed_rows,
)
from phaze.formulas.side_by_side import plan_model
from phaze.layout import Layout
from phaze.plan.plan import Claim, Execution, Plan, Stage
from phaze.tables import PLANNERS, Plans, PlanStages, Simulations, SimulationStages
from phaze.tables.plans import PLAN
from tests.unit.formulas.test_side_by_side import EXPERT, SMALL, model

Planned = tuple[pd.DataFrame, pd.DataFrame]
BANDWIDTH = 1e9
HBM_BANDWIDTH = 1e11
PLANNED = Flat(BANDWIDTH, BOTH_DIRECTIONS)
STAGE = Stage(
    first_layer=0, last_layer=1, layout=Layout(), time_per_sample_s=0.0, forward_s=1.0, recompute_s=0.0,
    backward_s=2.0, arriving_bytes=0.0, departing_bytes=0.0,
    weight_bytes=0.0, fixed_bytes=0.0, stash_bytes=1.0, work_bytes=0.0,
    forward_hbm_bytes=0.0, recompute_hbm_bytes=0.0, backward_hbm_bytes=0.0,
    forward_reduced_bytes=0.0, recompute_reduced_bytes=0.0, backward_reduced_bytes=0.0,
)  # fmt: skip


def flushing(stages: list[Stage], microbatches: int, schedule: str = "1f1b") -> Plan:
    """Return a plan with the time of Phaze's formula; every stage waits for its inputs and gradients."""
    charged = [_charged(stage) for stage in stages]
    sync = exchange_s(charged[0])
    load = max(stage.time_per_sample_s * stage.layout.dp for stage in charged)
    in_pipeline = -(-microbatches // stages[0].layout.dp)
    time_s = load * (in_pipeline + len(stages) - 1) + sync
    claim = Claim(time_s / microbatches, sync, PLANNED, HBM_BANDWIDTH)
    return Plan(tuple(charged), "gpipe" if schedule == "gpipe" else "1f1b", microbatches, claim=claim)


def exchange_s(stage: Stage) -> float:
    """Return the planners' charge for the gradients of a stage, 4 (d - 1)/d of its weights."""
    d = stage.layout.dp
    return 4.0 * (d - 1) / d * stage.weight_bytes / BANDWIDTH


def with_data(stage: Stage, data: int, **changes: float) -> Stage:
    """Return a stage with this number of replicas."""
    return replace(stage, layout=replace(stage.layout, dp=data), **changes)  # type: ignore[arg-type]


def with_slices(stage: Stage, tensor: int, **changes: float) -> Stage:
    """Return a stage with this number of tensor-parallel ranks."""
    return replace(stage, layout=replace(stage.layout, tp=tensor), **changes)  # type: ignore[arg-type]


def slowed(plan: Plan, *, network: float = 1.0, hbm: float = 1.0) -> Plan:
    """Return a plan made for a fraction of the bandwidths."""
    flat = plan.claimed.network
    flat = replace(flat, bandwidth_bytes_per_s=network * flat.bandwidth_bytes_per_s)
    claim = replace(plan.claimed, network=flat, hbm_bytes_per_s=hbm * plan.claimed.hbm_bytes_per_s)
    return replace(plan, claim=claim)


def _charged(stage: Stage) -> Stage:
    waits = (stage.arriving_bytes + stage.departing_bytes) / BANDWIDTH
    return replace(stage, time_per_sample_s=(stage.compute_s + waits) / stage.layout.dp)


def unflushed(stages: list[Stage], microbatches: int) -> Plan:
    """Return a plan with the time of Piper's formula."""
    times = []
    for stage in stages:
        moved = 2 * (stage.arriving_bytes + stage.departing_bytes) / BANDWIDTH
        gradients = exchange_s(stage) / microbatches
        times.append((stage.compute_s + moved) / stage.layout.dp + gradients)
    timed = tuple(replace(s, time_per_sample_s=t) for s, t in zip(stages, times, strict=True))
    claim = Claim(max(times), 0.0, PLANNED, HBM_BANDWIDTH)
    return Plan(timed, "2bw", microbatches, Execution(overlap_sync=True), claim)


def random_stages(rng: np.random.Generator, data: list[int]) -> list[Stage]:
    """Return a chain with tensors between its stages, some of them several."""
    borders = [np.zeros(0), *(rng.uniform(0, 4e8, rng.integers(1, 3)) for _ in data[1:]), np.zeros(0)]
    return [
        with_data(
            STAGE,
            d,
            forward_s=float(rng.uniform(0.2, 1)),
            backward_s=float(rng.uniform(0.2, 2)),
            recompute_s=float(rng.integers(2) * rng.uniform(0.2, 1)),
            arriving_bytes=float(before.sum()),
            departing_bytes=float(after.sum()),
            weight_bytes=float(rng.uniform(0, 2e9)),
        )
        for d, before, after in zip(data, borders, borders[1:], strict=False)
    ]


def random_plan(seed: int) -> Plan:
    """Return a flushing plan or one without flush whose widths divide the batch."""
    rng = np.random.default_rng(seed)
    depth = int(rng.integers(1, 6))
    if seed % 2:
        d = int(rng.integers(1, 5))
        schedule = "gpipe" if seed % 4 == 1 else "1f1b"
        return flushing(random_stages(rng, [d] * depth), int(rng.integers(d, 30)), schedule)
    data = rng.choice([1, 2, 3, 4], depth).tolist()
    return unflushed(random_stages(rng, data), 24)


@pytest.mark.parametrize("seed", range(40))
def test_no_more_than_the_time_is_spent(seed: int) -> None:
    found = replay(random_plan(seed))
    assert 0 < found.compute_share <= 1 + 1e-3
    assert found.compute_share + found.exposed_share <= 1 + 1e-3


@pytest.mark.parametrize(("stages", "data", "microbatches"), [(1, 1, 1), (4, 1, 9), (3, 2, 8), (5, 4, 30)])
def test_equal_silent_stages_take_phazes_time(stages: int, data: int, microbatches: int) -> None:
    found = replay(flushing([with_data(STAGE, data)] * stages, microbatches))
    assert found.time_s == pytest.approx((-(-microbatches // data) + stages - 1) * 3.0, rel=1e-12)


def test_unequal_stages_are_faster_by_the_imbalance() -> None:
    stages = [STAGE, replace(STAGE, forward_s=0.5, backward_s=1.0), replace(STAGE, forward_s=0.25)]
    found = replay(flushing(stages, 8))
    assert 8 * 3.0 <= found.time_s < (8 + 2) * 3.0


def test_the_factor_of_planners_is_twice_the_simulators() -> None:
    """Of equal stages the first ends last, so only its exchange is exposed: half of the charge."""
    stages = [with_data(STAGE, 2, weight_bytes=1e9)] * 3
    plan = flushing(stages, 8)
    charged = 4 * (2 - 1) / 2 * 1e9 / BANDWIDTH
    assert replay(plan).time_s == pytest.approx(plan.planned_s - charged / 2)


def test_a_first_stage_with_few_weights_does_not_hide_the_others() -> None:
    stages = [with_data(STAGE, 2), with_data(STAGE, 2, weight_bytes=1e11)]
    found = replay(flushing(stages, 8))
    # The last stage has finished a forward and a backward pass of the first before.
    assert found.time_s == pytest.approx((4 + 1) * 3.0 + 2 / 2 * 100.0 - 2.0)
    assert found.timeline.bound_by.resource == "synchronisation"


def test_tensors_that_enter_together_share_the_link() -> None:
    two = replace(STAGE, arriving_bytes=2e9)
    first = replace(STAGE, departing_bytes=2e9)
    found, alone = (replay(flushing([first, last], 4)) for last in (two, replace(two, arriving_bytes=1e9)))
    assert found.time_s > alone.time_s


def test_no_link_carries_more_than_its_bandwidth() -> None:
    """A tensor that takes longer than the passes: without sharing, all would be in flight at once."""
    first = replace(STAGE, departing_bytes=1e10)
    last = replace(STAGE, arriving_bytes=1e10)
    plan = flushing([first, last], 40, "gpipe")
    assert replay(plan).time_s >= replay(plan).link_s == pytest.approx(40 * 10.0)


@pytest.mark.parametrize("seed", range(1, 40, 3))
def test_half_the_bandwidth_is_never_faster(seed: int) -> None:
    plan = random_plan(seed)
    slow = slowed(plan, network=0.5)
    if plan.flushes:
        assert replay(slow).time_s >= replay(plan).time_s * (1 - 1e-9)


@pytest.fixture(scope="module")
def planned() -> Planned:
    """Return the plans of all planners for three blocks on two chips."""
    asked = [PlansAsked("a0", 2.0, PLANNERS), PlansAsked("a1", 1.0, PLANNERS)]
    plans, stages = plan_model(read_tasks(*model(), asked, SMALL, EXPERT))
    return Plans.check(plans), PlanStages.check(stages)


def test_planners_plans_are_replayed_in_their_time_and_memory(planned: Planned) -> None:
    plans, stages = planned
    simulations, simulated = replay_plans(plans, stages, Store())
    simulations, simulated = Simulations.check(simulations), SimulationStages.check(simulated)
    assert len(simulations) == (plans["status"] == "placed").sum() == 8
    both = simulated.merge(stages, on=[*PLAN, "stage"], suffixes=("", "_planned"))
    assert len(both) == len(stages)
    np.testing.assert_allclose(both["peak_bytes"], both["memory_bytes"], rtol=1e-9)
    assert (both["in_flight"] == both["in_flight_planned"]).all()


def test_plans_that_were_simulated_are_not_simulated_again(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the plans of an additional accelerator are simulated; the others are returned bit-identical."""
    plans, stages = planned
    fresh = replay_plans(plans, stages, Store())
    made: list[object] = []

    def count(plan: dict[str, str | int | float | bool], *rest: object) -> object:
        made.append(plan["hbm_gib"])
        return replayed_rows(plan, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(phaze.formulas.replay, "replayed_rows", count)
    first = [table[table["architecture"] == "a0"] for table in planned]
    for number, given in enumerate([first, planned, planned]):
        with Store(tmp_path / "simulations", "code") as store:
            found = replay_plans(*given, store)
        assert set(made) == ({2.0} if number == 0 else {1.0} if number == 1 else set())
        made.clear()
    for one, other in zip(found, fresh, strict=True):
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_a_plan_is_read_with_what_its_planner_charges(planned: Planned) -> None:
    plans, stages = planned
    for row in plans.to_dict("records"):
        key = [row[name] for name in PLAN]
        mine = stages[(stages[list(PLAN)] == key).all(axis=1)]
        plan = read_plan(row, mine)
        assert plan.samples == SMALL.scenario.global_batch
        assert plan.devices == row["devices_used"]
        assert plan.planned_s == pytest.approx(row["time_per_sample_s"] * plan.samples, rel=1e-12)


def test_operators_that_share_the_memory_take_what_it_needs() -> None:
    """Forward passes of 1 s have HBM traffic of 1.5 s, which adds 0.5 s per microbatch; backward passes are
    long enough.
    """
    busy = replace(STAGE, forward_hbm_bytes=1.5 * HBM_BANDWIDTH, backward_hbm_bytes=1.0 * HBM_BANDWIDTH)
    found, free = (replay(flushing([stage] * 2, 6)) for stage in (busy, STAGE))
    assert found.time_s == pytest.approx(free.time_s + 7 * 0.5)
    assert found.hbm_shares == pytest.approx([6 * 2.5 / found.time_s] * 2)
    assert found.busy_s == pytest.approx([6 * 3.5] * 2)
    assert found.exposed_share == 0
    assert found.bound_by.resource == "HBM"


@pytest.mark.parametrize("seed", range(24))
def test_half_of_the_memorys_bandwidth_is_never_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plan = random_plan(seed)
    moved = {f"{name}_hbm_bytes": rng.uniform(0, 2) * HBM_BANDWIDTH for name in ("forward", "backward")}
    plan = replace(plan, stages=tuple(replace(stage, **moved) for stage in plan.stages))
    slow = slowed(plan, hbm=0.5)
    found, slower = replay(plan), replay(slow)
    loose = 1e-9 if plan.flushes else 2e-4
    assert slower.time_s >= found.time_s * (1 - loose)
    assert all(share <= 1 + loose for one in (found, slower) for share in one.hbm_shares)


def test_a_link_carries_what_slices_stages_and_replicas_send() -> None:
    """An all-reduce of four ranks sends 2 · 3/4 of the tensor, three times per microbatch here."""
    stage = replace(
        STAGE, layout=Layout(tp=4, dp=2), recompute_s=1.0, weight_bytes=1e8, arriving_bytes=2e7,
        departing_bytes=1e7, forward_reduced_bytes=4e7, recompute_reduced_bytes=4e7,
        backward_reduced_bytes=4e7,
    )  # fmt: skip
    (use,) = replay(flushing([stage], 6)).link_uses_s
    assert use.slices == pytest.approx(3 * 3 * 1.5 * 4e7 / BANDWIDTH)
    assert use.stages == pytest.approx(3 * 3e7 / BANDWIDTH)
    assert use.replicas == pytest.approx(2 / 2 * 1e8 / BANDWIDTH)
    assert use.total == pytest.approx(use.slices + use.stages + use.replicas)
    assert use.over(2.0).slices == use.slices / 2


def test_all_reduces_of_slices_that_take_most_of_the_passes_bind() -> None:
    stage = replace(STAGE, layout=Layout(tp=4), forward_reduced_bytes=3e8, backward_reduced_bytes=6e8)
    found = replay(flushing([stage] * 3, 12))
    assert found.bound_by.resource == "all-reduces of slices"
    assert found.bound_by.share == pytest.approx(0.9)
    assert found.time_s == replay(flushing([STAGE] * 3, 12)).time_s


@pytest.mark.parametrize("seed", range(1, 24, 2))
def test_links_that_all_reduce_too_make_a_batch_no_faster(seed: int) -> None:
    plan = random_plan(seed)
    reduced = {f"{name}_reduced_bytes": 2e8 for name in ("forward", "backward")}
    sliced = replace(plan, stages=tuple(with_slices(s, 2, **reduced) for s in plan.stages))
    assert replay(sliced).time_s >= replay(plan).time_s
    assert replay(sliced).time_s == pytest.approx(max(replay(plan).time_s, replay(sliced).link_s))
