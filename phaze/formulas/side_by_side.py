"""Tables of plans and their stages: the result of every planner for a model on selected architectures.

Phaze, equal and expert place under the model of flushing pipelines (`flush`), Piper under its own. Each
claims a time by its own formula; `replay` prices all of them.

This module contains the planners of synchronous pipelines: Phaze's, equal stages, and experts' hand-tuned
widths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields

import numpy as np
import pandas as pd

from phaze.base.ranking import tied
from phaze.base.units import GIB
from phaze.cost.memory import microbatches_in_flight
from phaze.formulas.even import place_equally, place_expert
from phaze.formulas.flushing import Setting
from phaze.formulas.phaze.flush import Infeasible, Placement, place_chain
from phaze.formulas.phaze.point import Conditions
from phaze.formulas.phaze.rows import PlacedStage, stage_costs
from phaze.formulas.piper.chain import RECOMPUTE, STASH
from phaze.formulas.piper.study import plan_piper
from phaze.formulas.planners import Planned, PlanningTask, PlansAsked, Prospect, StageMemory
from phaze.layout import Layout, Recompute
from phaze.plan.plan import Plan, Planner, Stage
from phaze.spec.rows import StageWork
from phaze.tables import Plans, PlanStages

Place = Callable[[PlanningTask, Prospect, Setting], Placement | Infeasible]


def plan_phaze(task: PlanningTask) -> Planned | Infeasible:
    """Best plan of Phaze's planner, which chooses stages and widths, over all TMP widths (Section 5)."""
    return _best(task, lambda _, one, setting: place_chain(one.chain, one.point.layout, setting))


def plan_equal(task: PlanningTask) -> Planned | Infeasible:
    """Best plan whose stages all have the same number of repeated layers and the same widths."""
    return _best(
        task,
        lambda _, one, setting: place_equally(one.chain, one.point.layout, setting, *one.point.repeated()),
    )


def plan_expert(task: PlanningTask) -> Planned | Infeasible:
    """Best plan with the hand-designed (expert) widths, over all stage boundaries."""
    return _best(task, _place_expert)


def _place_expert(task: PlanningTask, prospect: Prospect, setting: Setting) -> Placement | Infeasible:
    if task.expert is None:
        return Infeasible("widths: the workload has no expert's placement")
    if task.expert.tp != prospect.point.layout.tp:
        return Infeasible(f"widths: t = {task.expert.tp} is not among the TMP widths of the workload")
    return place_expert(prospect.chain, task.expert, setting)


def _best(task: PlanningTask, place: Place) -> Planned | Infeasible:
    """Best plan over TMP widths, microbatches and recomputation, or the reason for infeasibility."""
    results = [
        (prospect, setting, place(task, prospect, setting))
        for prospect in task.prospects
        for setting in task.conditions.settings(prospect.point.layout)
    ]
    placed = [(prospect, setting, p) for prospect, setting, p in results if isinstance(p, Placement)]
    if not placed:
        return next((p for *_, p in results if isinstance(p, Infeasible)), Infeasible("widths: none given"))
    # Times that differ by rounding alone must not decide between plans.
    times = tied(np.array([placement.time_s for *_, placement in placed]))
    # Ties go to stashing, then to the smallest t and microbatch, as in other planners.
    ranks = [
        (t, s.recompute, prospect.point.layout) for t, (prospect, s, _) in zip(times, placed, strict=True)
    ]
    return _planned(task, *placed[ranks.index(min(ranks))])


def _planned(task: PlanningTask, prospect: Prospect, setting: Setting, placement: Placement) -> Planned:
    costs = stage_costs(prospect.chain, placement, setting)
    in_pipeline = setting.in_pipeline(placement.layout)
    stages = tuple(_stage(prospect, setting, placement, cost, s) for s, cost in enumerate(costs))
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


def _stage(
    prospect: Prospect, setting: Setting, placement: Placement, cost: PlacedStage, number: int
) -> Stage:
    """Build a stage that either stashes or recomputes all of its layers; the last stage always stashes.

    A recomputing stage stores its inputs of every microbatch in flight, and all activations of the one being
    processed (`cost.memory`).
    """
    layers = np.arange(cost.first_layer, cost.last_layer + 1)
    recomputes = setting.recompute and number < placement.stages - 1
    recompute: Recompute = "full" if recomputes else "none"
    microbatch, replicas = prospect.point.layout.microbatch, placement.layout.dp
    stash = float(prospect.crossing(layers)[0].sum()) if recomputes else cost.activation_bytes
    return prospect.stage(
        layers,
        np.full(len(layers), cost.recomputed_s > 0),
        Layout(tp=placement.devices[number], dp=replicas, microbatch=microbatch, recompute=recompute),
        cost.load_s / (replicas * microbatch),
        fixed_bytes=cost.static_bytes,
        stash_bytes=stash,
        work_bytes=max(cost.activation_bytes - stash, 0.0),
    )


