"""Tables of plans and of their stages: what every planner makes of a model on the architectures asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats, Ints
from phaze.cost.memory import microbatches_in_flight
from phaze.layout import Layout, Recompute
from phaze.pipeline.flushing import Chain
from phaze.plan.phaze.flush import Infeasible
from phaze.plan.phaze.point import Conditions
from phaze.plan.phaze.rows import StageCost, stage_costs
from phaze.plan.piper.batches import Planner
from phaze.plan.piper.chain import RECOMPUTE, STASH
from phaze.plan.piper.layers import Options, PlannedStage
from phaze.plan.piper.price import Given, price, why_outside
from phaze.plan.plan import Stage, StageWork
from phaze.plan.planners import Asked, Flushed, Outcome, Prospect, Task, Unflushed, plan_as, read_tasks
from phaze.tables import Plans, PlanStages

Row = dict[str, object]


@dataclass(frozen=True)
class Planned:
    """A stage of a plan, and what its devices keep; as in the table of stages."""

    stage: Stage
    recomputed: int
    """Layers that recompute."""
    in_flight: int
    memory_bytes: float
    hbm_bytes: float

    def as_row(self) -> Row:
        """Return the columns by name."""
        work: Row = {one.name: getattr(self.stage, one.name) for one in fields(StageWork)}
        return work | {
            "first_layer": self.stage.first_layer,
            "last_layer": self.stage.last_layer,
            "data": self.stage.layout.dp,
            "tensor": self.stage.layout.tp,
            "recomputed": self.recomputed,
            "in_flight": self.in_flight,
            "time_per_sample_s": self.stage.time_per_sample_s,
            "memory_bytes": self.memory_bytes,
            "headroom_bytes": self.hbm_bytes - self.memory_bytes,
        }


def plan_row(found: Outcome, stages: list[Planned], task: Task) -> Row:
    """Return the row of the table of plans, without its key."""
    if isinstance(found, Infeasible):
        return _infeasible(found.reason)
    layouts = [one.stage.layout for one in stages]
    return {
        "status": "placed",
        "reason": "",
        **(_unflushed(found) if isinstance(found, Unflushed) else _flushed(found, task)),
        "tensor": _each_once(layout.tp for layout in layouts),
        "data": _each_once(layout.dp for layout in layouts),
        "memory": _memory(stages),
        "stages": len(stages),
        "devices_used": sum(layout.devices for layout in layouts),
        "degree": sum(layout.dp for layout in layouts),
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
    intervals = found.placement.intervals(len(found.prospect.chain))
    return [Given(tuple(range(i, j)), _layout(found, s)) for s, (i, j) in enumerate(intervals)]


def _layout(found: Flushed, stage: int) -> Layout:
    again = found.setting.recompute and stage < found.placement.stages - 1
    recompute: Recompute = "full" if again else "none"
    return Layout(tp=found.placement.devices[stage], dp=found.placement.layout.dp, recompute=recompute)


def stages_of(found: Outcome, task: Task) -> list[Planned]:
    """Return the stages of a plan from the first, none if there is no plan."""
    if isinstance(found, Infeasible):
        return []
    if isinstance(found, Unflushed):
        return [_unflushed_stage(found, stage, task) for stage in found.best.plan.stages]
    costs = stage_costs(found.prospect.chain, found.placement, found.setting)
    return [_flushed_stage(found, cost, s) for s, cost in enumerate(costs)]


def _unflushed_stage(found: Unflushed, given: PlannedStage, task: Task) -> Planned:
    """Return a stage of Piper's plan, whose layers each have their configuration."""
    microbatch, chosen = found.best.split.microbatch, list(given.configurations)
    options: Options = found.layers.options[given.layout.tp]
    again = np.array([options.names[c] == RECOMPUTE for c in chosen])
    stage = _stage(
        task.prospect(Layout(tp=given.layout.tp, microbatch=microbatch)),
        np.array(given.layers, np.int64),
        again,
        given.layout,
        given.time_s / microbatch,
        fixed_bytes=float(options.fixed_bytes[chosen].sum()),
        stash_bytes=float(options.stash_bytes[chosen].sum()),
        work_bytes=0.0,
    )
    memory = given.memory_bytes
    return Planned(stage, int(again.sum()), given.in_flight, memory, found.cluster.memory_bytes)


