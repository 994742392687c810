"""Schedules with one stage per device group and unsplit backward passes: gpipe, 1f1b, 2bw and similar.

Suffix sums s add the replicas d from a device group to the last. With equal replicas s/d is a stage's number
from the end.

Under 1f1b and 2bw a worker may have ceil(s/d) microbatches in flight (Piper, Section 3.5), where s is the sum
of the replicas from its stage to the last. If every d divides its s, this suffices for the rate of the
slowest stage. Otherwise a worker that fills its ceil(s/d) places before each backward pass may wait for late
forward passes, and delay other workers. 2bw then uses the windows of a periodic schedule: every stage repeats
its work for microbatch m + 1 one interval T after microbatch m. The schedule is the fastest one with at most
these places. With

    L_q    from the beginning of F(q, m) to the end of B(q, m)
    D_q    d_q T, after which a replica begins with its next microbatch
    F, B   time that passes occupy a replica, with recompute

passes of one replica do not collide if L_q is a multiple of D_q, or exceeds one by F + B or more. From the
last stage on, L_q is the least such number >= F_q + B_q + L_(q+1) + transfers. The window is the number of
microbatches that begin in that time, ceil(L_q/D_q). If T is the time of the slowest stage, max (F + B)/d,
windows can exceed ceil(s/d). The stage's stashes then do not suffice for Piper's time per sample, and the
smallest T for which they do is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.pipeline.durations import JobKind, durations, fetches_on_worker, in_flight_s
from phaze.pipeline.schedules.base import Passes, Schedule, turns

if TYPE_CHECKING:
    from phaze.pipeline.stages import PipelineStages

SAME = 1e-9
"""Relative difference below which intervals are equal."""

TRIALS = 64
"""Number of intervals tried before bisection for the smallest feasible one."""


def stashes(pipeline: PipelineStages) -> tuple[int, ...]:
    """Number of microbatches that each replica of a device group stashes, ceil(s/d)."""
    return tuple(-(-s // d) for s, d in zip(pipeline.suffixes, pipeline.replicas, strict=True))


def steady_windows(pipeline: PipelineStages) -> tuple[int, ...]:
    """In-flight microbatches (window) of each group at the smallest interval where none exceeds ceil(s/d)."""
    places = stashes(pipeline)
    if all(s % d == 0 for s, d in zip(pipeline.suffixes, pipeline.replicas, strict=True)):
        return places

    def fits(interval_s: float) -> bool:
        windows = windows_at(pipeline, interval_s)
        return all(w <= place for w, place in zip(windows, places, strict=True))

    least = slowest_s(pipeline)
    # At this interval a microbatch has left before the next one enters.
    most = float(_occupied(pipeline).sum() + _travel(pipeline).sum())
    if least <= 0 or fits(least):
        return windows_at(pipeline, least) if least > 0 else places
    trials = np.linspace(least, max(most, least), TRIALS).tolist()
    k = next((k for k, trial in enumerate(trials) if fits(trial)), len(trials) - 1)
    low, high = trials[max(k - 1, 0)], trials[k]
    while high - low > SAME * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return windows_at(pipeline, high)


def slowest_s(pipeline: PipelineStages) -> float:
    """Time per microbatch of a lane, bound by the slowest stage, max (F + B)/d."""
    return float((_occupied(pipeline) / np.array(pipeline.replicas)).max())


def windows_at(pipeline: PipelineStages, interval_s: float) -> tuple[int, ...]:
    """In-flight microbatches (window) of each group in a periodic schedule with the given interval."""
    load, spans = _occupied(pipeline).tolist(), _travel(pipeline).tolist()
    span, windows = 0.0, []
    for q in reversed(range(pipeline.depth)):
        period = pipeline.replicas[q] * interval_s
        span += load[q] + spans[q]
        window = floor(span / period + SAME)
        remainder = span - window * period
        # A span just above a multiple of the period would start a pass while the replica is busy: it is
        # extended by the missing part of the load.
        if remainder > SAME * period:
            remainder = load[q] if remainder < load[q] else remainder
            window += 1
            span = min((window - 1) * period + remainder, window * period)
        windows.append(window)
    return tuple(windows[::-1])


def _occupied(pipeline: PipelineStages) -> Floats:
    """Time that a microbatch occupies a replica of each stage, (stages,)."""
    table = durations(pipeline)
    load: Floats = table[[JobKind.FORWARD, JobKind.RECOMPUTE, JobKind.BACKWARD]].sum(axis=0)
    load[0] += pipeline.fetch_s * fetches_on_worker(pipeline)
    return load


def _travel(pipeline: PipelineStages) -> Floats:
    """Transfer time of a microbatch after each stage, activation plus gradient, (stages,)."""
    activation, gradient = in_flight_s(pipeline)
    return np.append(activation + gradient, 0.0)


class GPipe(Schedule):
    """All forward passes, then all backward passes in the same order (Huang et al., NeurIPS 2019)."""

    name = "gpipe"
    in_runs = True

    def places(self, pipeline: PipelineStages) -> Sequence[int]:
        """Maximum number of in-flight microbatches: all microbatches of the batch."""
        return (pipeline.lane_microbatches,) * pipeline.depth

    def order(self, pipeline: PipelineStages, group: int, microbatches: Ints) -> Passes:
        """Forward passes up to the in-flight maximum, then backward and forward alternate."""
        kind, number = turns(pipeline.in_flight[group], len(microbatches))
        return Passes(kind, np.full(len(kind), group), microbatches[number])

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """Lower bound on the batch time: a group waits until a microbatch has left all groups before it."""
        count = -(-microbatches // np.asarray(data))
        return float((np.cumsum(loads_s) - loads_s + count * loads_s).max())


class OneForwardOneBackward(GPipe):
    """1F1B: ceil(s/d) forward passes, then backward and forward alternate (Narayanan et al., SC 2021)."""

    name = "1f1b"

    def places(self, pipeline: PipelineStages) -> Sequence[int]:
        """In-flight microbatches: ceil(s/d), for s workers from this group to the last, and d in this one."""
        return stashes(pipeline)


class TwoBuffered(GPipe):
    """PipeDream-2BW: 1f1b over all batches without a flush between them, with two versions of the weights.

    Batch k + 2 is the first that uses the gradients of batch k (Narayanan et al., 2020, Section 3.1). Piper
    plans for this schedule (Figure 5).
    """

    name = "2bw"
    flushes = False
    by_times = True
    in_runs = False

    def problems(self, pipeline: PipelineStages) -> Iterator[str]:
        """Yield the reason that a batch has too few microbatches for two weight versions."""
        yield from super().problems(pipeline)
        least = pipeline.suffixes[0] if pipeline.batches > 1 else max(pipeline.replicas)
        if pipeline.microbatches % pipeline.lanes or pipeline.lane_microbatches < least:
            yield (
                f"microbatches under 2bw must be a multiple of {pipeline.lanes}, and at least "
                f"{least * pipeline.lanes} with data {pipeline.data or 1}, got {pipeline.microbatches}"
            )

    def places(self, pipeline: PipelineStages) -> Sequence[int]:
        """In-flight microbatches as under 1f1b, or fewer if some d does not divide its s."""
        return steady_windows(pipeline)

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """Lower bound on the batch time: the slowest stage sets the steady rate (Piper, Section 3.2)."""
        return float((loads_s / np.asarray(data)).max()) * microbatches


class LayerWise(OneForwardOneBackward):
    """Layer-wise schedule: a single stage processes one microbatch after the other (PALM, IV.A)."""

    name = "layer-wise"
    in_runs = False

    def problems(self, pipeline: PipelineStages) -> Iterator[str]:
        """Yield the reason that there is more than one stage."""
        yield from super().problems(pipeline)
        if pipeline.depth > 1:
            yield f"layer-wise has one stage, got {pipeline.depth}"


class Inference(GPipe):
    """Inference: forward passes only, one microbatch after the other."""

    name = "inference"
    trains = False
    flushes = False
    in_runs = False

    def order(self, _: PipelineStages, group: int, microbatches: Ints) -> Passes:
        """Forward passes in the order of the microbatches."""
        return Passes(
            np.full(len(microbatches), JobKind.FORWARD), np.full(len(microbatches), group), microbatches
        )
