"""A plan replayed, and its planner's time taken apart from the simulated one.

From the planner's time to the simulated one, one assumption after another gives way; what each changes is a
part of the difference, so that the parts sum to it.

- imbalance: a flushing planner takes (ceil(B/d) + s - 1) max load (Phaze, Appendix B); the ideal pipeline,
  PALM's equation (1), takes (ceil(B/d) - 1) max load + the sum of the loads.
- bubbles: passes in the schedule's order wait for each other more than in an ideal pipeline; without a
  flush, more than the slowest stage alone, where ceil(s/d) stashes are too few. A stage that recomputes
  does so while it waits for the gradient.
- transfers: planners charge tensors to the passes of the stages; simulated, they are on their way while
  devices go on, all that a stage needs at once, the longest deciding.
- synchronisation: planners with a flush charge the longest exchange of any stage, or that of the first, by
  their factor of an all-reduce; Piper charges every stage 4 (d - 1)/d of its weights. Simulated, each stage
  takes 2 (d - 1)/d, in both directions at the same time, after its last backward pass, so that what others
  still compute hides some of it, or without a flush during the next batch.
- contention: tensors that enter a stage share its link: their sum decides; and a batch takes no less than
  the link of a device needs for all that it carries in one direction (`Plan.link_s`): these tensors, the
  all-reduces of the slices of a replica, whose time is in the passes, and the exchange between replicas. In
  the same way operators that run side by side share the HBM: a pass takes no less than its HBM needs.

Otherwise what operators move between HBM and chip and what slices all-reduce is in the time of the passes;
how much of it that is, and what of a pass binds, is said beside (`INSIDE`).

A tensor that skips stages is counted with the neighbour's; it left earlier, so that this is an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.steady import ideal_time_s, time_per_microbatch_s
from phaze.pipeline.timeline import RESOURCES, Bound, Step, Timeline
from phaze.plan.plan import LinkUse, Plan
from phaze.tables import PARTS

BATCHES = 2
"""Batches that a timeline without flush shows."""

CLOSE = 1e-4
"""Relative error of times in the long run where tensors on their way make cycles of many microbatches."""

INSIDE = ("compute", "HBM", "all-reduces of slices")
"""What a pass spends time on: operators while the HBM rests, operators while it works, collectives."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A plan simulated."""

    plan: Plan
    parts: Mapping[str, float]
    """Seconds per batch, as in table simulations; they sum to simulated - planned."""
    simulated_s: float
    """Per batch, without a flush in the long run."""
    alone_s: float
    """The same if communication took no time."""

    @property
    def charged_s(self) -> float:
        """Return what the planner adds to its time for synchronisation."""
        return _charged_s(self.plan)

    @cached_property
    def timeline(self) -> Timeline:
        """Return the events: of a batch with all its communication, or without a flush of two."""
        return simulate(_repeated(self.plan.pipeline("all", synchronise=True)))

    @cached_property
    def bound_by(self) -> Bound:
        """Return the resource with the largest part of the critical path, passes by what they spend it on."""
        return self.timeline.bound_among(self._spends)

    def _spends(self, step: Step) -> Mapping[str, float]:
        """Return how long a step only works, works while the HBM does, and waits for all-reduces."""
        stage = self.plan.stages[step.stage]
        one = stage.passes.get(step.use)
        if one is None:
            return {RESOURCES[step.use]: step.seconds}
        whole_s = one.held_s(self.plan.hbm_bandwidth_bytes_per_s)
        work_s = whole_s - one.charged_s(stage.tensor, self.plan.charged_network)
        hbm_s = min(one.hbm_bytes / self.plan.hbm_bandwidth_bytes_per_s, work_s)
        waits_s = max(step.seconds - work_s, 0.0)
        return dict(zip(INSIDE, (work_s - hbm_s, hbm_s, waits_s), strict=True))

    @property
    def hbm_shares(self) -> tuple[float, ...]:
        """Return for every stage the share of what the HBM of a device could move that passes move."""
        return tuple(seconds / self.simulated_s for seconds in self.plan.hbm_s)

    @property
    def link_shares(self) -> tuple[LinkUse, ...]:
        """Return for every stage what a device's link carries in one direction, of what it could."""
        return tuple(use.over(self.simulated_s) for use in self.plan.link_uses_s)

    def mean(self, by_stage: Sequence[float]) -> float:
        """Return the mean over all devices of what is known by stage."""
        return float(np.average(by_stage, weights=[stage.data * stage.tensor for stage in self.plan.stages]))

    @property
    def samples_per_s(self) -> float:
        """Return the throughput."""
        return self.plan.samples / self.simulated_s

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Return for every stage the passes of a device in a batch, on average over the replicas."""
        batch, hbm = self.plan.microbatches, self.plan.hbm_bandwidth_bytes_per_s
        return tuple(
            sum(one.held_s(hbm) for one in stage.passes.values()) * batch / stage.data
            for stage in self.plan.stages
        )

    @property
    def compute_share(self) -> float:
        """Return the share of device time spent on passes."""
        return self.mean(self.busy_s) / self.simulated_s

    @property
    def exposed_share(self) -> float:
        """Return the share of the time that there would not be without communication."""
        return max(self.simulated_s - self.alone_s, 0.0) / self.simulated_s


def replay(plan: Plan) -> Replay:
    """Return what the simulation of a plan finds."""
    steps = _flushed(plan) if plan.flushes else _unflushed(plan)
    return Replay(plan, steps.parts(), steps.contended_s, steps.alone_s)


def assumed_s(plan: Plan) -> float:
    """Return the time per batch of a simulation that assumes what the planner does.

    With a flush all stages take as long as the slowest, and recompute when the gradient is there; without, a
    stage of d replicas is one that is d times as fast, and synchronises a part of its gradients with each
    microbatch.
    """
    within = plan.pipeline("within", synchronise=False)
    if plan.flushes:
        slowest = within.stages[int(np.argmax(plan.loads_s))]
        same = replace(within, stages=(slowest,) * len(plan.stages), early_recompute=False)
        return simulate(same).time_s + plan.sync_s
    shares = plan.charged_sync_s / plan.microbatches
    stages = tuple(
        _faster(stage, d, share)
        for stage, d, share in zip(within.stages, plan.data, shares.tolist(), strict=True)
    )
    single = Pipeline(stages, max(plan.microbatches, len(stages)), "2bw", early_recompute=True)
    return time_per_microbatch_s(single) * plan.microbatches


def _faster(stage: StageCost, data: int, share_s: float) -> StageCost:
    return StageCost(
        forward_s=stage.forward_s / data,
        backward_s=stage.backward_s / data + share_s,
        recompute_s=stage.recompute_s / data,
    )


@dataclass(frozen=True)
class _Steps:
    """Seconds per batch as one assumption after another gives way."""

    planned_s: float
    charged_s: float
    """Of it, what the planner adds for synchronisation."""
    ideal_s: float
    within_s: float
    on_the_way_s: float
    synchronised_s: float
    contended_s: float
    alone_s: float

    def parts(self) -> dict[str, float]:
        """Return what each step changes."""
        seconds = (
            self.ideal_s - (self.planned_s - self.charged_s),
            self.within_s - self.ideal_s,
            self.on_the_way_s - self.within_s,
            self.synchronised_s - self.on_the_way_s - self.charged_s,
            self.contended_s - self.synchronised_s,
        )
        return dict(zip(PARTS, seconds, strict=True))


def _charged_s(plan: Plan) -> float:
    if plan.flushes:
        return plan.sync_s
    return plan.planned_s - _slowest_s(plan)


def _slowest_s(plan: Plan) -> float:
    """Return the time per batch of the slowest stage."""
    return float((plan.loads_s / np.array(plan.data)).max()) * plan.microbatches


def _flushed(plan: Plan) -> _Steps:
    return _Steps(
        planned_s=plan.planned_s,
        charged_s=_charged_s(plan),
        ideal_s=ideal_time_s(plan.loads_s, 0.0, plan.in_pipeline),
        **_simulated(plan),
    )


def _unflushed(plan: Plan) -> _Steps:
    return _Steps(
        planned_s=plan.planned_s, charged_s=_charged_s(plan), ideal_s=_slowest_s(plan), **_simulated(plan)
    )


def _simulated(plan: Plan) -> dict[str, float]:
    within = plan.pipeline("within", synchronise=False)
    on_the_way = plan.pipeline("longest", synchronise=False)
    synchronised, contended = (plan.pipeline(tensors, synchronise=True) for tensors in ("longest", "all"))
    silent = replace(contended, stages=tuple(_silent(stage) for stage in contended.stages))
    synchronised_s = _time_s(synchronised)
    contended_s = synchronised_s if contended == synchronised else _time_s(contended)
    return {
        "within_s": _time_s(within),
        "on_the_way_s": _time_s(on_the_way),
        "synchronised_s": synchronised_s,
        "contended_s": max(contended_s, plan.link_s),
        "alone_s": _time_s(silent),
    }


def _silent(stage: StageCost) -> StageCost:
    return replace(stage, send_activation_s=0.0, send_gradient_s=0.0, sync_s=0.0)


def _time_s(pipeline: Pipeline) -> float:
    """Return the time per batch."""
    if pipeline.schedule == "2bw":
        repeats = 2 if pipeline.column("sync_s").any() else 12  # batches, or rounds of all replicas
        return time_per_microbatch_s(pipeline, CLOSE, repeats) * pipeline.microbatches
    return simulate(pipeline).time_s


def _repeated(pipeline: Pipeline) -> Pipeline:
    return replace(pipeline, batches=BATCHES) if pipeline.schedule == "2bw" else pipeline
