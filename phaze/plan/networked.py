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

from phaze.cost.network.coarse import all_reduce, by_node
from phaze.cost.network.fabric import Fabric
from phaze.cost.network.messages import together
from phaze.pipeline.durations import Kind
from phaze.pipeline.graph import synchronising_groups
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.timeline import Timeline, Use
from phaze.pipeline.traffic import Carried, Script, Traffic, Turn, carry_out, script, silent
from phaze.plan.plan import Plan, Tensors
from phaze.plan.replay import Replay, replay
from phaze.tables import PARTS

MOST = 1_000_000
"""Messages of slices that are worth their time; of long pipelines an all-reduce stands for several."""
PASSES: dict[Kind, Use] = {
    Kind.FORWARD: "forward",
    Kind.RECOMPUTE: "recompute",
    Kind.BACKWARD: "backward",
}
LEGS = 3
"""Messages of a slice in an all-reduce: inside nodes, between them, inside again."""
BATCHES = 3
"""Batches without a flush of which the last one's time counts."""
Devices = Sequence[Sequence[Sequence[int]]]
"""Of every stage and replica, a device a slice; lane after lane for each worker of a lane."""


@dataclass(frozen=True, eq=False)
class NetworkReplay(Replay):
    """A plan simulated on a network."""

    carried: Carried

    @cached_property
    def timeline(self) -> Timeline:
        """Return the events with all communication: of a batch, or without a flush of some."""
        return self.carried.timeline

    @property
    def busiest_link(self) -> int:
        """Return the link that carries the largest share of what it could."""
        return int(self.carried.utilisation.argmax())

    @property
    def link_share(self) -> float:
        """Return that share."""
        return float(self.carried.utilisation.max(initial=0.0))


def replay_on(plan: Plan, fabric: Fabric) -> NetworkReplay:
    """Return what the simulation of a plan on a network finds; the plan has its planner's bandwidth."""
    flat = replay(plan)
    devices = consecutive_devices(plan)
    quiet, loud = (script_on(plan, fabric, devices, "longest", synchronise=s) for s in (False, True))
    shared = script_on(plan, fabric, devices) if plan.memory_binds else loud
    alone_s = time_per_batch_s(carry_out(silent(shared), fabric.topology, "none"))
    on_the_way_s = time_per_batch_s(carry_out(quiet, fabric.topology, "none"))
    synchronised_s = time_per_batch_s(carry_out(loud, fabric.topology, "none"))
    carried = carry_out(shared, fabric.topology)
    contended_s = time_per_batch_s(carried)
    parts = _parts(flat, (on_the_way_s, synchronised_s, contended_s))
    return NetworkReplay(plan, parts, contended_s, alone_s, carried)


def _parts(flat: Replay, seconds: tuple[float, float, float]) -> dict[str, float]:
    """Return the parts of the difference: imbalance and bubbles as on the planner's network."""
    on_the_way_s, synchronised_s, contended_s = seconds
    plan = flat.plan
    charged = flat.charged_s
    first = {name: flat.parts[name] for name in PARTS[:2]}
    within_s = plan.planned_s - charged + sum(first.values())
    rest = (on_the_way_s - within_s, synchronised_s - on_the_way_s - charged, contended_s - synchronised_s)
    return first | dict(zip(PARTS[2:], rest, strict=True))


def script_on(
    plan: Plan, fabric: Fabric, devices: Devices, tensors: Tensors = "all", *, synchronise: bool = True
) -> Script:
    """Return a plan with all that it sends over a network, on devices as given."""
    pipeline = _pipeline(plan, tensors, synchronise=synchronise)
    return script(pipeline, traffic_of(plan, pipeline, fabric, devices))


def silent_script(plan: Plan) -> Script:
    """Return a plan whose slices send each other nothing, with the rest not sent, either: on any devices."""
    pipeline = _pipeline(plan, "all", synchronise=True)
    turns = {(Kind.LAST_SYNC, port, group): [Turn(0.0)] for port, group in _ports(pipeline)}
    tiles = [[0]] * len(pipeline.workers)
    return script(pipeline, Traffic(tiles, dict.fromkeys(_sent_bytes(plan, pipeline.lanes), 0.0), turns))


def silent_batch_s(plan: Plan, fabric: Fabric) -> float:
    """Return a batch on a network that takes no time, on which all devices are alike."""
    return time_per_batch_s(carry_out(silent_script(plan), fabric.topology, "none"))


