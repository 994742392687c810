"""Price of a plan on a machine: time per batch, memory over time, and the bottleneck.

Every plan is priced the same way, whether it comes from a planner or from a row of a user's table of runs.
Layers have their seconds and bytes. The price adds the network time of tensors between stages, the sharding
of gradients, weights and optimizer states by ZeRO, and the order of the schedule.

If transfers overlap with compute, a batch takes at least as long as a device's link needs for the tensors
that it carries in one direction, and the exchange between replicas.

A tensor that skips stages is counted with the neighbour's. It left earlier, so this is an upper bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.network.network import Flat
from phaze.pipeline.graph import graph_of
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.steady import time_per_microbatch_s
from phaze.pipeline.timeline import RESOURCES, Bound, Step, Timeline
from phaze.plan.plan import Machine, Plan, Stage
from phaze.plan.pricing.stage_costs import pipeline_of
from phaze.plan.terms.memory import InUse, MemoryRange, in_use

BATCHES = 2
"""Number of batches in the timeline of a schedule without a flush."""
CLOSE = 1e-4
"""Allowed relative error of steady-state times if transfers form cycles over many microbatches."""

KERNELS = {
    "compute": "tensor cores",
    "vector": "vector cores",
    "global_buffer": "global buffer",
    "hbm": "HBM",
    "network": "collectives in layers",
    "kernel_start": "kernel starts",
    "host": "host",
}
"""Parts of a pass's time: limiting resources, in the order of `cost.kernels`."""
COMMUNICATION = (KERNELS["network"], "pipeline transfers", "gradient synchronisation")
"""Uses of device time that consist only of communication."""


@dataclass(frozen=True)
class Memory:
    """Peak memory of a device in bytes: its tensors by part, and the other memory in use."""

    peak_bytes: float
    weight_bytes: float
    """Weights and their gradients."""
    optimizer_bytes: float
    activation_bytes: float
    """Activations in flight, temporary memory of the current microbatch, and framework overhead."""
    recompute_bytes: float
    """Part of `activation_bytes` for the microbatch being processed.

    It consists of recomputed activations, keys and values of the whole sequence, gradients of activations,
    and gathered weights.
    """
    in_use: InUse
    """Ranges of all memory in use on the device, by part."""