Row = dict[str, object]

PLANNERS: dict[str, Planner[PlanningTask, Planned | Infeasible]] = {
    "phaze": plan_phaze,
    "piper": plan_piper,
    "equal": plan_equal,
    "expert": plan_expert,
}


def plan_model(tasks: Iterable[tuple[PlansAsked, PlanningTask]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables `plans` and `plan_stages` of one model, for each set of requested plans (`read_tasks`)."""
    plans: list[Row] = []
    stages: list[Row] = []
    for request, task in tasks:
        for planner in request.planners:
            planned = PLANNERS[planner](task)
            key = {
                "model": task.prospects[0].point.model,
                "architecture": request.architecture,
                "hbm_gib": request.hbm_gib,
                "planner": planner,
            }
            plans.append({**key, **_assumed(task.conditions), **plan_row(planned)})
            if isinstance(planned, Planned):
                pairs = zip(planned.plan.stages, planned.memory, strict=True)
                rows = (_stage_row(stage, memory, request.hbm_gib * GIB) for stage, memory in pairs)
                stages.extend({**key, "stage": s, **row} for s, row in enumerate(rows))
    return (
        pd.DataFrame(plans, columns=list(Plans.fields())),
        pd.DataFrame(stages, columns=list(PlanStages.fields())),
    )


def _assumed(conditions: Conditions) -> Row:
    names = ("network_bandwidth_bytes_per_s", "hbm_bandwidth_bytes_per_s")
    return {name: getattr(conditions.scenario, name) for name in names}


def plan_row(planned: Planned | Infeasible) -> Row:
    """Row of table `plans` for the result of one planner, without its key columns."""
    if isinstance(planned, Infeasible):
        none = dict.fromkeys(("microbatch", "microbatches", "stages", "devices_used", "degree"), 0)
        free = dict.fromkeys(("samples_per_s", "sync_s", "all_reduce_factor"), 0.0)
        return {
            "status": "infeasible",
            "reason": planned.reason,
            "flushes": False,
            "schedule": "none",
            "tensor": "",
            "data": "",
            "memory": "none",
            **none,
            **free,
            "time_per_sample_s": np.inf,
        }
    plan, claim = planned.plan, planned.plan.claimed
    layouts = [stage.layout for stage in plan.stages]
    return {
        "status": "placed",
        "reason": "",
        "flushes": plan.flushes,
        "schedule": plan.schedule,
        "microbatch": plan.layout.microbatch,
        "microbatches": plan.microbatches,
        "tensor": _each_once(layout.tp for layout in layouts),
        "data": _each_once(layout.dp for layout in layouts),
        "memory": _memory(planned),
        "stages": len(layouts),
        "devices_used": plan.devices,
        "degree": sum(layout.dp for layout in layouts),
        "time_per_sample_s": claim.time_per_sample_s,
        "sync_s": claim.sync_s,
        "all_reduce_factor": claim.network.all_reduce_factor,
        "samples_per_s": 1.0 / claim.time_per_sample_s,
    }


def _stage_row(stage: Stage, memory: StageMemory, hbm_bytes: float) -> Row:
    work: Row = {column.name: getattr(stage, column.name) for column in fields(StageWork)}
    return work | {
        "first_layer": stage.first_layer,
        "last_layer": stage.last_layer,
        "data": stage.layout.dp,
        "tensor": stage.layout.tp,
        "recomputed": memory.recomputed,
        "in_flight": memory.in_flight,
        "time_per_sample_s": stage.time_per_sample_s,
        "memory_bytes": memory.memory_bytes,
        "headroom_bytes": hbm_bytes - memory.memory_bytes,
    }


def _each_once(widths: Iterable[int]) -> str:
    return ",".join(str(width) for width in dict.fromkeys(widths))


def _memory(planned: Planned) -> str:
    """Activation strategy of a plan: stashing, recomputation wherever it helps, or mixed.

    The last stage has one microbatch in flight, so recomputation never helps it.
    """
    stages = planned.plan.stages
    recomputed = sum(stage_memory.recomputed for stage_memory in planned.memory)
    if not recomputed:
        return STASH
    return RECOMPUTE if recomputed >= sum(stage.layers for stage in stages[:-1]) else "mixed"
