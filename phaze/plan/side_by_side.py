"""Tables of plans and their stages: the result of every planner for a model on selected architectures.

Phaze, equal and expert place under the model of flushing pipelines (`flush`), Piper under its own. The plans
of the first three are also priced under Piper's model. In that model they are plans of Piper's space, and no
better than Piper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

import numpy as np
import pandas as pd

from phaze.base.units import GIB
from phaze.layout import Layout
from phaze.plan.flushed import plan_equal, plan_expert, plan_phaze
from phaze.plan.phaze.flush import Infeasible
from phaze.plan.phaze.point import Conditions
from phaze.plan.piper.chain import RECOMPUTE, STASH
from phaze.plan.piper.study import plan_piper, price_planned
from phaze.plan.plan import Stage
from phaze.plan.planners import Planned, Planner, PlanningTask, PlansAsked, StageMemory, read_tasks
from phaze.spec.rows import StageWork
from phaze.tables import Plans, PlanStages

Row = dict[str, object]

PLANNERS: dict[str, Planner] = {
    "phaze": plan_phaze,
    "piper": plan_piper,
    "equal": plan_equal,
    "expert": plan_expert,
}


def plan_model(
    layers: pd.DataFrame,
    graph: pd.DataFrame,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    asked: Sequence[PlansAsked],
    conditions: Conditions,
    expert: Layout | None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of plans and of their stages; layers and solves are of all points of one model."""
    model = str(graph["model"].iloc[0])
    plans: list[Row] = []
    stages: list[Row] = []
    for one, task in read_tasks(layers, graph, solves, architectures, asked, conditions, expert):
        for planner in one.planners:
            found = PLANNERS[planner](task)
            key = {
                "model": model,
                "architecture": one.architecture,
                "hbm_gib": one.hbm_gib,
                "planner": planner,
            }
            plans.append({**key, **_assumed(conditions), **plan_row(found, task)})
            if isinstance(found, Planned):
                pairs = zip(found.plan.stages, found.memory, strict=True)
                rows = (_stage_row(stage, memory, one.hbm_gib * GIB) for stage, memory in pairs)
                stages.extend({**key, "stage": s, **row} for s, row in enumerate(rows))
    return (
        pd.DataFrame(plans, columns=list(Plans.fields())),
        pd.DataFrame(stages, columns=list(PlanStages.fields())),
    )


def _assumed(conditions: Conditions) -> Row:
    names = ("network_bandwidth_bytes_per_s", "hbm_bandwidth_bytes_per_s")
    return {name: getattr(conditions.scenario, name) for name in names}


def plan_row(found: Planned | Infeasible, task: PlanningTask) -> Row:
    """Row of the table of plans, without its key."""
    if isinstance(found, Infeasible):
        none = dict.fromkeys(("microbatch", "microbatches", "stages", "devices_used", "degree"), 0)
        never = dict.fromkeys(("time_per_sample_s", "piper_time_per_sample_s"), np.inf)
        free = dict.fromkeys(("samples_per_s", "sync_s", "all_reduce_factor"), 0.0)
        return {
            "status": "infeasible",
            "reason": found.reason,
            "flushes": False,
            "schedule": "none",
            "tensor": "",
            "data": "",
            "memory": "none",
            "piper_reason": "there is no plan",
            **none,
            **free,
            **never,
        }
    plan, claim = found.plan, found.plan.claimed
    piper_s, piper_reason = price_planned(task, found)
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
        "memory": _memory(found),
        "stages": len(layouts),
        "devices_used": plan.devices,
        "degree": sum(layout.dp for layout in layouts),
        "time_per_sample_s": claim.time_per_sample_s,
        "sync_s": claim.sync_s,
        "all_reduce_factor": claim.network.all_reduce_factor,
        "samples_per_s": 1.0 / claim.time_per_sample_s,
        "piper_time_per_sample_s": piper_s,
        "piper_reason": piper_reason,
    }


def _stage_row(stage: Stage, memory: StageMemory, hbm_bytes: float) -> Row:
    work: Row = {one.name: getattr(stage, one.name) for one in fields(StageWork)}
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


def _memory(found: Planned) -> str:
    """Handling of activations: stashed, recomputed wherever possible, or mixed.

    The last stage has one microbatch in flight, so recomputation never helps it.
    """
    stages = found.plan.stages
    recomputed = sum(one.recomputed for one in found.memory)
    if not recomputed:
        return STASH
    return RECOMPUTE if recomputed >= sum(stage.layers for stage in stages[:-1]) else "mixed"
