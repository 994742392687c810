"""Inputs and outputs of the papers' planners, which all use the same scheduled layers.

A planner (`plan.Planner`) is a function in a file or folder of its own, listed in `side_by_side.PLANNERS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats, Ints
from phaze.cost.network.network import Flat
from phaze.formulas.flushing import Chain
from phaze.formulas.phaze.point import Conditions, Point, read_devices, read_point
from phaze.layout import Layout
from phaze.plan.plan import Claim, Plan, Stage, Traffic
from phaze.tables.columns import by_numbers


@dataclass(frozen=True)
class PlansAsked:
    """Architecture, HBM size and planners of a set of requested plans."""

    architecture: str
    hbm_gib: float
    planners: tuple[str, ...]


@dataclass(frozen=True)
class Prospect:
    """Model on an architecture under one layout: its chain of layers and their traffic."""

    point: Point
    chain: Chain
    traffic: Traffic

    def crossing(self, layers: Ints) -> tuple[Floats, Floats]:
        """Bytes of each edge that enters a stage of the given layers, and of each edge that leaves it."""
        enters, leaves = self.chain.crossing(np.isin(np.arange(len(self.chain)), layers))
        return self.chain.edge_bytes[enters], self.chain.edge_bytes[leaves]

    def stage(
        self,
        layers: Ints,
        recomputed: Bools,
        layout: Layout,
        time_per_sample_s: float,
        *,
        fixed_bytes: float,
        stash_bytes: float,
        work_bytes: float,
    ) -> Stage:
        """Build a stage from the given layers; mask `recomputed` marks the recomputed layers."""
        chain, traffic, repeated = self.chain, self.traffic, layers[recomputed]
        arriving, departing = self.crossing(layers)
        return Stage(
            forward_s=float(chain.forward_s[layers].sum()),
            recompute_s=float(chain.forward_s[repeated].sum()),
            backward_s=float(chain.backward_s[layers].sum()),
            arriving_bytes=float(arriving.sum()),
            departing_bytes=float(departing.sum()),
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


@dataclass(frozen=True, eq=False)
class PlanningTask:
    """Input of every planner: a model on one architecture, with an HBM capacity and conditions."""

    prospects: tuple[Prospect, ...]
    hbm_gib: float
    conditions: Conditions
    expert: Layout | None
    """Widths of the hand-designed placement, if there is one."""

    def prospect(self, layout: Layout) -> Prospect:
        """Chain and traffic of the model under the given layout."""
        return next(candidate for candidate in self.prospects if candidate.point.layout == layout)

    def claim(self, time_per_sample_s: float, sync_s: float) -> Claim:
        """Build a planner's claim, with the network and HBM bandwidth of the task's scenario."""
        scenario = self.conditions.scenario
        network = Flat(scenario.network_bandwidth_bytes_per_s, scenario.all_reduce_factor)
        return Claim(time_per_sample_s, sync_s, network, scenario.hbm_bandwidth_bytes_per_s)


@dataclass(frozen=True)
class StageMemory:
    """Memory use of the devices of a planned stage."""

    recomputed: int
    """Number of recomputed layers."""
    in_flight: int
    memory_bytes: float


@dataclass(frozen=True)
class Planned:
    """Best plan found by a planner, with the memory of its stages and a lower bound."""

    plan: Plan
    memory: tuple[StageMemory, ...]
    """Memory of every stage."""
    bound_s: float
    """Lower bound on the time per sample over all of the planner's plans, in its own model."""

    @property
    def gap(self) -> float:
        """Relative gap between the plan's time and the proven lower bound."""
        return 1.0 - self.bound_s / self.plan.claimed.time_per_sample_s


def read_tasks(
    layers: pd.DataFrame,
    graph: pd.DataFrame,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    requests: Sequence[PlansAsked],
    conditions: Conditions,
    expert: Layout | None,
) -> Iterator[tuple[PlansAsked, PlanningTask]]:
    """Yield each set of requested plans with its planning task, read from tables that contain all points."""
    names = list(dict.fromkeys(request.architecture for request in requests))
    prospects: dict[str, list[Prospect]] = {name: [] for name in names}
    chosen = pd.DataFrame({"architecture": names, "kept": True})
    ordered = layers.sort_values("layout", key=by_numbers, kind="stable")
    for layout, rows in ordered.groupby("layout", sort=False):
        layout_solves = solves[solves["layout"] == layout]
        point = read_point(rows, graph, conditions)
        for device in read_devices(point, layout_solves, architectures, chosen, conditions):
            traffic = device.traffic.of_layers(point.runs.layers)
            prospects[device.name].append(Prospect(point, point.runs.chain(*device.latencies), traffic))
    bandwidths = architectures.set_index("architecture")["hbm_bandwidth_bytes_per_s"]
    for request in requests:
        chip_conditions = conditions.of_chip(request.hbm_gib, float(bandwidths[request.architecture]))
        yield (
            request,
            PlanningTask(tuple(prospects[request.architecture]), request.hbm_gib, chip_conditions, expert),
        )
