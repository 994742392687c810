"""Piper as a planner of a study's models, and its price of other planners' plans."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from phaze.base.units import GIB
from phaze.layout import Layout
from phaze.pipeline.flushing import Chain
from phaze.plan.phaze.flush import Infeasible
from phaze.plan.piper.chain import RECOMPUTE, price, read_layers, why_outside
from phaze.plan.piper.layers import FlatCluster, PiperPlan, PlannedStage, ProfiledLayers
from phaze.plan.piper.planner import BELOW, plan, why_no_plan
from phaze.plan.plan import Plan, Stage
from phaze.plan.planners import Planned, PlanningTask, StageMemory


def plan_piper(task: PlanningTask) -> Planned | Infeasible:
    """Best plan over microbatches.

    Accumulating gradients of g microbatches is never better (Appendix A): it changes only N, and the degrees
    sum to at most N.
    """
    models, samples = models_of(task), task.conditions.scenario.global_batch
    best: tuple[float, int, PiperPlan] | None = None
    for microbatch in sorted(models):
        below_s = best[0] if best else np.inf
        cluster = cluster_of(task, microbatch)
        found = plan(models[microbatch], cluster, below_s=below_s * microbatch)
        if found is not None and found.time_per_sample_s / microbatch < below_s:
            best = found.time_per_sample_s / microbatch, microbatch, found
    if best is None:
        least = min(models)
        return Infeasible(why_no_plan(models[least], cluster_of(task, least)))
    time_s, microbatch, found = best
    planned = [_stage(task, models[microbatch], microbatch, stage) for stage in found.stages]
    stages, memory = zip(*planned, strict=True)
    made = Plan(stages, "2bw", samples // microbatch, claim=task.claim(time_s, 0.0))
    return Planned(made, memory, time_s * BELOW)


def _stage(
    task: PlanningTask, model: ProfiledLayers, microbatch: int, given: PlannedStage
) -> tuple[Stage, StageMemory]:
    """Stage whose layers have individual configurations."""
    chosen, options = list(given.configurations), model.options[given.layout.tp]
    again = np.array([options.names[c] == RECOMPUTE for c in chosen])
    stage = task.prospect(Layout(tp=given.layout.tp, microbatch=microbatch)).stage(
        np.array(given.layers, np.int64),
        again,
        replace(given.layout, microbatch=microbatch),
        given.time_s / microbatch,
        fixed_bytes=float(options.fixed_bytes[chosen].sum()),
        stash_bytes=float(options.stash_bytes[chosen].sum()),
        work_bytes=0.0,
    )
    return stage, StageMemory(int(again.sum()), given.in_flight, given.memory_bytes)


def price_planned(task: PlanningTask, planned: Planned) -> tuple[float, str]:
    """Time per sample under Piper's model, inf if infeasible, and why the plan is outside its space."""
    plan, microbatch = planned.plan, planned.plan.layout.microbatch
    if plan.schedule == "2bw":
        return plan.claimed.time_per_sample_s, ""
    cluster, layouts = cluster_of(task, microbatch), [stage.layout for stage in plan.stages]
    cuts = [range(stage.first_layer, stage.last_layer + 1) for stage in plan.stages]
    priced = price(models_of(task)[microbatch], cluster, cuts, layouts)
    if isinstance(priced, str):
        return np.inf, priced
    return priced / microbatch, why_outside(cluster, layouts)


@lru_cache(maxsize=1)
def models_of(task: PlanningTask) -> dict[int, ProfiledLayers]:
    """Model as Piper's layers, by microbatch."""
    chains: dict[int, dict[Layout, Chain]] = {}
    for one in task.prospects:
        chains.setdefault(one.point.layout.microbatch, {})[one.point.layout] = one.chain
    names, recompute = task.prospects[0].point.layers, task.conditions.training.recompute
    return {microbatch: read_layers(mine, names, recompute) for microbatch, mine in chains.items()}


def cluster_of(task: PlanningTask, microbatch: int) -> FlatCluster:
    """Devices and batch for Piper's planner, without further accumulation."""
    scenario = task.conditions.scenario
    return FlatCluster(
        devices=scenario.devices,
        memory_bytes=task.hbm_gib * GIB,
        bandwidth_bytes_per_s=scenario.network_bandwidth_bytes_per_s,
        microbatches=scenario.global_batch // microbatch,
    )
