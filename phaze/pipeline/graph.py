"""The event graph of a pipeline: which jobs there are, how long each takes and what each waits for.

A job waits for the job before it on its resource, and for jobs elsewhere: its predecessors, each with a delay
from that job's end, the time of the transfer between them. Delays are negative where a job may begin before
its predecessor is over (overlapped synchronisation).

Resources are the workers, then the input ports of the first group's workers, where data are fetched
ahead, then a synchronisation port for each group that synchronises: chunks share it, last chunk first.
"""

from dataclasses import dataclass

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
from phaze.pipeline.orders import Jobs, joined, own_microbatches, worker_jobs
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import Passes

PASS_BYTES = 190
"""Memory that the jobs of a microbatch in a stage take with their times, as measured."""
ANY_PASSES = 100_000
"""Passes that any machine has memory for, without looking."""


@dataclass(frozen=True, eq=False)
class EventGraph:
    """N jobs and what they wait for; predecessors of job i are entries [preceded[i], preceded[i + 1])."""

    jobs: Jobs
    duration_s: Floats
    """(N,)."""
    preceded: Ints
    """(N + 1,)."""
    predecessor: Ints
    delay_s: Floats
    """From the predecessor's end to the earliest start."""


@dataclass(frozen=True, eq=False)
class Join:
    """A job that waits for several, all with one delay."""

    job: int
    predecessors: Ints
    delay_s: float


def all_jobs(pipeline: Pipeline) -> Jobs:
    """Jobs of workers and ports in the schedule's order; PhazeError where memory cannot hold them."""
    refuse_endless(pipeline.lane_microbatches * pipeline.batches, len(pipeline.stages))
    return joined([*worker_jobs(pipeline), *_input_ports(pipeline), *_sync_ports(pipeline)])


def refuse_endless(microbatches: int, stages: int) -> None:
    """Raise PhazeError for more events than the memory of this machine holds."""
    if microbatches * stages < ANY_PASSES:
        return
    refuse_beyond_memory(
        float(PASS_BYTES * microbatches * stages),
        f"the events of {microbatches:,} microbatches in {stages:,} stages",
        "make the batch smaller, or the microbatches larger",
    )


def event_graph(pipeline: Pipeline, jobs: Jobs | None = None) -> EventGraph:
    """Graph of a pipeline; `jobs` in another order of execution than the schedule's, if given."""
    jobs = all_jobs(pipeline) if jobs is None else jobs
    sites = _sites(pipeline, jobs)
    single, delay = _single_predecessors(pipeline, jobs, sites)
    joins = _joins(pipeline, jobs)
    has = single >= 0
    second = _seconds_of_pairs(jobs)
    second = second[has[second]]
    sizes = [len(join.predecessors) for join in joins]
    many = np.repeat(np.array([join.job for join in joins], np.int64), sizes)
    waiting = np.concatenate([many, _firsts_of_pairs(jobs, second)])
    order = np.argsort(waiting, kind="stable")
    preceded = np.concatenate([[0], np.cumsum(has)])
    at = preceded[waiting[order]]
    others = np.concatenate([*(join.predecessors for join in joins), single[second]])[order]
    later = np.concatenate([np.repeat([join.delay_s for join in joins], sizes), delay[second]])[order]
    predecessor, delays = np.insert(single[has], at, others), np.insert(delay[has], at, later)
    preceded[1:] += np.cumsum(np.bincount(waiting, minlength=len(jobs)))
    return EventGraph(jobs, durations(pipeline)[jobs.kind, jobs.stage], preceded, predecessor, delays)


def fetches_ahead(pipeline: Pipeline) -> bool:
    """Data are fetched ahead, on ports of their own."""
    return (pipeline.fetch_s > 0 or pipeline.release_s > 0) and not fetches_on_worker(pipeline)


def synchronising_groups(pipeline: Pipeline) -> list[int]:
    """Device groups that have a synchronisation port."""
    if not pipeline.rules.trains:
        return []
    busy: list[int] = np.unique(pipeline.groups[pipeline.column("sync_s") > 0]).tolist()
    return busy


def _input_ports(pipeline: Pipeline) -> list[Passes]:
    """Fetches, a port for each worker of the first group."""
    if not fetches_ahead(pipeline):
        return []
    owned = [own_microbatches(pipeline, replica, 0) for replica in range(pipeline.replicas[0])]
    return [Passes(np.full(len(own), JobKind.FETCH), np.zeros(len(own), int), own) for own in owned]


def _sync_ports(pipeline: Pipeline) -> list[Passes]:
    """Synchronisations, a port for each group: batch by batch, the last chunk first."""
    ports = []
    syncs, early = pipeline.column("sync_s") > 0, pieces(pipeline) > 1
    for group in synchronising_groups(pipeline):
        chunks = [q for q in reversed(pipeline.stages_of(group).tolist()) if syncs[q]]
        pairs = [
            (k, q)
            for q in chunks
            for k in (JobKind.SYNC, JobKind.LAST_SYNC)
            if k == JobKind.LAST_SYNC or early[q]
        ]
        kinds, stages = np.array(pairs).T
        batches = np.arange(pipeline.batches)
        ports.append(
            Passes(np.tile(kinds, len(batches)), np.tile(stages, len(batches)), batches.repeat(len(pairs)))
        )
    return ports


