"""Training plans mapped to the devices of a network: default orders, topology-aware mapping, simulation.

The default orders put the replicas of a stage on consecutive devices (cs-map: all-reduce first, as
Megatron-LM numbers devices), or the stages of a lane (p2p-map). Topology-aware candidates put 2 or 4 stages
of some lanes on devices of one node or torus row (blocks-of-2, blocks-of-4), or use the local search of
`phaze.map`, which minimises the step time without contention. The event simulator, in which a link carries
one message at a time, evaluates the candidates. The fastest is chosen, the first one on ties, so no plan is
slower than with the default orders.

The pipelines of a plan, its lanes, run concurrently. Their number is the greatest common divisor of all
data-parallel widths d. A stage has m = d / lanes workers in each lane, which take its microbatches in turn.
Each worker is a stage of the mapping, and each lane a replica. With equal widths m = 1, and the stages are
those of the plan.

Compute time and messages of a worker are means over the microbatches of its lane, 1/m of the stage's. Two
workers of adjacent stages share every lcm(m, m')-th microbatch or none. All d replicas of a stage reduce
their gradients around one ring, 2 (d - 1)/d of the weights over each link. A ring of the mapping spans only
the lanes of one worker, so its gradients are scaled to send the same bytes over each link.

The t devices of a tensor-parallel group form a unit with consecutive device numbers. Their traffic is part of
the passes, as planners charge it. A unit has as many devices as the widest group; in a stage with a narrower
group the last devices of each unit are idle.

`map_one` maps one plan to any topology with the searches for stages instead. Workers and lanes are its stages
and replicas, and units of devices its devices. The simulator evaluates the results in the same way.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd, inf, lcm
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
from phaze.cost.network.network import sent_bytes
from phaze.formulas.networked import Devices, script_on, silent_batch_s, time_per_batch_s
from phaze.formulas.replay import read_plan
from phaze.map.annealing import step_task
from phaze.map.ensemble import (
    Chains,
    Mapped,
    MappingCandidate,
    MapSettings,
    Method,
    best_of_chains,
    map_stages,
)
from phaze.map.heuristics import block_map, consecutive_map, near_maps, p2p_map
from phaze.map.networks import device_network, part_of, units_of
from phaze.map.objective import MappingProblem
from phaze.map.schemes import near_devices
from phaze.pipeline.gpipe import simulate_step, step_times_s
from phaze.pipeline.traffic import simulate_script
from phaze.plan.plan import Plan, Stage
from phaze.spec.mapping import StoredPlanMap
from phaze.spec.network import Matrix
from phaze.spec.settings import PlanMapSettings
from phaze.spec.stages import StoredMessage, StoredStage, StoredStages
from phaze.spec.system import Cluster
from phaze.tables import BY_HAND
from phaze.workload.operator_graphs import StageGraph, stage_graph

Row = dict[str, str | int | float | bool]
CHAINS = 2
"""Number of chains of the local search."""
BLOCKS = (2, 4)
"""Candidate numbers of stages of a lane to put on consecutive devices."""


@dataclass(frozen=True)
class Lanes:
    """Lanes (concurrent pipelines) of a plan: their number, the workers of a lane, and devices per worker."""

    count: int
    workers: tuple[tuple[int, int], ...]
    """Stage and worker index of each worker of a lane, in the order of the mapping's stages."""
    unit: int
    """Number of devices per worker."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of workers per lane and number of lanes: S and R of a mapping."""
        return len(self.workers), self.count

    @property
    def devices(self) -> int:
        """Number of devices over all lanes, workers and devices per worker."""
        return len(self.workers) * self.count * self.unit


