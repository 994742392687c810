"""A plan replayed on a network with levels, a torus or a matrix: transfers and gradients share its links.

Devices are numbered as Megatron-LM does: the slices of a replica beside each other, then replicas, then
stages. All lanes of the pipeline are on the network together. Steps are those of `replay`, with the planner's
own on the flat network that it assumed; then tensors are on their way over the network as if each were alone
(transfers), gradients are exchanged the same way (synchronisation: 2 (d - 1)/d of the weights in each
direction, inside nodes first), and last every link carries one message at a time (contention).

All-reduces between the slices of a replica are part of its passes: after a share of the operators, an
all-reduce takes what the planner charges for it, or longer where its messages do: on a network that is slower
than the planner assumes (a part of transfers), or where other messages are on the links (contention). A pass
has as many shares as its stage has layers, fewer where that would be more than `MOST` messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from phaze.cost.network.collectives import all_reduce, by_node
from phaze.cost.network.fabric import Fabric
from phaze.cost.network.messages import together
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import synchronising_groups
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.timeline import Timeline
from phaze.pipeline.traffic import Carried, Script, Sends, Turn, carry_out, script, silent
from phaze.plan.plan import Plan, Way
from phaze.plan.price import LinkUse, Price, charged_s
from phaze.plan.replay import planned_on
from phaze.plan.stage_costs import Tensors, pipeline_of

MOST = 1_000_000
"""Messages of slices that are worth their time; of long pipelines an all-reduce stands for several."""
PASSES: dict[JobKind, Way] = {
    JobKind.FORWARD: "forward",
    JobKind.RECOMPUTE: "recompute",
    JobKind.BACKWARD: "backward",
}
LEGS = 3
"""Messages of a slice in an all-reduce: inside nodes, between them, inside again."""
BATCHES = 3
"""Batches without a flush of which the last one's time counts."""
Devices = Sequence[Sequence[Sequence[int]]]
"""Of every stage and replica, a device a slice; lane after lane for each worker of a lane."""


@dataclass(frozen=True, eq=False)
class NetworkReplay(Price):
    """A plan simulated on a network."""

    fabric: Fabric

    @cached_property
    def carried(self) -> Carried:
        """Events with all communication in which every link carries one message at a time."""
        return carry_out(self._shared, self.fabric.topology)

    @property
    def timeline(self) -> Timeline:
        """Events with all communication: of a batch, or without a flush of some."""
        return self.carried.timeline

    @cached_property
    def time_s(self) -> float:
        """Seconds of a batch, without a flush of the last one."""
        return time_per_batch_s(self.carried)

    @cached_property
    def alone_s(self) -> float:
        """Same if communication took no time."""
        return time_per_batch_s(carry_out(silent(self._shared), self.fabric.topology, "none"))

    @cached_property
    def _shared(self) -> Script:
        tensors: Tensors = "all" if self.memory_binds else "longest"
        return script_on(self.plan, self.fabric, consecutive_devices(self.plan), tensors)

    @property
    def link_uses_s(self) -> tuple[LinkUse, ...]:
        """Nothing: devices have other links to others."""
        return ()

    @property
    def link_share(self) -> float:
        """Load of all links, of what they could carry."""
        return float(self.carried.utilisation.mean())


def replay_on(plan: Plan, fabric: Fabric) -> NetworkReplay:
    """Price of a plan on a network, whose devices are those that it was made for."""
    return NetworkReplay(plan, planned_on(plan), fabric)


def script_on(
    plan: Plan, fabric: Fabric, devices: Devices, tensors: Tensors = "all", *, synchronise: bool = True
) -> Script:
    """Plan with all that it sends over a network, on devices as given."""
    fabric.topology.check_devices(plan.devices)
    pipeline = _pipeline(plan, tensors, synchronise=synchronise)
    lanes = pipeline.lanes
    tiles = [
        [device for lane in range(lanes) for device in devices[group][lane + replica * lanes]]
        for group, replica in pipeline.workers
    ]
    turns = _exchanges(plan, pipeline, devices, fabric) | _passes(plan, pipeline, devices, fabric)
    return script(pipeline, Sends(tiles, _sent_bytes(plan, lanes), turns))


def silent_script(plan: Plan) -> Script:
    """Plan whose slices send each other nothing, with the rest not sent, either: on any devices."""
    pipeline = _pipeline(plan, "all", synchronise=True)
    turns = {(JobKind.LAST_SYNC, port, group): [Turn(0.0)] for port, group in _ports(pipeline)}
    tiles = [[0]] * len(pipeline.workers)
    return script(pipeline, Sends(tiles, dict.fromkeys(_sent_bytes(plan, pipeline.lanes), 0.0), turns))