@dataclass(frozen=True, eq=False)
class Price:
    """Time and memory of a plan on a machine; use `price` to create it."""

    plan: Plan
    machine: Machine

    @cached_property
    def pipeline(self) -> Pipeline:
        """Simulated pipeline of the plan, with all its communication."""
        return pipeline_of(self.plan, self.machine)

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of one batch with all communication; of several batches if the schedule has no flush."""
        pipeline = self.pipeline if self.plan.flushes else replace(self.pipeline, batches=BATCHES)
        return simulate(pipeline, graph_of(pipeline))

    @cached_property
    def batch_s(self) -> float:
        """Simulated time per batch in seconds; in steady state if the schedule has no flush."""
        return self.timeline.time_s if self.plan.flushes else batch_s(self.pipeline)

    @cached_property
    def time_s(self) -> float:
        """Time per batch in seconds; if transfers overlap, at least the time of the busiest link."""
        overlapped = self.plan.execution.transfers == "overlapped"
        return max(self.batch_s, self.link_s) if overlapped else self.batch_s

    @property
    def samples_per_s(self) -> float:
        """Throughput in samples per second."""
        return self.plan.samples / self.time_s

    @property
    def link_s(self) -> float:
        """Busy time per batch of the busiest link of a device in one direction, averaged over replicas.

        Activations arrive and, from later stages, gradients; the same amount leaves in the other direction.
        The exchange of gradients between replicas uses the same link. 0 for networks in which devices have
        several links.
        """
        network = self.machine.network
        if not isinstance(network, Flat):
            return 0.0
        return max(
            (stage.arriving_bytes + stage.departing_bytes)
            * self.plan.turns(stage)
            / network.bandwidth_bytes_per_s
            + network.seconds("all_reduce", stage.weight_bytes, stage.layout.group("dp-cp"))
            for stage in self.plan.stages
        )

    @cached_property
    def bound_by(self) -> Bound:
        """Resource with the largest share of the critical path; passes are split by limiting resource."""
        return self.timeline.bound_among(self._spends)

    def _spends(self, step: Step) -> Mapping[str, float]:
        """Break down the time of one step of the critical path by use, in seconds."""
        if step.use not in ("forward", "recompute", "backward"):
            return {RESOURCES[step.use]: step.seconds}
        spent_s = self._spent_s(self.plan.stages[step.stage])
        passes_s = sum(spent_s.values()) or 1.0  # 1: a stage whose kernels take no time
        return {name: step.seconds * part_s / passes_s for name, part_s in spent_s.items()}

    def _spent_s(self, stage: Stage) -> dict[str, float]:
        """Time of a microbatch's passes by limiting resource, in seconds."""
        return dict(zip(KERNELS.values(), stage.spent_s, strict=True))

    @cached_property
    def shares(self) -> dict[str, float]:
        """Fractions of device time by use, with passes broken down by their bottleneck."""
        pipeline, devices = self.timeline.pipeline, self.plan.devices
        share_of: dict[str, float] = defaultdict(float)
        exchanged = 0.0
        for q, stage in enumerate(self.plan.stages):
            group = pipeline.groups[q]
            lane = pipeline.lane_microbatches / pipeline.rules.streams
            passes = pipeline.batches * lane / pipeline.replicas[group]
            of_time = passes * self.plan.group_devices[group] / devices / self.timeline.time_s
            spent = self._spent_s(stage)
            for name, part_s in spent.items():
                share_of[name] += of_time * part_s
            # Exchange of replicas in every pass (from ZeRO 2 on) that makes passes longer.
            exchanged += of_time * max(_passes_s(pipeline.stages[q]) - sum(spent.values()), 0.0)
        uses = self.timeline.share_of
        return dict(share_of) | {
            "pipeline bubble": max(uses["bubble"], 0.0),
            "pipeline transfers": uses["transfer"],
            "gradient synchronisation": uses["synchronisation"] + exchanged,
            "optimizer step": uses["update"],
        }

    @property
    def peak_bytes(self) -> Floats:
        """Peak memory of a device of each pipeline rank in bytes, (p,)."""
        return self.timeline.peak_bytes

    @property
    def memory(self) -> Memory:
        """Memory of the device with the highest peak."""
        return self.memory_of(int(np.argmax(self.peak_bytes)))

    def memory_of(self, group: int) -> Memory:
        """Peak memory of a device of pipeline rank `group`, by part."""
        stages = [self.plan.stages[q] for q in self.pipeline.stages_of(group)]
        zero = stages[0].layout.zero
        fixed = sum(stage.fixed_bytes for stage in stages)
        sharded_bytes = sum(
            (stage.weight_bytes - stage.frozen_bytes * (first == 2))
            * stage.stored_share(shared=zero >= first)
            for first in (3, 2)
            for stage in stages
        )
        peak = float(self.peak_bytes[group])
        work = max(stage.work_bytes for stage in stages)
        made_bytes, copies = (
            max(getattr(stage, name) for stage in stages) for name in ("made_bytes", "copies_bytes")
        )
        tensors = MemoryRange(peak - made_bytes, peak, peak + copies)
        tied = any(stage.tied_bytes > 0 for stage in stages)
        used = in_use(tensors, work, stages[0].layout, self.machine, tied=tied)
        return Memory(peak, sharded_bytes, fixed - sharded_bytes, peak - fixed, work, used)


def price(plan: Plan, machine: Machine) -> Price:
    """Price a plan on a machine."""
    return Price(plan, machine)


def batch_s(pipeline: Pipeline) -> float:
    """Time per batch in seconds; in steady state if the schedule has no flush."""
    if not pipeline.rules.flushes:
        # Without a flush the rate of a steady state counts, not the time of one batch.
        repeats = 2 if pipeline.column("sync_s").any() else 12  # batches, or rounds of all replicas
        return time_per_microbatch_s(pipeline, CLOSE, repeats) * pipeline.microbatches
    return simulate(pipeline).time_s


def _passes_s(stage: StageCost) -> float:
    """Time of a microbatch's passes, including collectives inside them, in seconds."""
    return stage.forward_s + stage.recompute_s + stage.backward_s
