"""The price of a plan on a machine: seconds of a batch, memory over time, and what binds.

Every plan is priced alike, whoever made it: a planner, or a user in a row of a table of runs. Layers bring
their seconds and bytes; here tensors between stages take what the network needs for them, gradients, weights
and optimizer states are shared as ZeRO says, and the schedule puts all of it in order.

A batch of a plan whose tensors are on their way while devices go on takes no less than the link of a device
needs for all that it carries in one direction: these tensors, the all-reduces of the slices of a replica,
whose time is in the passes, and the exchange between replicas. In the same way operators that run side by
side share the HBM: a pass takes no less than its HBM needs.

A tensor that skips stages is counted with the neighbour's; it left earlier, so that this is an upper bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.network.network import Flat, sent_bytes
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.steady import time_per_microbatch_s
from phaze.pipeline.timeline import RESOURCES, Bound, Step, Timeline
from phaze.plan.in_use import InUse, MemoryRange, in_use
from phaze.plan.plan import Machine, Pass, Plan, Stage
from phaze.plan.stage_costs import pipeline_of

BATCHES = 2
"""Batches that a timeline without flush shows."""
CLOSE = 1e-4
"""Relative error of times in the long run where tensors on their way make cycles of many microbatches."""

INSIDE = ("compute", "HBM", "all-reduces of slices")
"""What a pass spends time on: operators while the HBM rests, operators while it works, collectives."""
KERNELS = {
    "compute": "tensor cores",
    "vector": "vector cores",
    "global_buffer": "global buffer",
    "hbm": "HBM",
    "network": "collectives in layers",
    "kernel_start": "kernel starts",
    "host": "host",
}
"""The same where every kernel is known: what binds it, in words, in the order of `cost.kernels`."""
COMMUNICATION = (KERNELS["network"], "pipeline transfers", "gradient synchronisation")
"""Parts of device time in which devices only communicate."""


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
        """Sum of the three."""
        return self.slices + self.stages + self.replicas

    def over(self, seconds: float) -> LinkUse:
        """Seconds as shares of a time."""
        return LinkUse(self.slices / seconds, self.stages / seconds, self.replicas / seconds)


@dataclass(frozen=True)
class Memory:
    """Bytes that the tensors of a device have at its peak, what they are, and what is in use beside them."""

    peak_bytes: float
    weight_bytes: float
    """Weights and their gradients."""
    optimizer_bytes: float
    activation_bytes: float
    """Activations of the microbatches in flight, what the one at work needs beside them, and buffers of the
    framework."""
    recompute_bytes: float
    """Of it what the one at work needs: what is recomputed, keys and values of the whole sequence, gradients
    of activations, and weights that are shared otherwise."""
    in_use: InUse
    """Everything that is in use on the device, by part, each a range."""


@dataclass(frozen=True, eq=False)
class Price:
    """What a plan costs on a machine; use `price`."""

    plan: Plan
    machine: Machine

    @cached_property
    def pipeline(self) -> Pipeline:
        """Pipeline with all its communication."""
        return pipeline_of(self.plan, self.machine)

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of a batch with all its communication, or without a flush of two."""
        pipeline = self.pipeline
        return simulate(pipeline if self.plan.flushes else replace(pipeline, batches=BATCHES))

    @cached_property
    def batch_s(self) -> float:
        """Seconds of a batch by its events, without a flush in the long run."""
        return self.timeline.time_s if self.plan.flushes else batch_s(self.pipeline)

    @cached_property
    def time_s(self) -> float:
        """Seconds of a batch."""
        overlapped = self.plan.execution.transfers == "overlapped"
        return max(self.batch_s, self.link_s) if overlapped else self.batch_s

    @cached_property
    def alone_s(self) -> float:
        """The same if communication took no time."""
        return batch_s(replace(self.pipeline, stages=tuple(map(silent, self.pipeline.stages))))

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return self.plan.samples / self.time_s

    @cached_property
    def link_uses_s(self) -> tuple[LinkUse, ...]:
        """Seconds for which a device's link carries what, in one direction, by stage, a mean over replicas.

        In come activations and, from the stages behind, gradients; as much goes out the other way.
        All-reduces of slices and the exchange of gradients between replicas use the same link. Empty where
        a device has other links to others.
        """
        network = self.machine.network
        return (
            tuple(self._link_use(s, network) for s in self.plan.stages) if isinstance(network, Flat) else ()
        )

    def _link_use(self, stage: Stage, network: Flat) -> LinkUse:
        turns, bandwidth = self.plan.turns(stage), network.bandwidth_bytes_per_s
        return LinkUse(
            slices=sent_to_slices_bytes(stage) * turns / bandwidth,
            stages=(stage.arriving_bytes + stage.departing_bytes) * turns / bandwidth,
            replicas=network.seconds("all_reduce", stage.weight_bytes, stage.layout.group("dp-cp")),
        )

    @property
    def link_s(self) -> float:
        """Time for which the busiest link works for a batch in one direction."""
        return max((use.total for use in self.link_uses_s), default=0.0)

    @property
    def link_shares(self) -> tuple[LinkUse, ...]:
        """Share that a device's link carries in one direction of what it could, by stage."""
        return tuple(use.over(self.time_s) for use in self.link_uses_s)

    @property
    def link_share(self) -> float:
        """Share that links carry in one direction of what those of all devices could."""
        return self.mean([use.total for use in self.link_shares]) if self.link_uses_s else 0.0

    @property
    def memory_binds(self) -> bool:
        """Some pass takes longer because its operators share the HBM."""
        hbm, stages = self.machine.hbm_bytes_per_s, self.plan.stages
        return any(one.held_s(hbm) > one.seconds for stage in stages for one in stage.passes.values())

    @property
    def hbm_shares(self) -> tuple[float, ...]:
        """Share of what the HBM of a device could move that passes move, by stage."""
        moved = [sum(one.hbm_bytes for one in stage.passes.values()) for stage in self.plan.stages]
        turns, hbm = map(self.plan.turns, self.plan.stages), self.machine.hbm_bytes_per_s
        return tuple(nbytes * turn / hbm / self.time_s for nbytes, turn in zip(moved, turns, strict=True))

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Seconds of the passes of a device in a batch, by stage, on average over the replicas."""
        batch, hbm = self.plan.microbatches, self.machine.hbm_bytes_per_s
        return tuple(
            sum(one.held_s(hbm) for one in stage.passes.values()) * batch / stage.layout.dp
            for stage in self.plan.stages
        )

    def mean(self, by_stage: Sequence[float]) -> float:
        """Mean over all devices of what is known by stage."""
        return float(np.average(by_stage, weights=self.plan.group_devices))

    @property
    def compute_share(self) -> float:
        """Share of device time spent on passes."""
        return self.mean(self.busy_s) / self.time_s

    @property
    def exposed_share(self) -> float:
        """Share of the time that there would not be without communication."""
        return max(self.time_s - self.alone_s, 0.0) / self.time_s

    @cached_property
    def bound_by(self) -> Bound:
        """Resource with the largest part of the critical path, passes by what they spend it on."""
        return self.timeline.bound_among(self._spends)

    def _spends(self, step: Step) -> Mapping[str, float]:
        """Seconds of a step of the critical path by what they are spent on."""
        if step.use not in ("forward", "recompute", "backward"):
            return {RESOURCES[step.use]: step.seconds}
        stage = self.plan.stages[step.stage]
        return self._inside(stage, stage.passes[step.use], step.seconds)

    def _inside(self, stage: Stage, one: Pass, seconds: float) -> dict[str, float]:
        """Seconds in which a pass only works, works while the HBM does, and waits for all-reduces."""
        hbm = self.machine.hbm_bytes_per_s
        work_s = one.held_s(hbm) - (charged_s(self.plan, stage, one) if self.plan.claim else 0.0)
        hbm_s = min(one.hbm_bytes / hbm, work_s)
        return dict(zip(INSIDE, (work_s - hbm_s, hbm_s, max(seconds - work_s, 0.0)), strict=True))

    def _spent_s(self, stage: Stage) -> dict[str, float]:
        """Seconds of the passes of a microbatch by what they are spent on: kernels by what binds them."""
        if not stage.spent_s:
            hbm, passes = self.machine.hbm_bytes_per_s, stage.passes.values()
            parts = [self._inside(stage, one, one.held_s(hbm)) for one in passes]
            return {name: sum(part[name] for part in parts) for name in INSIDE}
        return dict(zip(KERNELS.values(), stage.spent_s, strict=True))

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of device time by use; passes by what they spend their seconds on."""
        pipeline, devices = self.timeline.pipeline, self.plan.devices
        found: dict[str, float] = defaultdict(float)
        exchanged = 0.0
        for q, stage in enumerate(self.plan.stages):
            group = pipeline.groups[q]
            lane = pipeline.lane_microbatches / pipeline.rules.streams
            passes = pipeline.batches * lane / pipeline.replicas[group]
            of_time = passes * self.plan.group_devices[group] / devices / self.timeline.time_s
            spent = self._spent_s(stage)
            for name, part_s in spent.items():
                found[name] += of_time * part_s
            # What replicas exchange in every pass (from ZeRO 2 on), as far as passes take longer for it.
            exchanged += of_time * max(_passes_s(pipeline.stages[q]) - sum(spent.values()), 0.0)
        uses = self.timeline.share_of
        return dict(found) | {
            "pipeline bubble": max(uses["bubble"], 0.0),
            "pipeline transfers": uses["transfer"],
            "gradient synchronisation": uses["synchronisation"] + exchanged,
            "optimizer step": uses["update"],
        }

    @property
    def peak_bytes(self) -> Floats:
        """Bytes that a device of each group holds at its peak, (p,)."""
        return self.timeline.peak_bytes

    @property
    def memory(self) -> Memory:
        """Memory of the fullest device."""
        return self.memory_of(int(np.argmax(self.peak_bytes)))

    def memory_of(self, group: int) -> Memory:
        """Memory of a device of a group."""
        own = [self.plan.stages[q] for q in self.pipeline.stages_of(group)]
        zero = own[0].layout.zero
        fixed = sum(stage.fixed_bytes for stage in own)
        kept = sum(
            (stage.weight_bytes - stage.frozen_bytes * (first == 2)) * stage.kept_share(shared=zero >= first)
            for first in (3, 2)
            for stage in own
        )
        peak = float(self.peak_bytes[group])
        work = max(stage.work_bytes for stage in own)
        made, copies = (max(getattr(stage, name) for stage in own) for name in ("made_bytes", "copies_bytes"))
        tensors = MemoryRange(peak - made, peak, peak + copies)
        tied = any(stage.tied_bytes > 0 for stage in own)
        used = in_use(tensors, work, own[0].layout, self.machine, tied=tied)
        return Memory(peak, kept, fixed - kept, peak - fixed, work, used)