def silent_batch_s(plan: Plan, fabric: Fabric) -> float:
    """Batch on a network that takes no time, on which all devices are alike."""
    return time_per_batch_s(carry_out(silent_script(plan), fabric.topology, "none"))


def _pipeline(plan: Plan, tensors: Tensors, *, synchronise: bool) -> Pipeline:
    flat = pipeline_of(plan, planned_on(plan), tensors)
    whole = (replace(stage, operators=1) for stage in flat.stages)
    pipeline = replace(flat, stages=tuple(s if synchronise else replace(s, sync_s=0.0) for s in whole))
    return replace(pipeline, batches=BATCHES) if not pipeline.rules.flushes else pipeline


def _ports(pipeline: Pipeline) -> Iterator[tuple[int, int]]:
    """Yield the resource and the group of every all-reduce of gradients."""
    yield from enumerate(synchronising_groups(pipeline), start=len(pipeline.workers))


def consecutive_devices(plan: Plan) -> list[list[range]]:
    """Devices of every stage and replica as Megatron-LM numbers them."""
    found, next_one = [], 0
    for stage in plan.stages:
        width = stage.layout.tp
        starts = [next_one + replica * width for replica in range(stage.layout.dp)]
        found.append([range(start, start + width) for start in starts])
        next_one += stage.layout.dp * width
    return found


def _sent_bytes(plan: Plan, lanes: int) -> dict[tuple[int, int], float]:
    """Bytes that come to all slices of the next stage, each of which needs the whole tensor, and back."""
    found = {}
    for q, (stage, later) in enumerate(zip(plan.stages, plan.stages[1:], strict=False)):
        found[q, q + 1] = later.arriving_bytes * lanes * later.layout.tp
        found[q + 1, q] = stage.departing_bytes * lanes * stage.layout.tp
    return found


def _exchanges(
    plan: Plan, pipeline: Pipeline, devices: Devices, fabric: Fabric
) -> dict[tuple[JobKind, int, int], Sequence[Turn]]:
    """All-reduces of gradients, one for each slice of a stage at once."""
    found: dict[tuple[JobKind, int, int], Sequence[Turn]] = {}
    for port, group in _ports(pipeline):
        slices = list(zip(*devices[group], strict=True))
        plans = [
            all_reduce(fabric.topology, by_node(members, fabric.node), plan.stages[group].weight_bytes)
            for members in slices
        ]
        found[JobKind.LAST_SYNC, port, group] = [Turn(0.0, together(*plans))]
    return found


def _passes(
    plan: Plan, pipeline: Pipeline, devices: Devices, fabric: Fabric
) -> dict[tuple[JobKind, int, int], Sequence[Turn]]:
    """Passes in which slices all-reduce after every share of the operators, in all lanes."""
    messages = sum(
        LEGS * stage.layout.tp * sum(one.reduced_bytes > 0 for one in stage.passes.values())
        for stage in plan.stages
    )
    pieces = max(1, MOST // max(1, messages * plan.microbatches))
    found: dict[tuple[JobKind, int, int], Sequence[Turn]] = {}
    for worker, (group, replica) in enumerate(pipeline.workers):
        stage = plan.stages[group]
        members = devices[group][replica * pipeline.lanes : (replica + 1) * pipeline.lanes]
        for kind, use in PASSES.items():
            one = stage.passes[use]
            if one.reduced_bytes:
                count = min(stage.layers, pieces)
                size = one.reduced_bytes / count
                rings = (all_reduce(fabric.topology, by_node(m, fabric.node), size, 1) for m in members)
                charged = charged_s(plan, stage, one)
                work = Turn((float(pipeline.column(f"{use}_s")[group]) - charged) / count)
                turns = [work, Turn(charged / count, beside=together(*rings))] * count
                found[kind, worker, group] = turns
    return found


def time_per_batch_s(carried: Carried) -> float:
    """Time per batch, without a flush that of the last one."""
    timeline = carried.timeline
    pipeline = timeline.pipeline
    if pipeline.rules.flushes:
        return timeline.time_s
    passed = timeline.passed_s(JobKind.FORWARD, 0)
    return float(passed[-1] - passed[-1 - pipeline.lane_microbatches])
