"""One plan of a study on the devices of any topology, by the searches for stages.

Workers and lanes are the stages and replicas of `phaze.map`, units of devices its devices. What its ways find
is judged by the simulator of plans, as in a study: with the plan's own schedule, event by event, every link
with one message at a time.
"""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from phaze.base.deadline import Deadline
from phaze.base.errors import PhazeError
from phaze.base.progress import counted
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.fabric import Fabric, from_matrix
from phaze.map.ensemble import FoundMapping, Mapped, MapSettings, Way, map_stages
from phaze.map.lanes import Lanes, lanes_of, stored_stages
from phaze.map.networks import units_of
from phaze.map.plan_maps import PlanOn, devices_of
from phaze.plan.networked import silent_batch_s
from phaze.plan.plan import Plan
from phaze.spec.mapping import StoredPlanMap
from phaze.workload.operator_graphs import stage_graph


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
        raise PhazeError(f"network: has {network.devices} devices, {_needed(lanes)}")
    stages = stage_graph(stored_stages(plan, model))
    mapped = map_stages(stages, units_of(network, lanes.unit), settings, until)
    judge = PlanOn(plan, lanes, Fabric(from_matrix(network.bandwidth_bytes_per_s, network.latency_s)))
    simulated = {mapped.best.way: judge.batch_s(mapped.best.mapping)}
    for one in counted((*mapped.ways, *mapped.heuristics), "simulation"):
        if not until.passed:
            simulated[one.way] = judge.batch_s(one.mapping)
    return PlanOnDevices(plan, lanes, mapped, silent_batch_s(judge.plan, judge.fabric), simulated)


def _needed(lanes: Lanes) -> str:
    workers, count = lanes.shape
    return f"the plan needs {lanes.devices}: {workers} workers x {count} lanes, units of {lanes.unit}"


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
