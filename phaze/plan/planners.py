"""Several planners on the same architectures: Phaze's, Piper's, equal stages, and the experts' widths.

All of them plan from the same scheduled layers, so that only the planners differ. Phaze, equal and expert
place under the model of flushing pipelines (`flush`), Piper under its own. What the first three find is also
priced under Piper's model: then it is a plan of Piper's space, and no better than Piper's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from phaze.base.ranking import tied
from phaze.base.units import GIB
from phaze.layout import Layout
from phaze.pipeline.flushing import Chain, Setting
from phaze.plan.even import place_equally, place_expert
from phaze.plan.phaze.flush import Infeasible, Placement, place_chain
from phaze.plan.phaze.point import Conditions, Point, read_devices, read_point
from phaze.plan.piper.batches import Batched, Planner, plan_batch
from phaze.plan.piper.chain import read_layers
from phaze.plan.piper.layers import Cluster, Layers
from phaze.plan.piper.planner import why_no_plan
from phaze.plan.plan import Traffic
from phaze.tables.columns import by_numbers


@dataclass(frozen=True)
class Asked:
    """What to plan on, and by whom."""

    architecture: str
    hbm_gib: float
    planners: tuple[str, ...]


@dataclass(frozen=True)
class Prospect:
    """A model on an architecture in one layout."""

    point: Point
    chain: Chain
    traffic: Traffic


@dataclass(frozen=True)
class Task:
    """A model on one architecture with one HBM capacity: what every planner is given."""

    prospects: tuple[Prospect, ...]
    hbm_gib: float
    conditions: Conditions
    expert: Layout | None

    def settings(self, layout: Layout) -> list[Setting]:
        """Return what flushing placements have to respect, with and without recomputation."""
        memory = self.hbm_gib * GIB
        return [s for s in self.conditions.settings(layout) if s.memory_bytes == memory]

    @cached_property
    def models(self) -> dict[int, Layers]:
        """Return the model as Piper's layers, by microbatch."""
        microbatches = dict.fromkeys(one.point.layout.microbatch for one in self.prospects)
        return {microbatch: self._layers(microbatch) for microbatch in microbatches}

    def _layers(self, microbatch: int) -> Layers:
        mine = [one for one in self.prospects if one.point.layout.microbatch == microbatch]
        chains = {one.point.layout.tp: one.chain for one in mine}
        return read_layers(chains, mine[0].point.layers, self.conditions.training.recompute)

    def prospect(self, layout: Layout) -> Prospect:
        """Return the layers in a layout."""
        return next(one for one in self.prospects if one.point.layout == layout)

    def cluster(self, microbatch: int) -> Cluster:
        """Return the devices and the batch as Piper's planner takes them, without further accumulation."""
        return Cluster(
            devices=self.conditions.scenario.devices,
            memory_bytes=self.hbm_gib * GIB,
            bandwidth_bytes_per_s=self.conditions.scenario.network_bandwidth_bytes_per_s,
            microbatches=self.conditions.scenario.global_batch // microbatch,
        )


@dataclass(frozen=True)
class Flushed:
    """The best placement of a planner for flushing pipelines."""

    prospect: Prospect
    setting: Setting
    placement: Placement


@dataclass(frozen=True)
class Unflushed:
    """Piper's best plan, with its layers."""

    layers: Layers
    cluster: Cluster
    best: Batched


Outcome = Flushed | Unflushed | Infeasible


def read_tasks(
    layers: pd.DataFrame,
    graph: pd.DataFrame,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    asked: Sequence[Asked],
    conditions: Conditions,
    expert: Layout | None,
) -> Iterator[tuple[Asked, Task]]:
    """Yield what to plan; tables layers and solves hold all points of a model."""
    names = list(dict.fromkeys(one.architecture for one in asked))
    prospects: dict[str, list[Prospect]] = {name: [] for name in names}
    wanted = pd.DataFrame({"architecture": names, "kept": True})
    ordered = layers.sort_values("layout", key=by_numbers, kind="stable")
    for layout, rows in ordered.groupby("layout", sort=False):
        mine = solves[solves["layout"] == layout]
        point = read_point(rows, graph, conditions)
        for device in read_devices(point, mine, architectures, wanted, conditions):
            traffic = device.traffic.of_layers(point.runs.layers)
            prospects[device.name].append(Prospect(point, point.runs.chain(*device.latencies), traffic))
    for one in asked:
        yield one, Task(tuple(prospects[one.architecture]), one.hbm_gib, conditions, expert)


def plan_as(planner: str, task: Task, piper: Planner) -> Outcome:
    """Return the best plan of a planner."""
    if planner == "piper":
        return _plan_piper(task, piper)
    return _best(task, _FLUSHING[planner])


def _plan_piper(task: Task, piper: Planner) -> Unflushed | Infeasible:
    """Return the best plan over microbatches; to accumulate more gradients is never better (`batches`)."""
    batch, least = task.conditions.scenario.global_batch, min(task.models)
    best = plan_batch(task.models, task.cluster(least), batch, (1,), piper)
    if best is None:
        return Infeasible(why_no_plan(task.models[least], task.cluster(least)))
    microbatch = best.split.microbatch
    return Unflushed(task.models[microbatch], task.cluster(microbatch), best)


Place = Callable[[Task, Prospect, Setting], Placement | Infeasible]


def _best(task: Task, place: Place) -> Flushed | Infeasible:
    """Return the best placement over TMP widths, microbatches and recomputation, or why there is none."""
    found = [
        (one, setting, place(task, one, setting))
        for one in task.prospects
        for setting in task.settings(one.point.layout)
    ]
    placed = [Flushed(one, setting, p) for one, setting, p in found if isinstance(p, Placement)]
    if not placed:
        return next((p for *_, p in found if isinstance(p, Infeasible)), Infeasible("widths: none given"))
    times = tied(np.array([one.placement.time_s for one in placed]))
    return min(zip(times, placed, strict=True), key=lambda pair: (pair[0], *_order(pair[1])))[1]


def _order(found: Flushed) -> tuple[bool, Layout]:
    """Return what decides between equal times, as everywhere: stashing, t, microbatch."""
    return found.setting.recompute, found.prospect.point.layout


def _place_phaze(_: Task, one: Prospect, setting: Setting) -> Placement | Infeasible:
    return place_chain(one.chain, one.point.layout, setting)


def _place_equal(_: Task, one: Prospect, setting: Setting) -> Placement | Infeasible:
    return place_equally(one.chain, one.point.layout, setting, *one.point.repeated())


def _place_expert(task: Task, one: Prospect, setting: Setting) -> Placement | Infeasible:
    if task.expert is None:
        return Infeasible("widths: the workload has no expert's placement")
    if task.expert.tp != one.point.layout.tp:
        return Infeasible(f"widths: t = {task.expert.tp} is not among the TMP widths of the workload")
    return place_expert(one.chain, task.expert, setting)


_FLUSHING: dict[str, Place] = {"phaze": _place_phaze, "equal": _place_equal, "expert": _place_expert}
