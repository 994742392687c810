"""The jobs of every worker in their order: the passes of its schedule, with what is done before and after.

Data_Fetch stands before a forward pass and recomputation before a backward pass. Weights are updated after a
batch's last backward pass; without a flush and with overlapped synchronisation, only when the batch after the
next needs them, because two versions of the weights exist (Narayanan et al., 2020, Section 3.1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Ints
from phaze.pipeline.durations import JobKind, fetches_on_worker, goes_back
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import Passes
from phaze.pipeline.schedules.base import ends_backward

Kinds = NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs by resource and in the order of their execution; N jobs on R resources, the workers first."""

    kind: Kinds
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    """From SYNC on the batch."""
    first: Ints
    """(R + 1,) where the jobs of each resource begin."""

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self.kind)

    @property
    def resource(self) -> Ints:
        """Resource of every job, (N,)."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def joined(resources: list[Passes]) -> Jobs:
    """Jobs of resources, one resource after the other."""
    return Jobs(
        np.concatenate([jobs.kind for jobs in resources]).astype(np.int8),
        np.concatenate([jobs.stage for jobs in resources]).astype(np.int32),
        np.concatenate([jobs.microbatch for jobs in resources]).astype(np.int32),
        np.cumsum([0, *(len(jobs.kind) for jobs in resources)]).astype(np.int64),
    )


def worker_jobs(pipeline: Pipeline) -> list[Passes]:
    """Jobs of every worker of a lane."""
    found = []
    for group, replica in pipeline.workers:
        own = own_microbatches(pipeline, replica, group)
        passes = pipeline.rules.order(pipeline, group, own)
        _check_complete(pipeline, len(own), passes)
        jobs = _with_preparations(pipeline, passes)
        found.append(_with_updates(pipeline, group, jobs) if pipeline.rules.trains else jobs)
    return found


def _check_complete(pipeline: Pipeline, own: int, passes: Passes) -> None:
    """Raise RuntimeError unless every microbatch passes each stage of a worker once, forward, then backward,
    and the gradients of weights last: a schedule that loses a pass would look fast.
    """
    kind, stage, microbatch = passes
    rules, count = pipeline.rules, own * pipeline.chunks // pipeline.rules.streams
    numbers = int(microbatch.max(initial=0)) + 1
    pairs = stage.astype(np.int64) * numbers + microbatch
    steps = [kind == JobKind.FORWARD]
    if rules.trains:
        steps += [goes_back(kind), ends_backward(kind)]
    places = np.full((len(steps), len(pipeline.stages) * numbers), -1)
    for place, step in zip(places, steps, strict=True):
        at = np.flatnonzero(step)
        place[pairs[at]] = at
    there = places >= 0
    right = (there == there[0]).all() and (np.diff(places, axis=0) >= 0).all()
    if not right or any(int(step.sum()) != count for step in (*steps, *there)):
        raise RuntimeError(f"schedule {rules.name} is not complete: {count} passes each way, got {passes}")


def own_microbatches(pipeline: Pipeline, replica: int, group: int) -> Ints:
    """Microbatches of a replica, numbered through all batches."""
    total = pipeline.lane_microbatches * pipeline.batches
    return np.arange(replica, total, pipeline.replicas[group], dtype=np.int64)


def _with_preparations(pipeline: Pipeline, passes: Passes) -> Passes:
    kind, stage, microbatch = passes
    again = goes_back(kind) & (pipeline.column("recompute_s") > 0)[stage]
    fetch = (kind == JobKind.FORWARD) & (stage == 0) & fetches_on_worker(pipeline)
    copies = 1 + again + fetch
    prepared = np.repeat(kind, copies)
    at = (np.cumsum(copies) - copies)[copies > 1]
    prepared[at] = np.where(fetch, JobKind.FETCH, JobKind.RECOMPUTE)[copies > 1]
    return Passes(prepared, np.repeat(stage, copies), np.repeat(microbatch, copies))


def _with_updates(pipeline: Pipeline, group: int, jobs: Passes) -> Passes:
    """Add the updates of every batch, later chunks first as their gradients are."""
    chunks = pipeline.stages_of(group).tolist()
    gathers = pipeline.column("gather_s") > 0
    pairs = [
        (kind, q)
        for q in reversed(chunks)
        for kind in (JobKind.UPDATE, JobKind.GATHER)
        if kind == JobKind.UPDATE or gathers[q]
    ]
    kinds, stages = np.array(pairs).T
    batches = np.arange(pipeline.batches)
    at = np.repeat(_update_places(pipeline, jobs), len(pairs))
    return Passes(
        np.insert(jobs.kind, at, np.tile(kinds, len(batches))),
        np.insert(jobs.stage, at, np.tile(stages, len(batches))),
        np.insert(jobs.microbatch, at, np.repeat(batches, len(pairs))),
    )


def _update_places(pipeline: Pipeline, jobs: Passes) -> Ints:
    """For every batch the index of the job before which its update is done."""
    batches = np.arange(pipeline.batches)
    batch = jobs.microbatch // pipeline.lane_microbatches
    if not pipeline.overlap_sync or pipeline.rules.flushes:
        last = np.flatnonzero(pipeline.rules.releases(jobs.kind))
        return last[np.searchsorted(batch[last], batches, side="right") - 1] + 1
    forward = np.flatnonzero(jobs.kind <= JobKind.FORWARD)
    next_use = np.searchsorted(batch[forward], batches + 2)
    return np.append(forward, len(jobs.kind))[next_use]
