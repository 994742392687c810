"""Jobs of each worker in order: the passes of its schedule, data fetches, recomputes and updates.

Data_Fetch precedes a forward pass, and recompute a backward pass. Weights are updated after a batch's last
backward pass. Without a flush and with overlapped synchronisation, they are updated only when the batch after
the next needs them, because two versions of the weights exist (Narayanan et al., 2020, Section 3.1).
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
    """N jobs on R resources, by resource and in order of execution; workers come first."""

    kind: Kinds
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    """Microbatch index of each job; for SYNC and later kinds the index of the batch."""
    first: Ints
    """Offset of each resource's jobs, (R + 1,)."""

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self.kind)

    @property
    def resource(self) -> Ints:
        """Index of each job's resource, (N,)."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def joined(resources: list[Passes]) -> Jobs:
    """Concatenate the jobs of all resources."""
    kind, stage, microbatch = map(np.concatenate, zip(*resources, strict=True))
    first = np.cumsum([0, *(len(jobs.kind) for jobs in resources)]).astype(np.int64)
    return Jobs(kind.astype(np.int8), stage.astype(np.int32), microbatch.astype(np.int32), first)


def worker_jobs(pipeline: Pipeline) -> list[Passes]:
    """Jobs of each worker of a lane, in order of execution."""
    by_worker = []
    for group, replica in pipeline.workers:
        microbatches = replica_microbatches(pipeline, replica, group)
        passes = pipeline.rules.order(pipeline, group, microbatches)
        _check_complete(pipeline, len(microbatches), passes)
        jobs = _with_preparations(pipeline, passes)
        by_worker.append(_with_updates(pipeline, group, jobs) if pipeline.rules.trains else jobs)
    return by_worker


def _check_complete(pipeline: Pipeline, microbatch_count: int, passes: Passes) -> None:
    """Raise RuntimeError unless a worker runs every pass exactly once and in a valid order.

    Every microbatch must pass each stage once, forward, then backward, with the weight gradients last. A lost
    pass would make a schedule look fast.
    """
    kind, stage, microbatch = passes
    rules, count = pipeline.rules, microbatch_count * pipeline.chunks // pipeline.rules.streams
    numbers = int(microbatch.max(initial=0)) + 1
    pairs = stage.astype(np.int64) * numbers + microbatch
    steps = [kind == JobKind.FORWARD]
    if rules.trains:
        steps += [goes_back(kind), ends_backward(kind)]
    places = np.full((len(steps), len(pipeline.stages) * numbers), -1)
    for place, step in zip(places, steps, strict=True):
        at = np.flatnonzero(step)
        place[pairs[at]] = at
    present = places >= 0
    # An unsplit backward pass is both of the last two steps, at one place, hence >= and not >.
    ordered = (present == present[0]).all() and (np.diff(places, axis=0) >= 0).all()
    if not ordered or any(int(step.sum()) != count for step in (*steps, *present)):
        raise RuntimeError(f"schedule {rules.name} is not complete: {count} passes each way, got {passes}")


def replica_microbatches(pipeline: Pipeline, replica: int, group: int) -> Ints:
    """Microbatches of a replica, numbered across all batches."""
    total = pipeline.lane_microbatches * pipeline.batches
    return np.arange(replica, total, pipeline.replicas[group], dtype=np.int64)


def _with_preparations(pipeline: Pipeline, passes: Passes) -> Passes:
    kind, stage, microbatch = passes
    recompute = goes_back(kind) & (pipeline.column("recompute_s") > 0)[stage]
    fetch = (kind == JobKind.FORWARD) & (stage == 0) & fetches_on_worker(pipeline)
    # At most one preparation precedes a job: the two are for passes of opposite directions.
    copies = 1 + recompute + fetch
    prepared = np.repeat(kind, copies)
    at = (np.cumsum(copies) - copies)[copies > 1]
    prepared[at] = np.where(fetch, JobKind.FETCH, JobKind.RECOMPUTE)[copies > 1]
    return Passes(prepared, np.repeat(stage, copies), np.repeat(microbatch, copies))


def _with_updates(pipeline: Pipeline, group: int, jobs: Passes) -> Passes:
    """Insert the weight updates of each batch in the order of their gradients: later chunks first."""
    gathers = pipeline.column("gather_s") > 0
    pairs = [
        (kind, q)
        for q in reversed(pipeline.stages_of(group).tolist())
        for kind in (JobKind.UPDATE, JobKind.GATHER)
        if kind == JobKind.UPDATE or gathers[q]
    ]
    at = np.repeat(_update_places(pipeline, jobs), len(pairs))
    updates = batch_jobs(pairs, pipeline.batches)
    return Passes(*(np.insert(column, at, update) for column, update in zip(jobs, updates, strict=True)))


def batch_jobs(pairs: list[tuple[JobKind, int]], batches: int) -> Passes:
    """Jobs that are done once per batch, given their kinds and stages in order."""
    kinds, stages = np.array(pairs).T
    return Passes(np.tile(kinds, batches), np.tile(stages, batches), np.arange(batches).repeat(len(pairs)))


def _update_places(pipeline: Pipeline, jobs: Passes) -> Ints:
    """Index of the job before which each batch's update is inserted."""
    batches = np.arange(pipeline.batches)
    batch = jobs.microbatch // pipeline.lane_microbatches
    if not pipeline.overlap_sync or pipeline.rules.flushes:
        last = np.flatnonzero(pipeline.rules.releases(jobs.kind))
        return last[np.searchsorted(batch[last], batches, side="right") - 1] + 1
    forward = np.flatnonzero(jobs.kind <= JobKind.FORWARD)
    # Batch k + 2 is the first that uses the gradients of batch k (two versions of the weights).
    next_use = np.searchsorted(batch[forward], batches + 2)
    return np.append(forward, len(jobs.kind))[next_use]