def _pipeline(plan: Plan, tensors: Tensors, *, synchronise: bool) -> Pipeline:
    flat = plan.pipeline(tensors, synchronise=synchronise)
    pipeline = replace(flat, stages=tuple(replace(stage, operators=1) for stage in flat.stages))
    return replace(pipeline, batches=BATCHES) if pipeline.schedule == "2bw" else pipeline


def _ports(pipeline: Pipeline) -> Iterator[tuple[int, int]]:
    """Yield the resource and the group of every all-reduce of gradients."""
    yield from enumerate(synchronising_groups(pipeline), start=len(pipeline.workers))


def traffic_of(plan: Plan, pipeline: Pipeline, fabric: Fabric, devices: Devices) -> Traffic:
    """Return what a plan sends over a network."""
    fabric.topology.check_devices(plan.devices)
    lanes = pipeline.lanes
    tiles = [
        [device for lane in range(lanes) for device in devices[group][lane + replica * lanes]]
        for group, replica in pipeline.workers
    ]
    exchanges = _exchanges(plan, pipeline, devices, fabric)
    return Traffic(tiles, _sent_bytes(plan, lanes), {**exchanges, **_passes(plan, pipeline, devices, fabric)})


def consecutive_devices(plan: Plan) -> list[list[range]]:
    """Return the devices of every stage and replica as Megatron-LM numbers them."""
    found, next_one = [], 0
    for stage in plan.stages:
        starts = [next_one + replica * stage.tensor for replica in range(stage.data)]
        found.append([range(start, start + stage.tensor) for start in starts])
        next_one += stage.data * stage.tensor
    return found


def _sent_bytes(plan: Plan, lanes: int) -> dict[tuple[int, int], float]:
    """Return what comes to all slices of the next stage, each of which needs the whole tensor, and back."""
    found = {}
    for q, (stage, later) in enumerate(zip(plan.stages, plan.stages[1:], strict=False)):
        found[q, q + 1] = later.arriving_bytes * lanes * later.tensor
        found[q + 1, q] = stage.departing_bytes * lanes * stage.tensor
    return found


def _exchanges(
    plan: Plan, pipeline: Pipeline, devices: Devices, fabric: Fabric
) -> dict[tuple[Kind, int, int], Sequence[Turn]]:
    """Return the all-reduces of gradients, one for each slice of a stage at once."""
    found: dict[tuple[Kind, int, int], Sequence[Turn]] = {}
    for port, group in _ports(pipeline):
        slices = list(zip(*devices[group], strict=True))
        plans = [
            all_reduce(fabric.topology, by_node(members, fabric.node), plan.stages[group].weight_bytes)
            for members in slices
        ]
        found[Kind.LAST_SYNC, port, group] = [Turn(0.0, together(*plans))]
    return found


def _passes(
    plan: Plan, pipeline: Pipeline, devices: Devices, fabric: Fabric
) -> dict[tuple[Kind, int, int], Sequence[Turn]]:
    """Return the passes in which slices all-reduce after every share of the operators, in all lanes."""
    pieces = _pieces(plan)
    found: dict[tuple[Kind, int, int], Sequence[Turn]] = {}
    for worker, (group, replica) in enumerate(pipeline.workers):
        stage = plan.stages[group]
        members = devices[group][replica * pipeline.lanes : (replica + 1) * pipeline.lanes]
        for kind, use in PASSES.items():
            one = stage.passes[use]
            if one.reduced_bytes:
                count = min(stage.layers, pieces)
                size = one.reduced_bytes / count
                rings = (all_reduce(fabric.topology, by_node(m, fabric.node), size, 1) for m in members)
                charged_s = one.charged_s(stage.tensor, plan.charged_network)
                work = Turn((float(pipeline.column(f"{use}_s")[group]) - charged_s) / count)
                turns = [work, Turn(charged_s / count, beside=together(*rings))] * count
                found[kind, worker, group] = turns
    return found


def _pieces(plan: Plan) -> int:
    """Return how many shares a pass may have."""
    each = [
        LEGS * stage.tensor * sum(one.reduced_bytes > 0 for one in stage.passes.values())
        for stage in plan.stages
    ]
    return max(1, MOST // max(1, sum(each) * plan.microbatches))


def time_per_batch_s(carried: Carried) -> float:
    """Return the time per batch, without a flush that of the last one."""
    timeline = carried.timeline
    pipeline = timeline.pipeline
    if pipeline.schedule != "2bw":
        return timeline.time_s
    passed = timeline.passed_s(Kind.FORWARD, 0)
    return float(passed[-1] - passed[-1 - pipeline.lane_microbatches])
