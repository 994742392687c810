"""Tables of plans and of their stages: what every planner makes of a model on the architectures asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from phaze.cost.memory import microbatches_in_flight
from phaze.layout import Layout, Recompute
from phaze.plan.phaze.costs import StageCost, stage_costs
from phaze.plan.phaze.flush import Infeasible
from phaze.plan.phaze.point import Conditions
from phaze.plan.piper.batches import Planner
from phaze.plan.piper.chain import CONFIGURATIONS, RECOMPUTE, STASH
from phaze.plan.piper.layers import Options, PlannedStage
from phaze.plan.piper.price import Given, price, why_outside
from phaze.plan.plan import StageWork
from phaze.plan.planners import Asked, Flushed, Outcome, Task, Unflushed, plan_as, read_tasks
from phaze.plan.works import configured_work, uniform_work
from phaze.tables import Plans, PlanStages

Row = dict[str, object]


@dataclass(frozen=True)
class StageRow:
    """A stage of a plan, as in the table of their stages."""

    first_layer: int
    last_layer: int
    data: int
    tensor: int
    recomputed: int
    in_flight: int
    time_per_sample_s: float
    work: StageWork
    memory_bytes: float
    headroom_bytes: float

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return self.last_layer - self.first_layer + 1

    def as_row(self) -> Row:
        """Return the columns by name."""
        own: Row = {name: value for name, value in asdict(self).items() if name != "work"}
        return own | asdict(self.work)


def plan_row(found: Outcome, stages: list[StageRow], task: Task) -> Row:
    """Return the row of the table of plans, without its key."""
    if isinstance(found, Infeasible):
        return _infeasible(found.reason)
    return {
        "status": "placed",
        "reason": "",
        **(_unflushed(found) if isinstance(found, Unflushed) else _flushed(found, task)),
        "tensor": _each_once(stage.tensor for stage in stages),
        "data": _each_once(stage.data for stage in stages),
        "memory": _memory(stages),
        "stages": len(stages),
        "devices_used": sum(stage.data * stage.tensor for stage in stages),
        "degree": sum(stage.data for stage in stages),
        "all_reduce_factor": task.conditions.scenario.all_reduce_factor,
    }


def _infeasible(reason: str) -> Row:
    none = dict.fromkeys(("microbatch", "microbatches", "stages", "devices_used", "degree"), 0)
    never = dict.fromkeys(("time_per_sample_s", "piper_time_per_sample_s"), np.inf)
    free = dict.fromkeys(("samples_per_s", "sync_s", "all_reduce_factor"), 0.0)
    return {
        "status": "infeasible",
        "reason": reason,
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


def _unflushed(found: Unflushed) -> Row:
    time_s = found.best.time_per_sample_s
    row = _reached(found.best.split.microbatch, time_s, time_s, "")
    own = {"flushes": False, "schedule": "2bw", "microbatches": found.cluster.microbatches, "sync_s": 0.0}
    return row | own


def _flushed(found: Flushed, task: Task) -> Row:
    """Return what the placement reaches under its own model, and as a plan of Piper's."""
    microbatch = found.prospect.point.layout.microbatch
    time_s = found.placement.time_s / task.conditions.scenario.global_batch
    cluster, stages = task.cluster(microbatch), given_stages(found)
    setting = found.setting
    own: Row = {
        "flushes": True,
        "schedule": setting.schedule,
        "microbatches": setting.microbatches,
        "sync_s": found.placement.sync_s,
    }
    priced = price(task.models[microbatch], cluster, stages)
    if isinstance(priced, str):
        return own | _reached(microbatch, time_s, np.inf, priced)
    reason = why_outside(cluster, stages)
    return own | _reached(microbatch, time_s, priced.time_per_sample_s / microbatch, reason)


def _reached(microbatch: int, time_s: float, piper_s: float, reason: str) -> Row:
    return {
        "microbatch": microbatch,
        "time_per_sample_s": time_s,
        "samples_per_s": 1.0 / time_s,
        "piper_time_per_sample_s": piper_s,
        "piper_reason": reason,
    }


def given_stages(found: Flushed) -> list[Given]:
    """Return the stages of a flushing placement as Piper's: all but the last recompute if any does."""
    placement = found.placement
    intervals = placement.intervals(len(found.prospect.chain))
    return [
        Given(
            tuple(range(i, j)), Layout(tp=placement.devices[s], dp=placement.data, recompute=_kept(found, s))
        )
        for s, (i, j) in enumerate(intervals)
    ]


