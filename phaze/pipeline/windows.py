"""How many microbatches a worker holds without a flush, where replicas do not divide their suffix sums.

Under 1f1b and 2bw a worker has room for ceil(s/d) microbatches (Piper, Section 3.5), s the sum of the
replicas from its stage to the last. Where every d divides its s this is all that the rate of the slowest
stage needs. Where one does not, a worker that fills its ceil(s/d) places before each backward pass may wait
for forward passes that come late, and make others wait. 2bw then takes the windows of the fastest schedule in
which every stage does the same for microbatch m + 1 one interval T after microbatch m, and which has no more
places than that. With

    L_q    from the beginning of F(q, m) to the end of B(q, m)
    D_q    d_q T, after which a replica begins with its next microbatch
    F, B   how long passes occupy a replica, with recomputation

passes of one replica do not collide if L_q is a multiple of D_q, or exceeds one by F + B or more. From the
last stage on, L_q is the least such number >= F_q + B_q + L_(q+1) + transfers, and the window is the number
of microbatches that begin in that time, ceil(L_q/D_q). If T is the time of the slowest stage, max (F + B)/d,
windows can come out larger than ceil(s/d): then the stage's stashes do not suffice for Piper's time per
sample, and the smallest T for which they do is taken.
"""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Floats
from phaze.pipeline.durations import JobKind, durations, fetches_on_worker, in_flight_s

if TYPE_CHECKING:
    from phaze.pipeline.pipeline import Pipeline

SAME = 1e-9
"""Intervals that differ relatively by less are equal."""

TRIALS = 64
"""Intervals tried before the smallest that works is located by bisection."""


def stashes(pipeline: Pipeline) -> tuple[int, ...]:
    """ceil(s/d) of every device group."""
    return tuple(-(-s // d) for s, d in zip(pipeline.suffixes, pipeline.replicas, strict=True))


def steady_windows(pipeline: Pipeline) -> tuple[int, ...]:
    """Windows of every group at the smallest interval at which they are no larger than its ceil(s/d)."""
    places = stashes(pipeline)
    if all(s % d == 0 for s, d in zip(pipeline.suffixes, pipeline.replicas, strict=True)):
        return places

    def fits(interval_s: float) -> bool:
        windows = windows_at(pipeline, interval_s)
        return all(w <= place for w, place in zip(windows, places, strict=True))

    least = slowest_s(pipeline)
    # At this interval a microbatch has left before the next comes.
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


def slowest_s(pipeline: Pipeline) -> float:
    """Time per microbatch of a lane that the slowest stage allows, max (F + B)/d."""
    return float((_occupied(pipeline) / np.array(pipeline.replicas)).max())


def windows_at(pipeline: Pipeline, interval_s: float) -> tuple[int, ...]:
    """Windows of the schedule with microbatches at that interval."""
    load, spans = _occupied(pipeline).tolist(), _travel(pipeline).tolist()
    span, windows = 0.0, []
    for q in reversed(range(pipeline.depth)):
        period = pipeline.replicas[q] * interval_s
        span += load[q] + spans[q]
        whole = floor(span / period + SAME)
        rest = span - whole * period
        if rest > SAME * period:
            rest = load[q] if rest < load[q] else rest
            whole += 1
            span = min((whole - 1) * period + rest, whole * period)
        windows.append(whole)
    return tuple(windows[::-1])


def _occupied(pipeline: Pipeline) -> Floats:
    """Time for which a microbatch occupies a replica of every stage, (stages,)."""
    table = durations(pipeline)
    load: Floats = table[[JobKind.FORWARD, JobKind.RECOMPUTE, JobKind.BACKWARD]].sum(axis=0)
    load[0] += pipeline.fetch_s * fetches_on_worker(pipeline)
    return load


def _travel(pipeline: Pipeline) -> Floats:
    """Time for which a microbatch is under way behind every stage, there and back, (stages,)."""
    activation, gradient = in_flight_s(pipeline)
    return np.append(activation + gradient, 0.0)