def _flushed_stage(found: Flushed, cost: StageCost, number: int) -> Planned:
    """Return a stage of a flushing placement, all of whose layers stash or recompute.

    A stage that recomputes keeps its inputs of every microbatch in flight, and all activations of the one at
    work (`cost.memory`).
    """
    placement, setting, chain = found.placement, found.setting, found.prospect.chain
    layers, layout = np.arange(cost.first_layer, cost.last_layer + 1), _layout(found, number)
    recomputes = layout.recompute == "full"
    stash = float(_crossing(chain, layers)[0].sum()) if recomputes else cost.activation_bytes
    stage = _stage(
        found.prospect,
        layers,
        np.full(len(layers), cost.recomputed_s > 0),
        layout,
        cost.load_s / (layout.dp * found.prospect.point.layout.microbatch),
        fixed_bytes=cost.static_bytes,
        stash_bytes=stash,
        work_bytes=max(cost.activation_bytes - stash, 0.0),
    )
    kept = microbatches_in_flight(
        setting.schedule, placement.stages - number, setting.in_pipeline(placement.layout)
    )
    recomputed = len(layers) if recomputes else 0
    return Planned(stage, recomputed, kept + 1, cost.memory_bytes, setting.memory_bytes)


def _stage(
    prospect: Prospect,
    layers: Ints,
    again: Bools,
    layout: Layout,
    time_per_sample_s: float,
    *,
    fixed_bytes: float,
    stash_bytes: float,
    work_bytes: float,
) -> Stage:
    """Return a stage of these layers, of which some run forward again."""
    chain, traffic, repeated = prospect.chain, prospect.traffic, layers[again]
    arriving, departing = _crossing(chain, layers)
    return Stage(
        forward_s=float(chain.forward_s[layers].sum()),
        recompute_s=float(chain.forward_s[repeated].sum()),
        backward_s=float(chain.backward_s[layers].sum()),
        arriving_bytes=float(arriving.sum()),
        longest_arriving_bytes=float(arriving.max(initial=0.0)),
        departing_bytes=float(departing.sum()),
        longest_departing_bytes=float(departing.max(initial=0.0)),
        weight_bytes=float(chain.parameter_bytes[layers].sum()),
        fixed_bytes=fixed_bytes,
        stash_bytes=stash_bytes,
        work_bytes=work_bytes,
        forward_hbm_bytes=float(traffic.forward_hbm_bytes[layers].sum()),
        recompute_hbm_bytes=float(traffic.forward_hbm_bytes[repeated].sum()),
        backward_hbm_bytes=float(traffic.backward_hbm_bytes[layers].sum()),
        forward_reduced_bytes=float(traffic.forward_reduced_bytes[layers].sum()),
        recompute_reduced_bytes=float(traffic.forward_reduced_bytes[repeated].sum()),
        backward_reduced_bytes=float(traffic.backward_reduced_bytes[layers].sum()),
        first_layer=int(layers[0]),
        last_layer=int(layers[-1]),
        layout=layout,
        time_per_sample_s=time_per_sample_s,
    )


def _crossing(chain: Chain, layers: Ints) -> tuple[Floats, Floats]:
    """Return the bytes of every edge that enters the stage, and of every edge that leaves it."""
    enters, leaves = chain.crossing(np.isin(np.arange(len(chain)), layers))
    return chain.edge_bytes[enters], chain.edge_bytes[leaves]


def _each_once(widths: Iterable[int]) -> str:
    return ",".join(str(width) for width in dict.fromkeys(widths))


def _memory(stages: list[Planned]) -> str:
    """Return what happens to activations: stashed, recomputed where there is a choice, or some of each.

    The last stage has one microbatch in flight, so that recomputing never helps it.
    """
    layers, recomputed = sum(one.stage.layers for one in stages), sum(one.recomputed for one in stages)
    if not recomputed:
        return STASH
    return RECOMPUTE if recomputed >= layers - stages[-1].stage.layers else "mixed"


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
            stages.extend({**key, "stage": s, **one.as_row()} for s, one in enumerate(cut))
    return (
        pd.DataFrame(plans, columns=list(Plans.fields())),
        pd.DataFrame(stages, columns=list(PlanStages.fields())),
    )
