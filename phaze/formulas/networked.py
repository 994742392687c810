"""Replay a plan on a hierarchical, torus or matrix network, where transfers and gradients share links.

Devices are numbered as in Megatron-LM: the tensor-parallel ranks of a replica are adjacent, then replicas,
then stages. All lanes of the pipeline use the network together, and every link carries one message at a time.
Replicas exchange 2 (d - 1)/d of the weights in each direction, inside nodes first.

All-reduces between tensor-parallel ranks are part of a replica's passes: they follow after a share of the
operators. An all-reduce takes the time that the planner charges for it, or longer if its messages do. They do
on a network that is slower than the planner assumes, or with other messages on the links. A pass has one
share per layer of its stage, fewer if that would be more than `MOST` messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from phaze.cost.network.collectives import all_reduce, by_node
from phaze.cost.network.fabric import Fabric
from phaze.cost.network.messages import together
from phaze.formulas.replay import planned_on
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import synchronising_groups
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.timeline import Timeline
from phaze.pipeline.traffic import NetworkResult, Script, Sends, Turn, script, silent, simulate_script
from phaze.plan.plan import Plan, Way
from phaze.plan.pricing.price import LinkUse, Price, charged_s
from phaze.plan.pricing.stage_costs import Tensors, pipeline_of

MOST = 1_000_000
"""Maximum number of simulated messages; above it, passes are simulated with fewer all-reduces."""
PASSES: dict[JobKind, Way] = {
    JobKind.FORWARD: "forward",
    JobKind.RECOMPUTE: "recompute",
    JobKind.BACKWARD: "backward",
}
LEGS = 3
"""Messages per tensor-parallel rank in an all-reduce: within nodes, between nodes, and within nodes."""
BATCHES = 3
"""Number of batches simulated for a schedule without a flush; only the last one is timed."""
Devices = Sequence[Sequence[Sequence[int]]]
"""Devices by stage, replica and tensor-parallel rank."""


@dataclass(frozen=True, eq=False)
class NetworkReplay(Price):
    """Price of a plan, from a simulation of its messages on a network."""

    fabric: Fabric

    @cached_property
    def carried(self) -> NetworkResult:
        """Simulated events of the plan with all communication; a link carries one message at a time."""
        return simulate_script(self._shared, self.fabric.topology)

    @property
    def timeline(self) -> Timeline:
        """Timeline of one batch with all communication; of several batches if the schedule has no flush."""
        return self.carried.timeline

    @cached_property
    def time_s(self) -> float:
        """Time per batch in seconds; for schedules without a flush, the time of the last batch."""
        return time_per_batch_s(self.carried)

    @cached_property
    def alone_s(self) -> float:
        """Time per batch in seconds if communication took no time."""
        return time_per_batch_s(simulate_script(silent(self._shared), self.fabric.topology, "none"))

    @cached_property
    def _shared(self) -> Script:
        tensors: Tensors = "all" if self.memory_binds else "longest"
        return script_on(self.plan, self.fabric, consecutive_devices(self.plan), tensors)

    @property
    def link_uses_s(self) -> tuple[LinkUse, ...]:
        """Empty, because devices on such networks have several links."""
        return ()

    @property
    def link_share(self) -> float:
        """Mean utilisation of all links."""
        return float(self.carried.utilisation.mean())


def replay_on(plan: Plan, fabric: Fabric) -> NetworkReplay:
    """Replay a plan on a network, with the devices that it was made for."""
    return NetworkReplay(plan, planned_on(plan), fabric)


def script_on(plan: Plan, fabric: Fabric, devices: Devices, tensors: Tensors = "all") -> Script:
    """Simulation script of a plan with all its network messages, on the given devices."""
    fabric.topology.check_devices(plan.devices)
    pipeline = _pipeline(plan, tensors)
    lanes = pipeline.lanes
    tiles = [
        [device for lane in range(lanes) for device in devices[group][lane + replica * lanes]]
        for group, replica in pipeline.workers
    ]
    turns = _exchanges(plan, pipeline, devices, fabric) | _passes(plan, pipeline, devices, fabric)
    return script(pipeline, Sends(tiles, _sent_bytes(plan, lanes), turns))


def silent_script(plan: Plan) -> Script:
    """Simulation script of a plan in which all messages are empty, valid for any devices."""
    pipeline = _pipeline(plan, "all")
    turns = {(JobKind.LAST_SYNC, port, group): [Turn(0.0)] for port, group in _ports(pipeline)}
    tiles = [[0]] * len(pipeline.workers)
    return script(pipeline, Sends(tiles, dict.fromkeys(_sent_bytes(plan, pipeline.lanes), 0.0), turns))


def silent_batch_s(plan: Plan, fabric: Fabric) -> float:
    """Time per batch if communication took no time, assuming that all devices are equivalent."""
    return time_per_batch_s(simulate_script(silent_script(plan), fabric.topology, "none"))


def _pipeline(plan: Plan, tensors: Tensors) -> Pipeline:
    flat = pipeline_of(plan, planned_on(plan), tensors)
    pipeline = replace(flat, stages=tuple(replace(stage, operators=1) for stage in flat.stages))
    return replace(pipeline, batches=BATCHES) if not pipeline.rules.flushes else pipeline


def _ports(pipeline: Pipeline) -> Iterator[tuple[int, int]]:
    """Yield the resource and the pipeline group of every gradient all-reduce."""
    yield from enumerate(synchronising_groups(pipeline), start=len(pipeline.workers))


def consecutive_devices(plan: Plan) -> list[list[range]]:
    """Devices of every stage and replica, numbered as in Megatron-LM."""
    devices, next_one = [], 0
    for stage in plan.stages:
        width = stage.layout.tp
        starts = [next_one + replica * width for replica in range(stage.layout.dp)]
        devices.append([range(start, start + width) for start in starts])
        next_one += stage.layout.dp * width
    return devices


def _sent_bytes(plan: Plan, lanes: int) -> dict[tuple[int, int], float]:
    """Bytes sent between adjacent stages, where every tensor-parallel rank needs the whole tensor."""
    sent_bytes = {}
    for q, (stage, later) in enumerate(zip(plan.stages, plan.stages[1:], strict=False)):
        sent_bytes[q, q + 1] = later.arriving_bytes * lanes * later.layout.tp
        sent_bytes[q + 1, q] = stage.departing_bytes * lanes * stage.layout.tp
    return sent_bytes


def _exchanges(
    plan: Plan, pipeline: Pipeline, devices: Devices, fabric: Fabric
) -> dict[tuple[JobKind, int, int], Sequence[Turn]]:
    """Gradient all-reduces of every stage, concurrent for the tensor-parallel ranks of a stage."""
    turns: dict[tuple[JobKind, int, int], Sequence[Turn]] = {}
    for port, group in _ports(pipeline):
        slices = list(zip(*devices[group], strict=True))
        plans = [
            all_reduce(fabric.topology, by_node(members, fabric.node), plan.stages[group].weight_bytes)
            for members in slices
        ]
        turns[JobKind.LAST_SYNC, port, group] = [Turn(0.0, together(*plans))]
    return turns


def _passes(
    plan: Plan, pipeline: Pipeline, devices: Devices, fabric: Fabric
) -> dict[tuple[JobKind, int, int], Sequence[Turn]]:
    """Forward and backward passes of every worker, with an all-reduce after each group of operators."""
    messages = sum(
        LEGS * stage.layout.tp * sum(stage_pass.reduced_bytes > 0 for stage_pass in stage.passes.values())
        for stage in plan.stages
    )
    # More pieces follow the traffic more closely; events must stay few enough to simulate.
    pieces = max(1, MOST // max(1, messages * plan.microbatches))
    turns_by_job: dict[tuple[JobKind, int, int], Sequence[Turn]] = {}
    for worker, (group, replica) in enumerate(pipeline.workers):
        stage = plan.stages[group]
        members = devices[group][replica * pipeline.lanes : (replica + 1) * pipeline.lanes]
        for kind, use in PASSES.items():
            stage_pass = stage.passes[use]
            if stage_pass.reduced_bytes:
                count = min(stage.layers, pieces)
                size = stage_pass.reduced_bytes / count
                rings = (all_reduce(fabric.topology, by_node(m, fabric.node), size, 1) for m in members)
                charged = charged_s(plan, stage, stage_pass)
                work = Turn((float(pipeline.column(f"{use}_s")[group]) - charged) / count)
                turns = [work, Turn(charged / count, concurrent=together(*rings))] * count
                turns_by_job[kind, worker, group] = turns
    return turns_by_job


def time_per_batch_s(carried: NetworkResult) -> float:
    """Time per batch in seconds; for schedules without a flush, the time of the last batch."""
    timeline = carried.timeline
    pipeline = timeline.pipeline
    if pipeline.rules.flushes:
        return timeline.time_s
    passed = timeline.passed_s(JobKind.FORWARD, 0)
    return float(passed[-1] - passed[-1 - pipeline.lane_microbatches])
