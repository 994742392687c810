"""Plans on the devices of a network: by the default orders, by topology-aware mapping, and simulated on it.

By hand replicas of a stage are on consecutive devices (cs-map: all-reduce first, as Megatron-LM numbers
devices), or stages of a lane (p2p-map). With the network in mind, consecutive devices that are close to each
other, those of a node or of a row, hold 2 or 4 stages of some lanes (blocks-of-2, blocks-of-4), or the
local search of `phaze.map` makes the step short that a mapping takes without contention. The event simulator,
in which a link carries one message at a time, judges all of them; the shortest is chosen, of equal ones the
first, so that no plan is slower than with the default orders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Ints
from phaze.cost.network.collectives import by_node
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.fabric import Fabric, fabric
from phaze.map.annealing import step_task
from phaze.map.chains import Chains, best_of_chains
from phaze.map.heuristics import consecutive_map, device_order, grid_order, p2p_map
from phaze.map.objective import Problem
from phaze.map.plans.networks import device_network, part_of, units_of
from phaze.map.plans.stages import Lanes, lanes_of, stored_stages
from phaze.map.schemes import near_devices
from phaze.pipeline.gpipe import simulate_step, step_times_s
from phaze.pipeline.traffic import carry_out
from phaze.plan.networked import Devices, script_on, silent_batch_s, time_per_batch_s
from phaze.plan.plan import Plan
from phaze.spec.network import Matrix
from phaze.spec.system import Cluster
from phaze.tables import BY_HAND
from phaze.workload.operator_graphs import StageGraph
from phaze.workload.stored_graphs import stage_graph

BLOCKS = (2, 4)
"""Stages of a lane that are on consecutive devices."""


@dataclass(frozen=True)
class Effort:
    """How far is searched."""

    steps: int
    """Changes of places tried by each chain of the local search."""
    seed: int = 0
    """Of its random numbers."""
    chains: int = 2
    """Chains of the local search, the best of which counts."""


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
        """Return the mapping with the shortest simulated batch, the first of several."""
        return min(self.tried, key=lambda one: one.simulated_s)

    @cached_property
    def default(self) -> Tried:
        """Return the CS map: all-reduce first."""
        return self.of(BY_HAND[0])

    def of(self, way: str) -> Tried:
        """Return the mapping of a way."""
        return next(one for one in self.tried if one.way == way)

    @property
    def placed(self) -> Devices:
        """Return the devices of every stage and replica under the best mapping."""
        return devices_of(self.plan, self.lanes, self.best.mapping)


def map_plan(plan: Plan, system: Cluster | Matrix, devices: int, effort: Effort) -> PlanMap:
    """Return a plan on the part of a system that has so many devices, or as many as its units need."""
    run = _Run(plan, system, devices)
    hand = [run.judge(way, mapping) for way, mapping in run.by_hand()]
    way, mapping = run.search(effort)
    known = next((one for one in hand if np.array_equal(one.mapping, mapping)), None)
    searched = replace(known, way=way) if known else run.judge(way, mapping)
    topology = run.fabric.topology
    return PlanMap(plan, run.lanes, topology.name, topology.devices, run.alone_s(), (*hand, searched))


def devices_of(plan: Plan, lanes: Lanes, mapping: Ints) -> Devices:
    """Return the devices of every stage and replica of a plan under a mapping to units, shape (S, R)."""
    found: list[list[range]] = [[] for _ in plan.stages]
    for (q, _), units in zip(lanes.workers, mapping.tolist(), strict=True):
        width = plan.stages[q].layout.tp
        found[q] += [range(unit * lanes.unit, unit * lanes.unit + width) for unit in units]
    return found


def within_units(plan: Plan) -> Plan:
    """Return a plan whose slices send each other nothing beside their passes, which hold what that takes.

    A unit has consecutive devices under every mapping; its messages, one for every layer and microbatch,
    would be most of those that are simulated.
    """
    alone = tuple(
        replace(stage, forward_reduced_bytes=0.0, recompute_reduced_bytes=0.0, backward_reduced_bytes=0.0)
        for stage in plan.stages
    )
    return replace(plan, stages=alone)


class _Run:
    """A plan on a network."""

    def __init__(self, plan: Plan, system: Cluster | Matrix, devices: int) -> None:
        self.plan, self.lanes = within_units(plan), lanes_of(plan)
        found = _network_of(system, max(devices, self.lanes.devices))
        self.fabric, self.near = found.fabric, found.near // self.lanes.unit
        self.network: DeviceNetwork = units_of(found.devices, self.lanes.unit)
        self.stages: StageGraph = stage_graph(stored_stages(plan, "plan"))

    def by_hand(self) -> Iterator[tuple[str, Ints]]:
        """Yield the default orders, each with its name."""
        yield BY_HAND[0], consecutive_map(*self.lanes.shape)
        yield BY_HAND[1], p2p_map(*self.lanes.shape)

    def search(self, effort: Effort) -> tuple[str, Ints]:
        """Return the mapping with the network in mind that is estimated to be the best, and its way."""
        found = {"local-search": self._local_search(effort)}
        for high in BLOCKS:
            if high < self.lanes.shape[0] and self.near % high == 0 and self.near > high:
                found[f"blocks-of-{high}"] = block_map(*self.lanes.shape, high, self.near // high)
        return min(found.items(), key=lambda one: self.estimate_s(one[1]))

    def _local_search(self, effort: Effort) -> Ints:
        """Return what the local search makes of the best of some mappings on devices close to each other."""
        problem = Problem(self.stages, self.network, "exact")
        starts = near_maps(problem)
        ranks = np.argsort(step_times_s(self.stages, np.array(starts), self.network), kind="stable")
        task, near = step_task(self.stages, self.network, math.inf), near_devices(problem, 0)
        chains = Chains(effort.seed, effort.steps, effort.chains)
        return best_of_chains(task, [starts[k] for k in ranks.tolist()], near, chains)[1]

    def estimate_s(self, mapping: Ints) -> float:
        """Return a batch without contention and with a flush: the passes, then the all-reduces."""
        step = simulate_step(self.stages, mapping, self.network)
        ended = dict.fromkeys(range(len(self.plan.stages)), 0.0)
        for (q, _), over in zip(self.lanes.workers, step.ended_s.max(axis=1).tolist(), strict=True):
            ended[q] = max(ended[q], over)
        placed = devices_of(self.plan, self.lanes, mapping)
        return max(over + self._all_reduce_s(q, placed) for q, over in ended.items())

    def _all_reduce_s(self, q: int, placed: Devices) -> float:
        """Return an all-reduce of a stage as the simulator carries it out: inside nodes first, if it can."""
        units = np.array([slices[0] for slices in placed[q]]) // self.lanes.unit
        size = self.plan.stages[q].weight_bytes
        rows = by_node(units.tolist(), max(self.fabric.node // self.lanes.unit, 1))
        if len(rows) == 1 or len(rows[0]) == 1 or len({len(row) for row in rows}) > 1:
            return self._rounds_s(units[None], size, 2)
        inside = np.array(rows)
        within_s = self._rounds_s(inside, size, 2)
        return within_s + self._rounds_s(inside.T, size / inside.shape[1], 2)

    def _rounds_s(self, rings: Ints, size: float, times: int) -> float:
        """Return so many times d - 1 rounds around rings of d units, (rings, d), by their slowest link."""
        members = int(rings.shape[1])
        links = rings, np.roll(rings, -1, axis=1)
        round_s = self.network.waits_s[links] + size / members * self.network.seconds_per_byte[links]
        return times * (members - 1) * float(round_s.max())

    def judge(self, way: str, mapping: Ints) -> Tried:
        """Return what a mapping leads to."""
        script = script_on(self.plan, self.fabric, devices_of(self.plan, self.lanes, mapping))
        carried = carry_out(script, self.fabric.topology)
        return Tried(way, mapping, self.estimate_s(mapping), time_per_batch_s(carried))

    def alone_s(self) -> float:
        """Return a batch on a network that takes no time."""
        return silent_batch_s(self.plan, self.fabric)


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


def near_maps(problem: Problem) -> list[Ints]:
    """Return mappings on devices in an order in which they are close to each other, each of shape (S, R).

    A few of those that `phaze.map` begins with: on 1,024 devices all of them take longer than a simulation.
    """
    stages, replicas = problem.shape
    message, wait = problem.both_ways
    size = float(problem.edge_bytes.mean()) if len(problem.edge_bytes) else 0.0
    time = message * max(size, 1.0) + wait
    folded = np.concatenate([np.arange(0, replicas, 2), np.arange(1, replicas, 2)[::-1]])
    found = []
    for width in sorted({1, stages, replicas}):
        for order in (device_order(time, width), grid_order(time, (width,))):
            used = order[: problem.slots]
            rings = used.reshape(stages, replicas)
            found += [np.ascontiguousarray(used.reshape(replicas, stages).T), rings, rings[:, folded]]
    return found


def block_map(stages: int, replicas: int, high: int, wide: int) -> Ints:
    """Return the mapping with blocks of so many stages and lanes on consecutive devices, shape (S, R).

    Inside a block the replicas of a stage are neighbours, and blocks follow each other as in a CS map; the
    last blocks may be smaller.
    """
    stage, replica = np.divmod(np.arange(stages * replicas), replicas)
    order = np.lexsort((replica % wide, stage % high, replica // wide, stage // high))
    return np.argsort(order).reshape(stages, replicas)


def _consecutive(part: Cluster | Matrix) -> int:
    """Return how many devices with consecutive numbers are near: those of a node, or of a row of a torus."""
    if isinstance(part, Matrix):
        return 1
    if part.torus is not None:
        return part.torus.shape[-1]
    return part.levels[0].devices if len(part.levels) > 1 else 1