def lanes_of(plan: Plan) -> Lanes:
    """Divide a plan into lanes, its concurrent pipelines."""
    count = gcd(*plan.data)
    workers = ((q, worker) for q, d in enumerate(plan.data) for worker in range(d // count))
    return Lanes(count, tuple(workers), max(stage.layout.tp for stage in plan.stages))


def stored_stages(plan: Plan, model: str) -> StoredStages:
    """Convert the stages of a plan to the stage format of mapping problems."""
    lanes = lanes_of(plan)
    return StoredStages(
        format="phaze-stages",
        version=1,
        model=model,
        replicas=lanes.count,
        microbatches=-(-plan.microbatches // lanes.count),
        recompute=any(stage.recompute_s > 0 for stage in plan.stages),
        stages=tuple(_worker(plan.stages[q], lanes.count) for q, _ in lanes.workers),
        edges=tuple(_messages(plan, lanes)),
    )


def _worker(stage: Stage, lanes: int) -> StoredStage:
    share = lanes / stage.layout.dp
    return StoredStage(
        forward_s=stage.forward_s * share,
        backward_s=(stage.recompute_s + stage.backward_s) * share,
        parameter_bytes=stage.weight_bytes * _ring_share(stage.layout.dp) / _ring_share(lanes),
    )


def _ring_share(members: int) -> float:
    """Share of a tensor that a member sends in a reduce-scatter, (d - 1)/d; 1 for a single member."""
    return sent_bytes("reduce_scatter", 1.0, members) if members > 1 else 1.0


def _messages(plan: Plan, lanes: Lanes) -> Iterator[StoredMessage]:
    """Yield the messages per microbatch between the workers of adjacent stages."""
    first = [lanes.workers.index((q, 0)) for q in range(len(plan.stages))]
    for q, (stage, later) in enumerate(zip(plan.stages, plan.stages[1:], strict=False)):
        a, b = stage.layout.dp // lanes.count, later.layout.dp // lanes.count
        size = between_slices_bytes(stage, later) / lcm(a, b)
        for i in range(a):
            for j in range(i % gcd(a, b), b, gcd(a, b)):
                yield StoredMessage(source=first[q] + i, target=first[q + 1] + j, bytes=size)


def between_slices_bytes(stage: Stage, later: Stage) -> float:
    """Bytes per microbatch between two tensor-parallel ranks of adjacent stages, averaged over both passes.

    Each receiving rank needs the whole tensor. There are as many pairs as ranks in the wider group.
    """
    pairs = max(stage.layout.tp, later.layout.tp)
    forward, backward = later.arriving_bytes * later.layout.tp, stage.departing_bytes * stage.layout.tp
    return (forward + backward) / 2 / pairs


@dataclass(frozen=True, eq=False)
class TimedMapping:
    """A mapping and its time per batch."""

    method: str
    mapping: Ints
    """Unit of each worker and lane, shape (S, R)."""
    estimated_s: float
    """Estimated time per batch: GPipe without contention, then all-reduces by their slowest link."""
    simulated_s: float
    """Simulated time per batch, with contention."""


@dataclass(frozen=True, eq=False)
class PlanMap:
    """A plan on a network, with its time per batch under each mapping."""

    plan: Plan
    lanes: Lanes
    network: str
    """Name of the network."""
    devices: int
    """Number of devices of the network."""
    alone_s: float
    """Time per batch if communication took no time."""
    mappings: tuple[TimedMapping, ...]

    @cached_property
    def best(self) -> TimedMapping:
        """Mapping with the shortest simulated time per batch; the first one on ties."""
        return min(self.mappings, key=lambda one: one.simulated_s)

    @property
    def placed(self) -> Devices:
        """Devices of each stage and replica under the best mapping."""
        return devices_of(self.plan, self.lanes, self.best.mapping)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of table `plan_maps`, without the plan's key."""
        workers, lanes = self.lanes.shape
        for timed in self.mappings:
            yield {
                "way": timed.method,
                "network": self.network,
                "devices": self.devices,
                "lanes": lanes,
                "workers": workers,
                "unit": self.lanes.unit,
                "alone_s": self.alone_s,
                "estimated_s": timed.estimated_s,
                "simulated_s": timed.simulated_s,
                "chosen": timed is self.best,
            }


def map_rows(
    row: Row, stages: pd.DataFrame, system: Cluster | Matrix, devices: int, search: PlanMapSettings
) -> tuple[list[Row], list[list[list[int]]]] | None:
    """Rows of table `plan_maps` without the plan's key, and the devices of the plan's ranks.

    Devices are nested by stage, replica and tensor-parallel rank. A plan is given by its rows in tables plans
    and plan_stages. None if the system has too few devices.
    """
    plan = read_plan(pd.Series(row), stages)
    if lanes_of(plan).devices > system.devices:
        return None
    mapped = map_plan(plan, system, devices, Chains(search.seed, search.steps, CHAINS))
    return list(mapped.rows()), [[list(slices) for slices in replicas] for replicas in mapped.placed]


def map_plan(plan: Plan, system: Cluster | Matrix, devices: int, chains: Chains) -> PlanMap:
    """Map a plan to a part of a system with `devices` devices, or with more if the plan needs more."""
    run = _PlanOnPart(plan, system, devices)
    hand = [run.judge(method, mapping) for method, mapping in run.by_hand()]
    searched = run.judge(*run.search(chains))
    topology = run.fabric.topology
    alone_s = silent_batch_s(run.plan, run.fabric)
    return PlanMap(plan, run.lanes, topology.name, topology.devices, alone_s, (*hand, searched))


def devices_of(plan: Plan, lanes: Lanes, mapping: Ints) -> Devices:
    """Devices of each stage and replica of a plan under a mapping to units, shape (S, R)."""
    devices: list[list[range]] = [[] for _ in plan.stages]
    for (q, _), units in zip(lanes.workers, mapping.tolist(), strict=True):
        width = plan.stages[q].layout.tp
        devices[q] += [range(unit * lanes.unit, unit * lanes.unit + width) for unit in units]
    return devices


def within_units(plan: Plan) -> Plan:
    """Plan without separate tensor-parallel messages; their time remains part of the passes.

    A unit has consecutive devices under every mapping. Its messages, one for each layer and microbatch, would
    dominate the simulation.
    """
    alone = tuple(
        replace(stage, forward_reduced_bytes=0.0, recompute_reduced_bytes=0.0, backward_reduced_bytes=0.0)
        for stage in plan.stages
    )
    return replace(plan, stages=alone)


class PlanOn:
    """A plan on a network; simulation results are cached by mapping."""

    def __init__(self, plan: Plan, lanes: Lanes, fabric: Fabric) -> None:
        self.plan, self.lanes, self.fabric = within_units(plan), lanes, fabric
        self.times_s: dict[bytes, float] = {}

    def batch_s(self, mapping: Ints) -> float:
        """Simulated time per batch, with contention."""
        key = mapping.tobytes()
        if key not in self.times_s:
            placed = devices_of(self.plan, self.lanes, mapping)
            carried = simulate_script(script_on(self.plan, self.fabric, placed), self.fabric.topology)
            self.times_s[key] = time_per_batch_s(carried)
        return self.times_s[key]


class _PlanOnPart(PlanOn):
    """A plan on a part of a system, with the inputs of searches and estimates."""

    def __init__(self, plan: Plan, system: Cluster | Matrix, devices: int) -> None:
        lanes = lanes_of(plan)
        part = _network_of(system, max(devices, lanes.devices))
        super().__init__(plan, lanes, part.fabric)
        self.near = part.near // lanes.unit
        self.network = units_of(part.devices, lanes.unit)
        self.stages: StageGraph = stage_graph(stored_stages(plan, "plan"))

    def by_hand(self) -> Iterator[tuple[str, Ints]]:
        """Yield the default mappings with their names."""
        yield BY_HAND[0], consecutive_map(*self.lanes.shape)
        yield BY_HAND[1], p2p_map(*self.lanes.shape)

    def search(self, chains: Chains) -> tuple[str, Ints]:
        """Topology-aware mapping with the shortest estimated time per batch, and its method."""
        mappings = {"local-search": self._local_search(chains)}
        for high in BLOCKS:
            if high < self.lanes.shape[0] and self.near % high == 0 and self.near > high:
                mappings[f"blocks-of-{high}"] = block_map(*self.lanes.shape, high, self.near // high)
        return min(mappings.items(), key=lambda named: self.estimate_s(named[1]))

    def _local_search(self, chains: Chains) -> Ints:
        """Mapping by local search, started from mappings on nearby devices."""
        problem = MappingProblem(self.stages, self.network, "exact")
        starts = near_maps(problem)
        ranks = np.argsort(step_times_s(self.stages, np.array(starts), self.network), kind="stable")
        task, near = step_task(self.stages, self.network, inf), near_devices(problem, 0)
        return best_of_chains(task, [starts[k] for k in ranks.tolist()], near, chains)[1]

    def estimate_s(self, mapping: Ints) -> float:
        """Time per batch without contention and with a flush: the passes, then the all-reduces."""
        step = simulate_step(self.stages, mapping, self.network)
        ended = dict.fromkeys(range(len(self.plan.stages)), 0.0)
        for (q, _), over in zip(self.lanes.workers, step.ended_s.max(axis=1).tolist(), strict=True):
            ended[q] = max(ended[q], over)
        placed = devices_of(self.plan, self.lanes, mapping)
        return max(over + self._all_reduce_s(q, placed) for q, over in ended.items())

    def _all_reduce_s(self, q: int, placed: Devices) -> float:
        """All-reduce time of a stage as simulated: hierarchical if its nodes have equally many units."""
        units = np.array([slices[0] for slices in placed[q]]) // self.lanes.unit
        size = self.plan.stages[q].weight_bytes
        rows = by_node(units.tolist(), max(self.fabric.node // self.lanes.unit, 1))
        if len(rows) == 1 or len(rows[0]) == 1 or len({len(row) for row in rows}) > 1:
            return self.network.seconds("all_reduce", size, units)
        across = list(zip(*rows, strict=True))
        within_s = max(self.network.seconds("all_reduce", size, row) for row in rows)
        share = size / len(across)
        return within_s + max(self.network.seconds("all_reduce", share, column) for column in across)

    def judge(self, method: str, mapping: Ints) -> TimedMapping:
        """Evaluate a mapping by estimate and simulation."""
        return TimedMapping(method, mapping, self.estimate_s(mapping), self.batch_s(mapping))


class _Network(NamedTuple):
    """Part of a system, cached because other plans need the same part."""

    fabric: Fabric
    devices: DeviceNetwork
    near: int
    """Number of consecutive devices that are near each other: those of a node, or of a row of a torus."""


@lru_cache(maxsize=4)
def _network_of(system: Cluster | Matrix, needed: int) -> _Network:
    part = system if isinstance(system, Matrix) else part_of(system, needed)
    return _Network(fabric(part, max(needed, part.devices)), device_network(part), _consecutive(part))


def _consecutive(part: Cluster | Matrix) -> int:
    """Number of consecutive devices that are near each other: a node, or a row of a torus."""
    if isinstance(part, Matrix):
        return 1
    if part.torus is not None:
        return part.torus.shape[-1]
    return part.levels[0].devices if len(part.levels) > 1 else 1


@dataclass(frozen=True, eq=False)
class PlanOnDevices:
    """A plan, the mappings found for its workers, and its time per batch with each."""

    plan: Plan
    lanes: Lanes
    mapped: Mapped
    """Mappings of workers and lanes to units."""
    alone_s: float
    """Time per batch if communication took no time."""
    simulated_s: dict[Method, float]
    """Simulated time per batch, by method; after the time limit only of the method with the shortest step."""

    @cached_property
    def best(self) -> MappingCandidate:
        """Eligible mapping with the shortest simulated time per batch; the first one on ties."""
        simulated = [
            candidate for candidate in self.mapped.candidates if candidate.method in self.simulated_s
        ]
        return min(simulated, key=lambda candidate: self.simulated_s[candidate.method])

    @property
    def devices(self) -> list[list[list[int]]]:
        """Device of each stage, replica and tensor-parallel rank under the best mapping."""
        placed = devices_of(self.plan, self.lanes, self.best.mapping)
        return [[list(slices) for slices in replicas] for replicas in placed]


def map_one(
    plan: Plan, model: str, network: DeviceNetwork, settings: MapSettings, deadline: Deadline | None = None
) -> PlanOnDevices:
    """Map a plan to the devices of a network; PhazeError if there are too few.

    deadline: by default from the settings' time limit. After it no further mapping is simulated; the one with
    the shortest step without contention always is.
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
    simulated = {mapped.best.method: judge.batch_s(mapped.best.mapping)}
    for candidate in counted((*mapped.candidates, *mapped.heuristics), "simulation"):
        if not until.passed:
            simulated[candidate.method] = judge.batch_s(candidate.mapping)
    return PlanOnDevices(plan, lanes, mapped, silent_batch_s(judge.plan, judge.fabric), simulated)


def stored_plan(planned: PlanOnDevices, row: pd.Series) -> StoredPlanMap:
    """Build the plan section of a mapping file; `row` is the plan's row of table `plans`."""
    methods = dict.fromkeys(
        candidate.method for candidate in (*planned.mapped.candidates, *planned.mapped.heuristics)
    )
    content = {
        "architecture": row["architecture"],
        "hbm_gib": float(row["hbm_gib"]),
        "planner": row["planner"],
        "unit": planned.lanes.unit,
        "workers": planned.lanes.workers,
        "devices": planned.devices,
        "planned_s": planned.plan.planned_s,
        "alone_s": planned.alone_s,
        "simulated_s": planned.simulated_s[planned.best.method],
        "times": [
            {"name": method, "simulated_s": planned.simulated_s[method]}
            for method in methods
            if method in planned.simulated_s
        ],
    }
    return StoredPlanMap.model_validate(content)
