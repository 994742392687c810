"""Kinds of jobs, and their duration at each stage."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools, Floats

if TYPE_CHECKING:
    from phaze.pipeline.stages import PipelineStages


class JobKind(IntEnum):
    """Kind of a job on a worker or port: first the per-microbatch kinds, then the per-batch kinds."""

    FETCH = 0
    FORWARD = 1
    RECOMPUTE = 2
    BACKWARD = 3
    """Backward pass for the gradients of the input and of the weights."""
    PAIRED_BACKWARD = 4
    """Backward pass fused with the preceding forward pass into one job.

    Both begin when the inputs of both are available, and send their results when both are over."""
    INPUT_GRADIENT = 5
    """Backward pass for the input gradient only, if a schedule splits the backward pass."""
    WEIGHT_GRADIENT = 6
    SYNC = 7
    """Gradient synchronisation that can start before the last backward pass ends."""
    LAST_SYNC = 8
    """Synchronisation of the last gradient bucket, or of all gradients without overlap."""
    UPDATE = 9
    GATHER = 10


BACKWARD_PASSES = (JobKind.BACKWARD, JobKind.PAIRED_BACKWARD, JobKind.INPUT_GRADIENT)
"""Passes that wait for the gradient of a stage's output and compute the gradient of its input."""


def goes_back(kind: NDArray[np.integer]) -> Bools:
    """Mask of the jobs that compute the gradient of a stage's input."""
    return np.asarray((kind >= JobKind.BACKWARD) & (kind <= JobKind.INPUT_GRADIENT))


def durations(pipeline: PipelineStages) -> Floats:
    """Duration in seconds of each kind of job at each stage, (kinds, stages)."""
    table = np.zeros((len(JobKind), len(pipeline.stages)))
    parts = pieces(pipeline)
    table[JobKind.FETCH] = pipeline.fetch_s
    table[JobKind.FORWARD] = pipeline.column("forward_s")
    table[JobKind.RECOMPUTE] = pipeline.column("recompute_s")
    table[JobKind.BACKWARD] = table[JobKind.PAIRED_BACKWARD] = pipeline.column("backward_s")
    table[JobKind.WEIGHT_GRADIENT] = pipeline.column("weight_s")
    table[JobKind.INPUT_GRADIENT] = pipeline.column("backward_s") - pipeline.column("weight_s")
    # All buckets but the last are complete before the last backward pass ends.
    table[JobKind.SYNC] = pipeline.column("sync_s") * (parts - 1) / parts
    table[JobKind.LAST_SYNC] = pipeline.column("sync_s") / parts
    table[JobKind.UPDATE] = pipeline.column("update_s")
    table[JobKind.GATHER] = pipeline.column("gather_s")
    return table + occupied_s(pipeline)


def occupied_s(pipeline: PipelineStages) -> Floats:
    """Time that transfers occupy the device in each kind of job, in seconds, (kinds, stages)."""
    table = np.zeros((len(JobKind), len(pipeline.stages)))
    share = occupied_share(pipeline)
    if share:
        activation, gradient = (share * transfer_s for transfer_s in borders(pipeline))
        # A transfer occupies the stages on both sides of its boundary.
        table[JobKind.FORWARD, 1:] += activation
        table[JobKind.FORWARD, :-1] += activation
        for kind in BACKWARD_PASSES:
            table[kind, 1:] += gradient
            table[kind, :-1] += gradient
    return table


def occupied_share(pipeline: PipelineStages) -> float:
    """Share of a transfer that occupies its sender, and then its receiver."""
    return 1.0 if pipeline.transfers == "occupying" else pipeline.exposed_transfers


def in_flight_s(pipeline: PipelineStages) -> tuple[Floats, Floats]:
    """Transfer times of activations and gradients that occupy no device, by boundary, (stages - 1,) each."""
    activation, gradient = borders(pipeline)
    share = 1.0 - occupied_share(pipeline)
    return share * activation, share * gradient


def borders(pipeline: PipelineStages) -> tuple[Floats, Floats]:
    """Transfer time of an activation and of a gradient over each stage boundary, (stages - 1,) each.

    Transfers between stages of one device group take no time.
    """
    crosses = (np.diff(pipeline.groups) != 0).astype(np.float64)
    gradient = pipeline.column("send_gradient_s")[1:] * pipeline.rules.trains
    return pipeline.column("send_activation_s")[:-1] * crosses, gradient * crosses


def overlap_s(pipeline: PipelineStages) -> Floats:
    """Time from the first gradient bucket to the end of the last backward pass, (stages,)."""
    parts = pieces(pipeline)
    if pipeline.rules.splits:
        span = pipeline.column("weight_s")
    else:
        span = pipeline.column("backward_s")
        if not pipeline.early_recompute:
            span = span + pipeline.column("recompute_s")
    return span * (parts - 1) / parts


def pieces(pipeline: PipelineStages) -> Floats:
    """Number of gradient buckets of each stage, (stages,)."""
    operators = pipeline.column("operators")
    return operators if pipeline.overlap_sync else np.ones_like(operators)


def fetches_on_worker(pipeline: PipelineStages) -> bool:
    """True if Data_Fetch occupies the first stage."""
    return pipeline.transfers == "occupying" and pipeline.fetch_s > 0