def _sites(pipeline: Pipeline, jobs: Jobs) -> dict[JobKind, Ints]:
    """Index of each pass among the jobs by kind, (stages, microbatches), -1 where there is none.

    Gradients of the input are with the backward passes; the forward pass of a pair is over with the pair.
    """
    shape = (len(pipeline.stages), max(pipeline.lane_microbatches, 1) * pipeline.batches)
    sites = {}
    for kind in (JobKind.FETCH, JobKind.FORWARD, JobKind.BACKWARD, JobKind.LAST_SYNC):
        found = np.flatnonzero(goes_back(jobs.kind) if kind == JobKind.BACKWARD else jobs.kind == kind)
        sites[kind] = np.full(shape, -1, np.int64)
        sites[kind][jobs.stage[found], jobs.microbatch[found]] = found
    second = _seconds_of_pairs(jobs)
    first = _firsts_of_pairs(jobs, second)
    sites[JobKind.FORWARD][jobs.stage[first], jobs.microbatch[first]] = second
    return sites


def _seconds_of_pairs(jobs: Jobs) -> Ints:
    """Backward passes that are one job with the forward pass before them."""
    return np.flatnonzero(jobs.kind == JobKind.PAIRED_BACKWARD)


def _firsts_of_pairs(jobs: Jobs, second: Ints) -> Ints:
    """These forward passes; recomputation may stand between."""
    between = jobs.kind[second - 1] == JobKind.RECOMPUTE
    found: Ints = second - 1 - between
    return found


def _single_predecessors(pipeline: Pipeline, jobs: Jobs, sites: dict[JobKind, Ints]) -> tuple[Ints, Floats]:
    """One predecessor of every job, -1 without, and the delay after it."""
    single, delay = np.full(len(jobs), -1, np.int64), np.zeros(len(jobs))
    in_stream = np.arange(len(pipeline.stages)) % pipeline.stream
    activation, gradient = in_flight_s(pipeline)

    def link(which: Ints, kind: JobKind, step: int, lag: Floats) -> None:
        single[which] = sites[kind][jobs.stage[which] + step, jobs.microbatch[which]]
        delay[which] = lag

    forward = np.flatnonzero((jobs.kind == JobKind.FORWARD) & (in_stream[jobs.stage] > 0))
    link(forward, JobKind.FORWARD, -1, activation[jobs.stage[forward] - 1])
    if fetches_ahead(pipeline):
        link(
            np.flatnonzero((jobs.kind == JobKind.FORWARD) & (jobs.stage == 0)), JobKind.FETCH, 0, np.zeros(1)
        )
    waits = goes_back(jobs.kind) | ((jobs.kind == JobKind.RECOMPUTE) & (not pipeline.early_recompute))
    backward = np.flatnonzero(waits & (in_stream[jobs.stage] < pipeline.stream - 1))
    link(backward, JobKind.BACKWARD, 1, gradient[jobs.stage[backward]])
    link(np.flatnonzero(jobs.kind == JobKind.UPDATE), JobKind.LAST_SYNC, 0, np.zeros(1))
    if pipeline.release_s > 0:
        fetch = np.flatnonzero((jobs.kind == JobKind.FETCH) & (jobs.microbatch > 0))
        single[fetch] = sites[JobKind.FETCH][0, jobs.microbatch[fetch] - 1]
        delay[fetch] = pipeline.release_s - pipeline.fetch_s
    return single, delay


def _joins(pipeline: Pipeline, jobs: Jobs) -> list[Join]:
    """Jobs that wait for all replicas, in rising order."""
    passes, updates = last_passes(pipeline, jobs), _last(pipeline, jobs, jobs.kind == JobKind.UPDATE, 1)
    groups = np.array([group for group, _ in pipeline.workers])
    early = overlap_s(pipeline)
    joins: list[Join] = []
    for job in np.flatnonzero(jobs.kind >= JobKind.SYNC).tolist():
        kind, stage, batch = jobs.kind[job], int(jobs.stage[job]), int(jobs.microbatch[job])
        members = groups == pipeline.groups[stage]
        chunk = slice(stage // pipeline.depth, stage // pipeline.depth + 1)
        if kind == JobKind.SYNC:
            joins.append(Join(job, passes[members, chunk, batch].max(axis=1), -float(early[stage])))
        elif kind == JobKind.LAST_SYNC:
            of = chunk if pipeline.overlap_sync else slice(None)
            joins.append(Join(job, passes[members, of, batch].max(axis=1), 0.0))
        elif kind == JobKind.GATHER:
            joins.append(Join(job, updates[members, chunk, batch].max(axis=1), 0.0))
    return joins


def last_passes(pipeline: Pipeline, jobs: Jobs) -> Ints:
    """Each worker's last backward pass by chunk and batch, (workers, chunks, batches)."""
    return _last(pipeline, jobs, pipeline.rules.releases(jobs.kind), pipeline.lane_microbatches)


def _last(pipeline: Pipeline, jobs: Jobs, which: Bools, per_batch: int) -> Ints:
    found = np.flatnonzero(which)
    last = np.full((len(pipeline.workers), pipeline.chunks, pipeline.batches), -1, np.int64)
    where = (jobs.resource[found], jobs.stage[found] // pipeline.depth, jobs.microbatch[found] // per_batch)
    np.maximum.at(last, where, found)
    return last
