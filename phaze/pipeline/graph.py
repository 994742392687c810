"""Event graph of a pipeline: its jobs, their durations and their dependencies.

A job waits for the preceding job on its resource, and for predecessors on other resources. Each predecessor
has a delay from its end, the transfer time between the two. Delays are negative where a job may begin before
its predecessor ends (overlapped synchronisation).

Resources are the workers, then the input ports of the first group's workers, where data is prefetched, then a
synchronisation port for each group that synchronises. Chunks share the port, last chunk first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.room import refuse_beyond_memory
from phaze.pipeline.durations import (
    JobKind,
    durations,
    fetches_on_worker,
    goes_back,
    in_flight_s,
    overlap_s,
    pieces,
)
from phaze.pipeline.orders import Jobs, batch_jobs, joined, replica_microbatches, worker_jobs
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import Passes
from phaze.pipeline.stages import StageCost

PASS_BYTES = 190
"""Measured memory of one microbatch's jobs in one stage, with their times, in bytes."""
ANY_PASSES = 100_000
"""Number of passes below which the memory is not checked."""
MOST_KEPT = 32
"""Maximum number of cached graphs, for further pipelines with the same jobs."""


class Lag(IntEnum):
    """Causes of a delay between two jobs."""

    NONE = 0
    ACTIVATION = 1
    """Transfer of an activation from a stage to the next one."""
    GRADIENT = 2
    """Transfer of a gradient to a stage from the next one."""
    EARLY = 3
    """Negative delay of a synchronisation that overlaps with the last backward pass."""
    RELEASE = 4
    """Pause between two fetches."""


@dataclass(frozen=True, eq=False)
class EventGraph:
    """Jobs with durations and delays; the predecessors of job i are [preceded[i], preceded[i + 1])."""

    jobs: Jobs
    duration_s: Floats
    """Duration of each job, (N,)."""
    preceded: Ints
    """Index of each job's first predecessor, (N + 1,)."""
    predecessor: Ints
    delay_s: Floats
    """Delay from the predecessor's end to the earliest start."""
    lag: Ints
    """Cause and stage of each delay, as an index into `_lags_s`, (E,)."""

    def of(self, pipeline: Pipeline) -> EventGraph:
        """Same graph with the times of another pipeline that has the same jobs."""
        duration_s = durations(pipeline)[self.jobs.kind, self.jobs.stage]
        return replace(self, duration_s=duration_s, delay_s=_lags_s(pipeline)[self.lag])


@dataclass(frozen=True, eq=False)
class Join:
    """A job with several predecessors, all with the same kind of delay."""

    job: int
    predecessors: Ints
    lag: int


def all_jobs(pipeline: Pipeline) -> Jobs:
    """Jobs of workers and ports in the schedule's order; PhazeError if they do not fit in memory."""
    refuse_endless(pipeline.lane_microbatches * pipeline.batches, len(pipeline.stages))
    return joined([*worker_jobs(pipeline), *_input_ports(pipeline), *_sync_ports(pipeline)])


def refuse_endless(microbatches: int, stages: int) -> None:
    """Raise PhazeError if the events do not fit in this machine's memory."""
    if microbatches * stages < ANY_PASSES:
        return
    refuse_beyond_memory(
        float(PASS_BYTES * microbatches * stages),
        f"the events of {microbatches:,} microbatches in {stages:,} stages",
        "make the batch smaller, or the microbatches larger",
    )


def event_graph(pipeline: Pipeline, jobs: Jobs | None = None) -> EventGraph:
    """Build the event graph of a pipeline; `jobs` overrides the schedule's order of execution."""
    jobs = all_jobs(pipeline) if jobs is None else jobs
    sites = _sites(pipeline, jobs)
    # Nearly all jobs have at most one predecessor on another resource, found for all of them at once. The
    # further predecessors of the others are inserted next to it.
    single, lag = _single_predecessors(pipeline, jobs, sites)
    joins = _joins(pipeline, jobs)
    has = single >= 0
    second = _seconds_of_pairs(jobs)
    second = second[has[second]]
    sizes = [len(join.predecessors) for join in joins]
    many = np.repeat(np.array([join.job for join in joins], np.int64), sizes)
    # A pair begins when the inputs of both passes are there: the first also waits for the second's.
    waiting = np.concatenate([many, _firsts_of_pairs(jobs, second)])
    order = np.argsort(waiting, kind="stable")
    preceded = np.concatenate([[0], np.cumsum(has)])
    at = preceded[waiting[order]]
    others = np.concatenate([*(join.predecessors for join in joins), single[second]])[order]
    many_lags = np.repeat(np.array([join.lag for join in joins], np.int64), sizes)
    later = np.concatenate([many_lags, lag[second]])[order]
    predecessor, lags = np.insert(single[has], at, others), np.insert(lag[has], at, later)
    preceded[1:] += np.cumsum(np.bincount(waiting, minlength=len(jobs)))
    duration_s = durations(pipeline)[jobs.kind, jobs.stage]
    return EventGraph(jobs, duration_s, preceded, predecessor, _lags_s(pipeline)[lags], lags)


