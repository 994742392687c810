"""Steady-state time per microbatch of a pipeline.

Without a flush the event graph is periodic, and after some batches so are its times. The rate is measured
over whole periods after that. Set-up and drain are excluded (PALM, V.A.3, for inference).

Under 2bw the rate equals Piper's time per sample, max over stages of (compute + communication)/d, under three
conditions: transfers occupy the devices (Section 3.2 adds them to the load), every d divides its suffix sum
s, and nothing is done once per batch. If some d does not divide its s, ceil(s/d) in-flight microbatches may
be too few for that rate (`windows`). A synchronisation once per batch stops all replicas of a stage together,
which can cost more than its share of the load, 4 (d - 1)/d w / N. The simulation includes this cost.
"""

from dataclasses import replace
from math import lcm

from phaze.base.arrays import Floats
from phaze.pipeline.durations import JobKind
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline

LONGEST = 200_000
"""Number of microbatches after which the last measured rate is used, periodic or not."""


def time_per_microbatch_s(pipeline: Pipeline, tolerance: float = 1e-9, repeats: int = 12) -> float:
    """Steady-state time per microbatch over all lanes, in seconds; with a flush, the mean over one batch.

    Two consecutive spans agree within the tolerance, unless the pipeline takes very long to become periodic:
    a cycle of several periods fits into few spans. A span is `repeats` periods at first, more if necessary.
    """
    if pipeline.rules.flushes:
        return simulate(pipeline).time_s / pipeline.microbatches
    period = _period(pipeline)
    while True:
        passed = _passed_s(pipeline, 3 * repeats * period)
        span = repeats * period
        last, before = passed[-1] - passed[-1 - span], passed[-1 - span] - passed[-1 - 2 * span]
        if abs(last - before) <= tolerance * last or 3 * repeats * period > LONGEST:
            return float(last) / (span * pipeline.lanes)
        # A pipeline that is not yet periodic gives two spans that differ.
        repeats *= 2


def _period(pipeline: Pipeline) -> int:
    """Number of microbatches of a lane after which the event graph repeats."""
    repeated = lcm(*pipeline.replicas)
    if not pipeline.rules.trains or not _works_per_batch(pipeline):
        return repeated
    return lcm(repeated, pipeline.lane_microbatches)


def _works_per_batch(pipeline: Pipeline) -> bool:
    return any(pipeline.column(name).any() for name in ("sync_s", "update_s", "gather_s"))


def _passed_s(pipeline: Pipeline, least: int) -> Floats:
    """Times at which at least `least` microbatches pass a point where later microbatches cause no delay.

    In training the point is the entry of the first stage, where each microbatch waits for another to leave.
    In inference the first stage is not limited, so the point is the exit of the last stage.
    """
    if not pipeline.rules.trains:
        timeline = simulate(replace(pipeline, microbatches=(least + 1) * pipeline.lanes))
        return timeline.passed_s(JobKind.FORWARD, len(pipeline.stages) - 1)
    if _works_per_batch(pipeline):
        batches = -(-least // pipeline.lane_microbatches) + 1
        timeline = simulate(replace(pipeline, batches=batches))
    else:
        timeline = simulate(replace(pipeline, microbatches=(least + 1) * pipeline.lanes, batches=1))
    return timeline.passed_s(JobKind.FORWARD, 0)
