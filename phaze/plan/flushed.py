"""Planners of synchronous pipelines: Phaze's, equal stages, and the hand-tuned widths of experts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from phaze.base.ranking import tied
from phaze.base.units import GIB
from phaze.cost.memory import microbatches_in_flight
from phaze.layout import Layout, Recompute
from phaze.pipeline.flushing import Setting
from phaze.plan.even import place_equally, place_expert
from phaze.plan.phaze.flush import Infeasible, Placement, place_chain
from phaze.plan.phaze.rows import PlacedStage, stage_costs
from phaze.plan.plan import Plan, Stage
from phaze.plan.planners import Planned, PlanningTask, Prospect, StageMemory

Place = Callable[[PlanningTask, Prospect, Setting], Placement | Infeasible]


def plan_phaze(task: PlanningTask) -> Planned | Infeasible:
    """Best cut of the chain, d and s for every TMP width (Phaze, Section 5)."""
    return _best(task, lambda _, one, setting: place_chain(one.chain, one.point.layout, setting))


def plan_equal(task: PlanningTask) -> Planned | Infeasible:
    """Best plan whose stages have equal numbers of repeated layers and the same d and t."""
    return _best(
        task,
        lambda _, one, setting: place_equally(one.chain, one.point.layout, setting, *one.point.repeated()),
    )


def plan_expert(task: PlanningTask) -> Planned | Infeasible:
    """Published widths of experts with the best boundaries."""
    return _best(task, _place_expert)


def _place_expert(task: PlanningTask, one: Prospect, setting: Setting) -> Placement | Infeasible:
    if task.expert is None:
        return Infeasible("widths: the workload has no expert's placement")
    if task.expert.tp != one.point.layout.tp:
        return Infeasible(f"widths: t = {task.expert.tp} is not among the TMP widths of the workload")
    return place_expert(one.chain, task.expert, setting)


def _best(task: PlanningTask, place: Place) -> Planned | Infeasible:
    """Best plan over TMP widths, microbatches and recomputation, or the reason for infeasibility."""
    found = [
        (one, setting, place(task, one, setting))
        for one in task.prospects
        for setting in task.conditions.settings(one.point.layout)
        if setting.memory_bytes == task.hbm_gib * GIB
    ]
    placed = [(one, setting, p) for one, setting, p in found if isinstance(p, Placement)]
    if not placed:
        return next((p for *_, p in found if isinstance(p, Infeasible)), Infeasible("widths: none given"))
    times = tied(np.array([placement.time_s for *_, placement in placed]))
    # Ties go to stashing, then to the smallest t and microbatch, as in other planners.
    ranks = [(t, s.recompute, one.point.layout) for t, (one, s, _) in zip(times, placed, strict=True)]
    return _planned(task, *placed[ranks.index(min(ranks))])


def _planned(task: PlanningTask, one: Prospect, setting: Setting, placement: Placement) -> Planned:
    costs = stage_costs(one.chain, placement, setting)
    in_pipeline = setting.in_pipeline(placement.layout)
    stages = tuple(_stage(one, setting, placement, cost, s) for s, cost in enumerate(costs))
    memory = tuple(
        StageMemory(
            stage.layers if stage.layout.recompute == "full" else 0,
            microbatches_in_flight(setting.schedule, placement.stages - s, in_pipeline) + 1,
            cost.memory_bytes,
        )
        for s, (stage, cost) in enumerate(zip(stages, costs, strict=True))
    )
    time_s = placement.time_s / task.conditions.scenario.global_batch
    claim = task.claim(time_s, placement.sync_s)
    return Planned(Plan(stages, setting.schedule, setting.microbatches, claim=claim), memory, time_s)


def _stage(one: Prospect, setting: Setting, placement: Placement, cost: PlacedStage, number: int) -> Stage:
    """Stage whose layers all stash or all recompute; with recomputation, all stages but the last recompute.

    A recomputing stage stores its inputs of every microbatch in flight, and all activations of the one being
    processed (`cost.memory`).
    """
    layers = np.arange(cost.first_layer, cost.last_layer + 1)
    again = setting.recompute and number < placement.stages - 1
    kept: Recompute = "full" if again else "none"
    microbatch, replicas = one.point.layout.microbatch, placement.layout.dp
    stash = float(one.crossing(layers)[0].sum()) if again else cost.activation_bytes
    return one.stage(
        layers,
        np.full(len(layers), cost.recomputed_s > 0),
        Layout(tp=placement.devices[number], dp=replicas, microbatch=microbatch, recompute=kept),
        cost.load_s / (replicas * microbatch),
        fixed_bytes=cost.static_bytes,
        stash_bytes=stash,
        work_bytes=max(cost.activation_bytes - stash, 0.0),
    )
