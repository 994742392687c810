"""A plan as the tables have it, and the pipelines that it becomes under more and less real assumptions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat, sent_bytes
from phaze.layout import Group
from phaze.pipeline.pipeline import Pipeline, Schedule, StageCost
from phaze.pipeline.timeline import Use
from phaze.plan.stage_work import StageWork

Tensors = Literal["within", "longest", "all"]
"""Where the time of tensors between stages is: within the passes as the planner charges it; on the way, as
long as the largest that enters the stage; on the way, one after the other on the link of the stage, while
operators share the HBM of their device as well."""

SCHEDULES: dict[str, Schedule] = {"1f1b": "1f1b", "gpipe": "gpipe", "2bw": "2bw"}


@dataclass(frozen=True)
class Pass:
    """A pass of one microbatch through a stage."""

    seconds: float
    hbm_bytes: float
    """Traffic of a device's HBM."""
    reduced_bytes: float
    """Tensors that the slices of a replica all-reduce, on each of them."""

    def held_s(self, hbm_bandwidth_bytes_per_s: float) -> float:
        """Return the seconds of the pass if its HBM, which operators share, takes longer than all of them."""
        return max(self.seconds, self.hbm_bytes / hbm_bandwidth_bytes_per_s)

    def charged_s(self, tensor: int, network: Flat) -> float:
        """Return what of the pass planners charge for all-reduces of t slices, in seconds."""
        return min(network.seconds("all_reduce", self.reduced_bytes, Group(tensor, 1)), self.seconds)


@dataclass(frozen=True)
class LinkUse:
    """What a device's link carries in one direction in a batch: in seconds, or of what it could carry."""

    slices: float
    """All-reduces between the slices of a replica (tensor parallelism)."""
    stages: float
    """Activations that come and gradients that come back (pipeline)."""
    replicas: float
    """Gradients that replicas exchange (data parallelism)."""

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.slices + self.stages + self.replicas

    def over(self, seconds: float) -> LinkUse:
        """Return seconds as shares of a time."""
        return LinkUse(self.slices / seconds, self.stages / seconds, self.replicas / seconds)


@dataclass(frozen=True)
class PlanStage(StageWork):
    """A stage as in table plan_stages."""

    first_layer: int
    last_layer: int
    data: int
    tensor: int
    time_per_sample_s: float

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return self.last_layer - self.first_layer + 1

    @property
    def compute_s(self) -> float:
        """Return the passes of one microbatch on a replica."""
        return sum(one.seconds for one in self.passes.values())

    @cached_property
    def passes(self) -> dict[Use, Pass]:
        """Return the passes of one microbatch on a replica."""
        return {
            "forward": Pass(self.forward_s, self.forward_hbm_bytes, self.forward_reduced_bytes),
            "recompute": Pass(self.recompute_s, self.recompute_hbm_bytes, self.recompute_reduced_bytes),
            "backward": Pass(self.backward_s, self.backward_hbm_bytes, self.backward_reduced_bytes),
        }

    @property
    def hbm_bytes(self) -> float:
        """Return the HBM traffic of a device for one microbatch."""
        return sum(one.hbm_bytes for one in self.passes.values())

    @property
    def sent_to_slices_bytes(self) -> float:
        """Return what a device sends for one microbatch to the other slices of its replica."""
        reduced = np.array([one.reduced_bytes for one in self.passes.values()])
        return float(sent_bytes("all_reduce", reduced, self.tensor).sum())

    def exchange_s(self, network: Flat) -> float:
        """Return the time to synchronise the gradients."""
        return network.seconds("all_reduce", self.weight_bytes, Group(self.data, self.tensor))