@lru_cache(maxsize=MOST_KEPT)
def kept_event_graph(shape: Pipeline) -> EventGraph:
    """Cached event graph for all pipelines of a shape (`shape_of`); its times are placeholders."""
    return event_graph(shape)


def shape_of(pipeline: Pipeline, *, recomputes: bool = False) -> Pipeline:
    """Reduce a pipeline to one lane with placeholder costs; `recomputes` makes all stages recompute.

    Jobs without duration do not affect other jobs. Pipelines whose jobs are a subset of the shape's therefore
    have the same times on its graph, except under schedules whose order depends on times (`by_times`).
    """
    # Any time > 0 makes a job exist, and two buckets make an early synchronisation.
    columns = _optional_jobs(pipeline, recomputes=recomputes).T.astype(float).tolist()
    return replace(
        pipeline,
        stages=tuple(
            StageCost(0.0, recompute_s=recompute, sync_s=sync, gather_s=gather, operators=1 + int(early))
            for recompute, sync, gather, early in columns
        ),
        microbatches=pipeline.lane_microbatches,
        data=pipeline.replicas if max(pipeline.replicas) > 1 else (),
        tensor=(),
    )


def graph_of(pipeline: Pipeline) -> EventGraph:
    """Event graph of a pipeline, whose jobs and dependencies are cached unless they depend on its times."""
    if pipeline.rules.by_times:
        return event_graph(pipeline)
    return kept_event_graph(shape_of(pipeline)).of(pipeline)


def _optional_jobs(pipeline: Pipeline, *, recomputes: bool = False) -> Bools:
    """Masks of stages with recompute, gradient synchronisation, weight gather and early synchronisation.

    The shape is (4, stages).
    """
    recompute, sync, gather = (pipeline.column(name) > 0 for name in ("recompute_s", "sync_s", "gather_s"))
    return np.array([recompute | recomputes, sync, gather, pieces(pipeline) > 1])


def has_jobs_of(pipeline: Pipeline, shape: Pipeline) -> bool:
    """True if a shape (`shape_of`) contains all jobs of a pipeline."""
    return bool((_optional_jobs(pipeline) <= _optional_jobs(shape)).all())


def _lags_s(pipeline: Pipeline) -> Floats:
    """Delay in seconds of each cause at each stage, (lags * stages,)."""
    lags_s = np.zeros((len(Lag), len(pipeline.stages)))
    lags_s[Lag.ACTIVATION, :-1], lags_s[Lag.GRADIENT, :-1] = in_flight_s(pipeline)
    lags_s[Lag.EARLY] = -overlap_s(pipeline)
    lags_s[Lag.RELEASE] = pipeline.release_s - pipeline.fetch_s
    return lags_s.ravel()


def fetches_ahead(pipeline: Pipeline) -> bool:
    """True if data is prefetched through separate input ports."""
    return (pipeline.fetch_s > 0 or pipeline.release_s > 0) and not fetches_on_worker(pipeline)


def synchronising_groups(pipeline: Pipeline) -> list[int]:
    """Device groups that have a synchronisation port."""
    if not pipeline.rules.trains:
        return []
    return list(map(int, np.unique(pipeline.groups[pipeline.column("sync_s") > 0])))


def _input_ports(pipeline: Pipeline) -> list[Passes]:
    """Fetch jobs by input port, one port for each worker of the first group."""
    if not fetches_ahead(pipeline):
        return []
    numbers = [replica_microbatches(pipeline, replica, 0) for replica in range(pipeline.replicas[0])]
    return [Passes(np.full(len(n), JobKind.FETCH), np.zeros(len(n), int), n) for n in numbers]


def _sync_ports(pipeline: Pipeline) -> list[Passes]:
    """Gradient synchronisation jobs of each group's port, by batch and from the last chunk to the first."""
    ports = []
    syncs, early = pipeline.column("sync_s") > 0, pieces(pipeline) > 1
    for group in synchronising_groups(pipeline):
        pairs = [
            (kind, q)
            for q in reversed(pipeline.stages_of(group).tolist())
            for kind in (JobKind.SYNC, JobKind.LAST_SYNC)
            if syncs[q] and (kind == JobKind.LAST_SYNC or early[q])
        ]
        ports.append(batch_jobs(pairs, pipeline.batches))
    return ports


def _sites(pipeline: Pipeline, jobs: Jobs) -> dict[JobKind, Ints]:
    """Job index of each pass, by kind, as arrays (stages, microbatches); -1 for missing passes.

    Input-gradient passes are stored as backward passes. A paired forward pass ends with its pair.
    """
    shape = (len(pipeline.stages), max(pipeline.lane_microbatches, 1) * pipeline.batches)
    sites = {}
    for kind in (JobKind.FETCH, JobKind.FORWARD, JobKind.BACKWARD, JobKind.LAST_SYNC):
        passes = np.flatnonzero(goes_back(jobs.kind) if kind == JobKind.BACKWARD else jobs.kind == kind)
        sites[kind] = np.full(shape, -1, np.int64)
        sites[kind][jobs.stage[passes], jobs.microbatch[passes]] = passes
    second = _seconds_of_pairs(jobs)
    first = _firsts_of_pairs(jobs, second)
    # What a paired forward pass sends is available when its pair is over.
    sites[JobKind.FORWARD][jobs.stage[first], jobs.microbatch[first]] = second
    return sites