def price(plan: Plan, machine: Machine) -> Price:
    """Price of a plan on a machine: use this."""
    return Price(plan, machine)


def charged_s(plan: Plan, stage: Stage, one: Pass) -> float:
    """Seconds of a pass that the planner charges for all-reduces of t slices."""
    charged = plan.claimed.network.seconds("all_reduce", one.reduced_bytes, stage.layout.group("tp"))
    return min(charged, one.seconds)


def sent_to_slices_bytes(stage: Stage) -> float:
    """Bytes that a device sends for one microbatch to the other slices of its replica."""
    reduced = np.array([one.reduced_bytes for one in stage.passes.values()])
    return float(sent_bytes("all_reduce", reduced, stage.layout.tp).sum())


def silent(stage: StageCost) -> StageCost:
    """A stage that sends nothing."""
    return replace(stage, send_activation_s=0.0, send_gradient_s=0.0, sync_s=0.0)


def batch_s(pipeline: Pipeline) -> float:
    """Seconds of a batch, without a flush in the long run."""
    if not pipeline.rules.flushes:
        repeats = 2 if pipeline.column("sync_s").any() else 12  # batches, or rounds of all replicas
        return time_per_microbatch_s(pipeline, CLOSE, repeats) * pipeline.microbatches
    return simulate(pipeline).time_s


def _passes_s(stage: StageCost) -> float:
    """Seconds of the passes of a microbatch, with all that is exchanged in them."""
    return stage.forward_s + stage.recompute_s + stage.backward_s