@dataclass(frozen=True)
class Plan:
    """A plan on a flat network."""

    stages: tuple[PlanStage, ...]
    schedule: Schedule
    microbatch: int
    microbatches: int
    """N, in a batch, over all replicas."""
    time_per_sample_s: float
    """The planner's."""
    sync_s: float
    """Of a batch's time, the exchange of gradients after it that the planner charges; 0 without a flush."""
    all_reduce_factor: float
    """What it charges an all-reduce in the passes, times (n - 1)/n of its tensor over the bandwidth."""
    bandwidth_bytes_per_s: float
    """Between any two devices."""
    hbm_bandwidth_bytes_per_s: float

    @property
    def network(self) -> Flat:
        """Return the network, whose links carry both directions at once."""
        return Flat(self.bandwidth_bytes_per_s)

    @property
    def charged_network(self) -> Flat:
        """Return the network as the planner charges all-reduces of slices."""
        return Flat(self.bandwidth_bytes_per_s, self.all_reduce_factor)

    @property
    def flushes(self) -> bool:
        """Return whether batches do not overlap."""
        return self.schedule != "2bw"

    @property
    def samples(self) -> int:
        """Return the samples of a batch."""
        return self.microbatch * self.microbatches

    @property
    def planned_s(self) -> float:
        """Return the planner's time per batch."""
        return self.time_per_sample_s * self.samples

    @property
    def data(self) -> tuple[int, ...]:
        """Return d of every stage."""
        return tuple(stage.data for stage in self.stages)

    @property
    def devices(self) -> int:
        """Return the devices of all stages and replicas."""
        return sum(stage.data * stage.tensor for stage in self.stages)

    @property
    def in_pipeline(self) -> int:
        """Return the microbatches of the fullest pipeline of a plan that flushes, ceil(N/d)."""
        return -(-self.microbatches // self.stages[0].data)

    @cached_property
    def loads_s(self) -> Floats:
        """Return what the planner charges for a microbatch on a replica, without synchronisation."""
        loads = np.array([s.time_per_sample_s * s.data for s in self.stages]) * self.microbatch
        if not self.flushes:
            loads -= np.array(self.data) * self.charged_sync_s / self.microbatches
        # What rounding leaves of the loads must not be less than the passes.
        compute: Floats = np.array([s.compute_s for s in self.stages])
        return np.where(loads > compute, loads, compute)

    @cached_property
    def charged_sync_s(self) -> Floats:
        """Return what Piper charges a batch for the gradients of every stage, 4 (d - 1)/d of its weights."""
        network = Flat(self.bandwidth_bytes_per_s, BOTH_DIRECTIONS)
        return np.array([s.exchange_s(network) for s in self.stages])

    @property
    def link_s(self) -> float:
        """Return how long the busiest link works for a batch in one direction."""
        return max(use.total for use in self.link_uses_s)

    @cached_property
    def link_uses_s(self) -> tuple[LinkUse, ...]:
        """Return what a device's link carries in one direction, for every stage, a mean over replicas.

        In come activations and, from the stages behind, gradients; as much goes out the other way.
        All-reduces of slices and the exchange of gradients between replicas use the same link.
        """
        return tuple(
            LinkUse(
                slices=stage.sent_to_slices_bytes * self._turns(stage) / self.bandwidth_bytes_per_s,
                stages=(stage.arriving_bytes + stage.departing_bytes)
                * self._turns(stage)
                / self.bandwidth_bytes_per_s,
                replicas=stage.exchange_s(self.network),
            )
            for stage in self.stages
        )

    @property
    def memory_binds(self) -> bool:
        """Return whether some pass takes longer because its operators share the HBM."""
        hbm = self.hbm_bandwidth_bytes_per_s
        return any(one.held_s(hbm) > one.seconds for stage in self.stages for one in stage.passes.values())

    @property
    def hbm_s(self) -> tuple[float, ...]:
        """Return how long the HBM of a device of every stage works for the passes of a batch."""
        return tuple(
            stage.hbm_bytes * self._turns(stage) / self.hbm_bandwidth_bytes_per_s for stage in self.stages
        )

    def _turns(self, stage: PlanStage) -> float:
        """Return the microbatches of a batch that a replica takes, on average."""
        return self.microbatches / stage.data

    def pipeline(self, tensors: Tensors, *, synchronise: bool) -> Pipeline:
        """Return the pipeline with what lies between the stages as said; gradients at 2 (d - 1)/d.

        Without a flush, gradients are synchronised while the next batch runs, which does not need them yet.
        """
        return Pipeline(
            tuple(self._stage(q, tensors, synchronise) for q in range(len(self.stages))),
            self.microbatches,
            self.schedule,
            data=self.data,
            tensor=tuple(stage.tensor for stage in self.stages),
            overlap_sync=not self.flushes,
            early_recompute=True,
        )

    def _stage(self, q: int, tensors: Tensors, synchronise: bool) -> StageCost:
        stage, within = self.stages[q], tensors == "within"
        before, after = self._waits(q) if within else (0.0, 0.0)
        forward_s, recompute_s, backward_s = self._passes_s(stage, tensors)
        activation, gradient = (0.0, 0.0) if within else self._passed_on(q, tensors)
        return StageCost(
            forward_s=forward_s + before,
            backward_s=backward_s + after,
            recompute_s=recompute_s,
            send_activation_s=activation,
            send_gradient_s=gradient,
            sync_s=stage.exchange_s(self.network) if synchronise else 0.0,
            operators=stage.layers,
            stash_bytes=stage.stash_bytes,
            work_bytes=stage.work_bytes,
            fixed_bytes=stage.fixed_bytes,
        )

    def _passes_s(self, stage: PlanStage, tensors: Tensors) -> list[float]:
        """Return the seconds of the passes; where all is shared, with the HBM that operators share."""
        if tensors == "all":
            return [one.held_s(self.hbm_bandwidth_bytes_per_s) for one in stage.passes.values()]
        return [one.seconds for one in stage.passes.values()]

    def _waits(self, q: int) -> tuple[float, float]:
        """Return what the planner charges for tensors, in the forward and in the backward pass.

        Piper charges an equal part to both; under Phaze the forward pass waits for what arrives.
        """
        stage = self.stages[q]
        charged = max(float(self.loads_s[q]) - stage.compute_s, 0.0)
        if not self.flushes:
            return charged / 2, charged / 2
        before = min(charged, stage.longest_arriving_bytes / self.bandwidth_bytes_per_s)
        return before, charged - before

    def _passed_on(self, q: int, tensors: Tensors) -> tuple[float, float]:
        """Return how long what the next stage needs is on its way, and the gradients for the one before."""
        sent, returned = 0.0, 0.0
        if q + 1 < len(self.stages):
            later = self.stages[q + 1]
            sent = later.arriving_bytes if tensors == "all" else later.longest_arriving_bytes
        if q > 0:
            earlier = self.stages[q - 1]
            returned = earlier.departing_bytes if tensors == "all" else earlier.longest_departing_bytes
        return sent / self.bandwidth_bytes_per_s, returned / self.bandwidth_bytes_per_s


def read_plan(row: Mapping[Hashable, object] | pd.Series, stages: pd.DataFrame) -> Plan:
    """Return a plan from its row in table plans and its rows in table plan_stages."""
    names = [field.name for field in fields(PlanStage)]
    rows = stages.sort_values("stage")[names].itertuples(index=False, name=None)
    return Plan(
        stages=tuple(PlanStage(*values) for values in rows),
        schedule=SCHEDULES[str(row["schedule"])],
        microbatch=int(str(row["microbatch"])),
        microbatches=int(str(row["microbatches"])),
        time_per_sample_s=float(str(row["time_per_sample_s"])),
        sync_s=float(str(row["sync_s"])),
        all_reduce_factor=float(str(row["all_reduce_factor"])),
        bandwidth_bytes_per_s=float(str(row["network_bandwidth_bytes_per_s"])),
        hbm_bandwidth_bytes_per_s=float(str(row["hbm_bandwidth_bytes_per_s"])),
    )