def _kept(found: Flushed, stage: int) -> Recompute:
    return "full" if found.setting.recompute and stage < found.placement.stages - 1 else "none"


def stages_of(found: Outcome, task: Task) -> list[StageRow]:
    """Return the stages of a plan from the first, none if there is no plan."""
    if isinstance(found, Infeasible):
        return []
    if isinstance(found, Unflushed):
        return [_planned_stage(found, stage, task) for stage in found.best.plan.stages]
    costs = stage_costs(found.prospect.chain, found.placement, found.setting)
    return [_flushed_stage(found, cost, s) for s, cost in enumerate(costs)]


def _planned_stage(found: Unflushed, stage: PlannedStage, task: Task) -> StageRow:
    options: Options = found.layers.options[stage.layout.tp]
    layers = task.prospect(Layout(tp=stage.layout.tp, microbatch=found.best.split.microbatch))
    return StageRow(
        first_layer=stage.layers[0],
        last_layer=stage.layers[-1],
        data=stage.layout.dp,
        tensor=stage.layout.tp,
        recomputed=sum(options.names[c] == RECOMPUTE for c in stage.configurations),
        in_flight=stage.in_flight,
        time_per_sample_s=stage.time_s / found.best.split.microbatch,
        work=configured_work(layers.chain, layers.traffic, options, stage.layers, stage.configurations),
        memory_bytes=stage.memory_bytes,
        headroom_bytes=found.cluster.memory_bytes - stage.memory_bytes,
    )


def _flushed_stage(found: Flushed, cost: StageCost, stage: int) -> StageRow:
    placement, setting = found.placement, found.setting
    per_pipeline = -(-setting.microbatches // placement.data)
    kept = microbatches_in_flight(setting.schedule, placement.stages - stage, per_pipeline)
    return StageRow(
        first_layer=cost.first_layer,
        last_layer=cost.last_layer,
        data=placement.data,
        tensor=cost.devices,
        recomputed=cost.last_layer - cost.first_layer + 1 if _kept(found, stage) == "full" else 0,
        in_flight=kept + 1,
        time_per_sample_s=cost.load_s / (placement.data * found.prospect.point.layout.microbatch),
        work=uniform_work(
            found.prospect.chain, found.prospect.traffic, cost, CONFIGURATIONS[_kept(found, stage)]
        ),
        memory_bytes=cost.memory_bytes,
        headroom_bytes=setting.memory_bytes - cost.memory_bytes,
    )


def _each_once(widths: Iterable[int]) -> str:
    return ",".join(str(width) for width in dict.fromkeys(widths))


def _memory(stages: list[StageRow]) -> str:
    """Return what happens to activations: stashed, recomputed where there is a choice, or some of each.

    The last stage has one microbatch in flight, so that recomputing never helps it.
    """
    layers, recomputed = sum(stage.layers for stage in stages), sum(stage.recomputed for stage in stages)
    if not recomputed:
        return STASH
    return RECOMPUTE if recomputed >= layers - stages[-1].layers else "mixed"


def plan_model(
    layers: pd.DataFrame,
    graph: pd.DataFrame,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    asked: Sequence[Asked],
    conditions: Conditions,
    expert: Layout | None,
    piper: Planner,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of plans and of their stages; layers and solves are of all points of one model."""
    model = str(graph["model"].iloc[0])
    assumed = {
        "network_bandwidth_bytes_per_s": conditions.scenario.network_bandwidth_bytes_per_s,
        "hbm_bandwidth_bytes_per_s": conditions.scenario.hbm_bandwidth_bytes_per_s,
    }
    plans: list[Row] = []
    stages: list[Row] = []
    for one, task in read_tasks(layers, graph, solves, architectures, asked, conditions, expert):
        for planner in one.planners:
            found = plan_as(planner, task, piper)
            key = {
                "model": model,
                "architecture": one.architecture,
                "hbm_gib": one.hbm_gib,
                "planner": planner,
            }
            cut = stages_of(found, task)
            plans.append({**key, **assumed, **plan_row(found, cut, task)})
            stages.extend({**key, "stage": s, **stage.as_row()} for s, stage in enumerate(cut))
    return (
        pd.DataFrame(plans, columns=list(Plans.fields())),
        pd.DataFrame(stages, columns=list(PlanStages.fields())),
    )
