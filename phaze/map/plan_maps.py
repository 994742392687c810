"""Plans on the devices of a network: by the default orders, by topology-aware mapping, and simulated on it.

By hand replicas of a stage are on consecutive devices (cs-map: all-reduce first, as Megatron-LM numbers
devices), or stages of a lane (p2p-map). With the network in mind, consecutive devices that are close to each
other, those of a node or of a row, hold 2 or 4 stages of some lanes (blocks-of-2, blocks-of-4), or the
local search of `phaze.map` makes the step short that a mapping takes without contention. The event simulator,
in which a link carries one message at a time, judges all of them; the shortest is chosen, of equal ones the
first, so that no plan is slower than with the default orders.

One plan on the devices of any topology (`map_one`) is mapped by the searches for stages instead: workers and
lanes are their stages and replicas, units of devices their devices. What its ways find is judged alike.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from phaze.base.arrays import Ints
from phaze.base.deadline import Deadline
from phaze.base.errors import PhazeError
from phaze.base.progress import counted
from phaze.cost.network.collectives import by_node
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.fabric import Fabric, fabric, from_matrix
from phaze.map.annealing import step_task
from phaze.map.ensemble import (
    Chains,
    FoundMapping,
    Mapped,
    MapSettings,
    Way,
    best_of_chains,
    map_stages,
)
from phaze.map.heuristics import block_map, consecutive_map, near_maps, p2p_map
from phaze.map.lanes import Lanes, lanes_of, stored_stages
from phaze.map.networks import device_network, part_of, units_of
from phaze.map.objective import MappingProblem
from phaze.map.schemes import near_devices
from phaze.pipeline.gpipe import simulate_step, step_times_s
from phaze.pipeline.traffic import carry_out
from phaze.plan.networked import Devices, script_on, silent_batch_s, time_per_batch_s
from phaze.plan.plan import Plan
from phaze.plan.replay import read_plan
from phaze.spec.mapping import StoredPlanMap
from phaze.spec.network import Matrix
from phaze.spec.settings import PlanMapSettings
from phaze.spec.system import Cluster
from phaze.tables import BY_HAND
from phaze.workload.operator_graphs import StageGraph, stage_graph

Row = dict[str, str | int | float | bool]

CHAINS = 2
"""Of the local search."""
BLOCKS = (2, 4)
"""Stages of a lane that are on consecutive devices."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A mapping, and how long a batch takes with it."""

    way: str
    mapping: Ints
    """Units of workers and lanes, shape (S, R)."""
    estimated_s: float
    """A batch as the search counts it: GPipe without contention, then all-reduces by their slowest link."""
    simulated_s: float
    """A batch by the event simulator, with contention."""


