"""A plan as the stages that a mapping takes.

The pipelines of a plan, its lanes, run beside each other: there are as many as the greatest common divisor of
all data parallel widths d. A stage has m = d / lanes workers in each of them, between which its microbatches
go around; every worker is a stage of the mapping, every lane a replica. With equal widths m = 1, and the
stages are those of the plan.

What a worker does, sends and receives is the mean over the microbatches of its lane, an m-th of the stage's.
Two workers of following stages share every lcm(m, m')-th microbatch or none. All d replicas of a stage reduce
their gradients around one ring, 2 (d - 1)/d of the weights over each link; the rings of a mapping go through
the lanes of a worker, so that their gradients are scaled to send as much over each link.

The t devices of a tensor parallel group are a unit, on devices with consecutive numbers: for the mapping,
what they send each other is part of the passes, as planners charge it. A unit has as many devices as the
widest group; of a stage with a smaller one the last devices of each unit are idle.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, lcm

from phaze.cost.network.network import sent_bytes
from phaze.plan.plan import Plan, Stage
from phaze.spec.stages import StoredMessage, StoredStage, StoredStages


@dataclass(frozen=True)
class Lanes:
    """How the replicas of a plan lie in lanes."""

    count: int
    workers: tuple[tuple[int, int], ...]
    """Stage and number of every worker of a lane, in the order of the stages of the mapping."""
    unit: int
    """Devices that a worker is on."""

    @property
    def shape(self) -> tuple[int, int]:
        """Workers of a lane and the lanes: S and R of a mapping."""
        return len(self.workers), self.count

    @property
    def devices(self) -> int:
        """Devices of all units."""
        return len(self.workers) * self.count * self.unit


def lanes_of(plan: Plan) -> Lanes:
    """Lanes of a plan."""
    count = gcd(*plan.data)
    workers = ((q, worker) for q, d in enumerate(plan.data) for worker in range(d // count))
    return Lanes(count, tuple(workers), max(stage.layout.tp for stage in plan.stages))


def stored_stages(plan: Plan, model: str) -> StoredStages:
    """Stages of a plan in the format of mappings."""
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
    """Share of a tensor that a member sends to scatter it, (d - 1)/d; 1 for one alone, without a ring."""
    return sent_bytes("reduce_scatter", 1.0, members) if members > 1 else 1.0


def _messages(plan: Plan, lanes: Lanes) -> Iterator[StoredMessage]:
    """Messages of a microbatch from workers to those of the next stage."""
    first = [lanes.workers.index((q, 0)) for q in range(len(plan.stages))]
    for q, (stage, later) in enumerate(zip(plan.stages, plan.stages[1:], strict=False)):
        a, b = stage.layout.dp // lanes.count, later.layout.dp // lanes.count
        size = between_slices_bytes(stage, later) / lcm(a, b)
        for i in range(a):
            for j in range(i % gcd(a, b), b, gcd(a, b)):
                yield StoredMessage(source=first[q] + i, target=first[q + 1] + j, bytes=size)


def between_slices_bytes(stage: Stage, later: Stage) -> float:
    """Bytes that a pair of slices passes for a microbatch, the mean of forward and backward.

    Every slice of the stage that receives needs the whole tensor; the wider group has one pair a slice.
    """
    pairs = max(stage.layout.tp, later.layout.tp)
    forward, backward = later.arriving_bytes * later.layout.tp, stage.departing_bytes * stage.layout.tp
    return (forward + backward) / 2 / pairs