def _seconds_of_pairs(jobs: Jobs) -> Ints:
    """Indices of the backward passes that are fused with the preceding forward pass."""
    return np.flatnonzero(jobs.kind == JobKind.PAIRED_BACKWARD)


def _firsts_of_pairs(jobs: Jobs, second: Ints) -> Ints:
    """Indices of the forward passes fused with backward passes `second`; recompute may be in between."""
    between = jobs.kind[second - 1] == JobKind.RECOMPUTE
    first: Ints = second - 1 - between
    return first


def _single_predecessors(pipeline: Pipeline, jobs: Jobs, sites: dict[JobKind, Ints]) -> tuple[Ints, Ints]:
    """One predecessor of each job, -1 if it has none, and the cause of the delay after it."""
    single, lag = np.full(len(jobs), -1, np.int64), np.zeros(len(jobs), np.int64)
    count = len(pipeline.stages)
    # The first stage of each model copy receives no activation, the last one no gradient.
    in_stream = np.arange(count) % pipeline.stream

    def link(which: Ints, kind: JobKind, step: int, why: Lag) -> None:
        single[which] = sites[kind][jobs.stage[which] + step, jobs.microbatch[which]]
        # Transfers are listed by boundary, whose index is that of the stage before it.
        lag[which] = why * count + jobs.stage[which] + min(step, 0)

    forward = np.flatnonzero((jobs.kind == JobKind.FORWARD) & (in_stream[jobs.stage] > 0))
    link(forward, JobKind.FORWARD, -1, Lag.ACTIVATION)
    if fetches_ahead(pipeline):
        link(np.flatnonzero((jobs.kind == JobKind.FORWARD) & (jobs.stage == 0)), JobKind.FETCH, 0, Lag.NONE)
    waits = goes_back(jobs.kind) | ((jobs.kind == JobKind.RECOMPUTE) & (not pipeline.early_recompute))
    backward = np.flatnonzero(waits & (in_stream[jobs.stage] < pipeline.stream - 1))
    link(backward, JobKind.BACKWARD, 1, Lag.GRADIENT)
    link(np.flatnonzero(jobs.kind == JobKind.UPDATE), JobKind.LAST_SYNC, 0, Lag.NONE)
    if pipeline.release_s > 0:
        fetch = np.flatnonzero((jobs.kind == JobKind.FETCH) & (jobs.microbatch > 0))
        single[fetch] = sites[JobKind.FETCH][0, jobs.microbatch[fetch] - 1]
        lag[fetch] = Lag.RELEASE * count
    return single, lag


def _joins(pipeline: Pipeline, jobs: Jobs) -> list[Join]:
    """Jobs that wait for all replicas, in ascending order."""
    passes = _last_jobs(pipeline, jobs, pipeline.rules.releases(jobs.kind), pipeline.lane_microbatches)
    updates = _last_jobs(pipeline, jobs, jobs.kind == JobKind.UPDATE, 1)
    groups = np.array([group for group, _ in pipeline.workers])
    joins: list[Join] = []
    members_of = {int(group): groups == group for group in np.unique(groups)}
    group_of = pipeline.groups.tolist()
    for job in np.flatnonzero(jobs.kind >= JobKind.SYNC).tolist():
        kind, stage, batch = int(jobs.kind[job]), int(jobs.stage[job]), int(jobs.microbatch[job])
        members = members_of[group_of[stage]]
        chunk = slice(stage // pipeline.depth, stage // pipeline.depth + 1)
        if kind == JobKind.SYNC:
            early = Lag.EARLY * len(pipeline.stages) + stage
            joins.append(Join(job, passes[members, chunk, batch].max(axis=1), early))
        elif kind == JobKind.LAST_SYNC:
            # Without overlap a synchronisation waits for the device's last backward pass of any chunk.
            chunks = chunk if pipeline.overlap_sync else slice(None)
            joins.append(Join(job, passes[members, chunks, batch].max(axis=1), Lag.NONE))
        elif kind == JobKind.GATHER:
            joins.append(Join(job, updates[members, chunk, batch].max(axis=1), Lag.NONE))
    return joins


def _last_jobs(pipeline: Pipeline, jobs: Jobs, which: Bools, per_batch: int) -> Ints:
    """Last job in a mask of each worker, by chunk and batch, (workers, chunks, batches)."""
    at = np.flatnonzero(which)
    last = np.full((len(pipeline.workers), pipeline.chunks, pipeline.batches), -1, np.int64)
    where = (jobs.resource[at], jobs.stage[at] // pipeline.depth, jobs.microbatch[at] // per_batch)
    # Jobs of a resource are in order of execution, so the highest index is the last job.
    np.maximum.at(last, where, at)
    return last