@dataclass(frozen=True, eq=False)
class PlanMap:
    """A plan on a network under several mappings."""

    plan: Plan
    lanes: Lanes
    network: str
    """What the network is."""
    devices: int
    """Devices of the network."""
    alone_s: float
    """A batch on a network that takes no time."""
    tried: tuple[Tried, ...]

    @cached_property
    def best(self) -> Tried:
        """Mapping with the shortest simulated batch, the first of several."""
        return min(self.tried, key=lambda one: one.simulated_s)

    @property
    def placed(self) -> Devices:
        """Devices of every stage and replica under the best mapping."""
        return devices_of(self.plan, self.lanes, self.best.mapping)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of table plan_maps, without their key but the way."""
        workers, lanes = self.lanes.shape
        for one in self.tried:
            yield {
                "way": one.way,
                "network": self.network,
                "devices": self.devices,
                "lanes": lanes,
                "workers": workers,
                "unit": self.lanes.unit,
                "alone_s": self.alone_s,
                "estimated_s": one.estimated_s,
                "simulated_s": one.simulated_s,
                "chosen": one is self.best,
            }


def map_rows(
    row: Row, stages: pd.DataFrame, system: Cluster | Matrix, devices: int, search: PlanMapSettings
) -> tuple[list[Row], list[list[list[int]]]] | None:
    """Rows of table plan_maps from the way on, and the devices of every stage, replica and slice.

    A plan is given by its rows in tables plans and plan_stages. None if the system has too few devices.
    """
    plan = read_plan(pd.Series(row), stages)
    if lanes_of(plan).devices > system.devices:
        return None
    found = map_plan(plan, system, devices, Chains(search.seed, search.steps, CHAINS))
    return list(found.rows()), [[list(slices) for slices in replicas] for replicas in found.placed]


def map_plan(plan: Plan, system: Cluster | Matrix, devices: int, chains: Chains) -> PlanMap:
    """Plan on the part of a system that has so many devices, or as many as its units need."""
    run = _PlanOnPart(plan, system, devices)
    hand = [run.judge(way, mapping) for way, mapping in run.by_hand()]
    searched = run.judge(*run.search(chains))
    topology = run.fabric.topology
    alone_s = silent_batch_s(run.plan, run.fabric)
    return PlanMap(plan, run.lanes, topology.name, topology.devices, alone_s, (*hand, searched))


def devices_of(plan: Plan, lanes: Lanes, mapping: Ints) -> Devices:
    """Devices of every stage and replica of a plan under a mapping to units, shape (S, R)."""
    found: list[list[range]] = [[] for _ in plan.stages]
    for (q, _), units in zip(lanes.workers, mapping.tolist(), strict=True):
        width = plan.stages[q].layout.tp
        found[q] += [range(unit * lanes.unit, unit * lanes.unit + width) for unit in units]
    return found


def within_units(plan: Plan) -> Plan:
    """Plan whose slices send each other nothing beside their passes, which hold what that takes.

    A unit has consecutive devices under every mapping; its messages, one for every layer and microbatch,
    would be most of those that are simulated.
    """
    alone = tuple(
        replace(stage, forward_reduced_bytes=0.0, recompute_reduced_bytes=0.0, backward_reduced_bytes=0.0)
        for stage in plan.stages
    )
    return replace(plan, stages=alone)


class PlanOn:
    """A plan on a network; the event simulator judges equal mappings once."""

    def __init__(self, plan: Plan, lanes: Lanes, fabric: Fabric) -> None:
        self.plan, self.lanes, self.fabric = within_units(plan), lanes, fabric
        self.known: dict[bytes, float] = {}

    def batch_s(self, mapping: Ints) -> float:
        """Batch with contention."""
        key = mapping.tobytes()
        if key not in self.known:
            placed = devices_of(self.plan, self.lanes, mapping)
            carried = carry_out(script_on(self.plan, self.fabric, placed), self.fabric.topology)
            self.known[key] = time_per_batch_s(carried)
        return self.known[key]


class _PlanOnPart(PlanOn):
    """The same on a part of a system, with what searches and estimates need."""

    def __init__(self, plan: Plan, system: Cluster | Matrix, devices: int) -> None:
        lanes = lanes_of(plan)
        found = _network_of(system, max(devices, lanes.devices))
        super().__init__(plan, lanes, found.fabric)
        self.near = found.near // lanes.unit
        self.network = units_of(found.devices, lanes.unit)
        self.stages: StageGraph = stage_graph(stored_stages(plan, "plan"))

    def by_hand(self) -> Iterator[tuple[str, Ints]]:
        """Yield the default orders, each with its name."""
        yield BY_HAND[0], consecutive_map(*self.lanes.shape)
        yield BY_HAND[1], p2p_map(*self.lanes.shape)

    def search(self, chains: Chains) -> tuple[str, Ints]:
        """Mapping with the network in mind that is estimated to be the best, and its way."""
        found = {"local-search": self._local_search(chains)}
        for high in BLOCKS:
            if high < self.lanes.shape[0] and self.near % high == 0 and self.near > high:
                found[f"blocks-of-{high}"] = block_map(*self.lanes.shape, high, self.near // high)
        return min(found.items(), key=lambda one: self.estimate_s(one[1]))

    def _local_search(self, chains: Chains) -> Ints:
        """Mapping by local search from the best of some on devices close to each other."""
        problem = MappingProblem(self.stages, self.network, "exact")
        starts = near_maps(problem)
        ranks = np.argsort(step_times_s(self.stages, np.array(starts), self.network), kind="stable")
        task, near = step_task(self.stages, self.network, math.inf), near_devices(problem, 0)
        return best_of_chains(task, [starts[k] for k in ranks.tolist()], near, chains)[1]

    def estimate_s(self, mapping: Ints) -> float:
        """Batch without contention and with a flush: the passes, then the all-reduces."""
        step = simulate_step(self.stages, mapping, self.network)
        ended = dict.fromkeys(range(len(self.plan.stages)), 0.0)
        for (q, _), over in zip(self.lanes.workers, step.ended_s.max(axis=1).tolist(), strict=True):
            ended[q] = max(ended[q], over)
        placed = devices_of(self.plan, self.lanes, mapping)
        return max(over + self._all_reduce_s(q, placed) for q, over in ended.items())

    def _all_reduce_s(self, q: int, placed: Devices) -> float:
        """All-reduce of a stage as the simulator carries it out: inside nodes first, if it can."""
        units = np.array([slices[0] for slices in placed[q]]) // self.lanes.unit
        size = self.plan.stages[q].weight_bytes
        rows = by_node(units.tolist(), max(self.fabric.node // self.lanes.unit, 1))
        if len(rows) == 1 or len(rows[0]) == 1 or len({len(row) for row in rows}) > 1:
            return self.network.seconds("all_reduce", size, units)
        across = list(zip(*rows, strict=True))
        within_s = max(self.network.seconds("all_reduce", size, row) for row in rows)
        share = size / len(across)
        return within_s + max(self.network.seconds("all_reduce", share, column) for column in across)

    def judge(self, way: str, mapping: Ints) -> Tried:
        """Mapping with its times."""
        return Tried(way, mapping, self.estimate_s(mapping), self.batch_s(mapping))


class _Network(NamedTuple):
    """The part of a system that a plan needs, which other plans need as well."""

    fabric: Fabric
    devices: DeviceNetwork
    near: int
    """Devices with consecutive numbers that are near: those of a node, or of a row of a torus."""


@lru_cache(maxsize=4)
def _network_of(system: Cluster | Matrix, needed: int) -> _Network:
    part = system if isinstance(system, Matrix) else part_of(system, needed)
    return _Network(fabric(part, max(needed, part.devices)), device_network(part), _consecutive(part))


def _consecutive(part: Cluster | Matrix) -> int:
    """Devices with consecutive numbers that are near: those of a node, or of a row of a torus."""
    if isinstance(part, Matrix):
        return 1
    if part.torus is not None:
        return part.torus.shape[-1]
    return part.levels[0].devices if len(part.levels) > 1 else 1


@dataclass(frozen=True, eq=False)
class PlanOnDevices:
    """A plan, what the searches found for its workers, and how long a batch takes with each mapping."""

    plan: Plan
    lanes: Lanes
    mapped: Mapped
    """Of workers and lanes to units."""
    alone_s: float
    """A batch on a network that takes no time."""
    simulated_s: dict[Way, float]
    """A batch by the event simulator, by way; at a time limit of the shortest step only."""

    @cached_property
    def best(self) -> FoundMapping:
        """Way that may be chosen with the shortest batch, the first of several."""
        known = [one for one in self.mapped.ways if one.way in self.simulated_s]
        return min(known, key=lambda one: self.simulated_s[one.way])

    @property
    def devices(self) -> list[list[list[int]]]:
        """Devices of every stage, replica and slice under the best mapping."""
        placed = devices_of(self.plan, self.lanes, self.best.mapping)
        return [[list(slices) for slices in replicas] for replicas in placed]


def map_one(
    plan: Plan, model: str, network: DeviceNetwork, settings: MapSettings, deadline: Deadline | None = None
) -> PlanOnDevices:
    """Plan on the devices of a network, or raise PhazeError where there are too few.

    At the deadline, that of the settings unless given, mappings are no longer simulated: that one is in any
    case which has the shortest step without contention.
    """
    until = deadline or Deadline(settings.limits.time_s)
    lanes = lanes_of(plan)
    if lanes.devices > network.devices:
        workers, count = lanes.shape
        raise PhazeError(
            f"network: has {network.devices} devices, the plan needs {lanes.devices}: {workers} workers x "
            f"{count} lanes, units of {lanes.unit}"
        )
    stages = stage_graph(stored_stages(plan, model))
    mapped = map_stages(stages, units_of(network, lanes.unit), settings, until)
    judge = PlanOn(plan, lanes, Fabric(from_matrix(network.bandwidth_bytes_per_s, network.latency_s)))
    simulated = {mapped.best.way: judge.batch_s(mapped.best.mapping)}
    for one in counted((*mapped.ways, *mapped.heuristics), "simulation"):
        if not until.passed:
            simulated[one.way] = judge.batch_s(one.mapping)
    return PlanOnDevices(plan, lanes, mapped, silent_batch_s(judge.plan, judge.fabric), simulated)


def stored_plan(found: PlanOnDevices, row: pd.Series) -> StoredPlanMap:
    """Part of the file of a mapping that is about a plan, given with its row of table plans."""
    ways = dict.fromkeys(one.way for one in (*found.mapped.ways, *found.mapped.heuristics))
    content = {
        "architecture": row["architecture"],
        "hbm_gib": float(row["hbm_gib"]),
        "planner": row["planner"],
        "unit": found.lanes.unit,
        "workers": found.lanes.workers,
        "devices": found.devices,
        "planned_s": found.plan.planned_s,
        "alone_s": found.alone_s,
        "simulated_s": found.simulated_s[found.best.way],
        "times": [
            {"name": way, "simulated_s": found.simulated_s[way]} for way in ways if way in found.simulated_s
        ],
    }
    return StoredPlanMap.model_validate(content)
