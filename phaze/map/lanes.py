"""Conversion of a training plan to the stages and replicas of a mapping problem.

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
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, lcm

from phaze.cost.network.network import sent_bytes
from phaze.plan.plan import Plan, Stage
from phaze.spec.stages import StoredMessage, StoredStage, StoredStages


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
        """Number of devices in all units."""
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
    """Bytes per microbatch between two tensor-parallel ranks of adjacent stages, as the mean of both passes.

    Each receiving rank needs the whole tensor. There are as many pairs as ranks in the wider group.
    """
    pairs = max(stage.layout.tp, later.layout.tp)
    forward, backward = later.arriving_bytes * later.layout.tp, stage.departing_bytes * stage.layout.tp
    return (forward + backward) / 2 / pairs
