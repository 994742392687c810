"""Pipeline as discrete events (PALM, IV.A, Figure 4), also on networks with contention.

Every worker, input port and synchronisation port is a SimPy process that takes its jobs in the schedule's
order. Tensors travel as separate processes over a `Machine`. Without contention the times equal those of the
longest path.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import simpy

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.pipeline.durations import BACKWARD_PASSES, JobKind, durations, in_flight_s, overlap_s
from phaze.pipeline.graph import EventGraph, all_jobs, event_graph, fetches_ahead
from phaze.pipeline.longest_path import ADVICE
from phaze.pipeline.orders import Jobs
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.timeline import Timeline
from tests.oracles.links import Idle, Machine, Process, Task, Transfer

Key = tuple[JobKind, int, int]
"""Kind, stage, and microbatch or batch of a job."""

Message = tuple[JobKind, int, int, int]
"""Job, and the replica that signals that it may start; 0 if only one does."""


class Done(NamedTuple):
    """Executed job."""

    kind: JobKind
    stage: int
    microbatch: int
    start_s: float
    end_s: float
    arrival_s: float


def simulate_events(pipeline: Pipeline, *, machine: Machine | None = None) -> Timeline:
    """Times of all events of a pipeline, with the contention of a machine.

    Raises `PhazeError` if jobs wait for each other.
    """
    run = _Run(pipeline, all_jobs(pipeline), machine or Idle())
    run.env.run()
    run.check()
    return run.timeline()


class _Run:
    """State of one simulation: sent tensors and finished jobs."""

    def __init__(self, pipeline: Pipeline, jobs: Jobs, machine: Machine) -> None:
        self.env = simpy.Environment()
        self.pipeline, self.jobs, self.machine = pipeline, jobs, machine
        self.seconds, self.early = durations(pipeline).tolist(), overlap_s(pipeline).tolist()
        self.activation, self.gradient = (border.tolist() for border in in_flight_s(pipeline))
        self.worker_of = {pair: worker for worker, pair in enumerate(pipeline.workers)}
        self.happened: defaultdict[Message, simpy.Event] = defaultdict(self.env.event)
        self.when: dict[Message, float] = {}
        self.done: list[list[Done]] = [[] for _ in range(len(jobs.first) - 1)]
        self.left = _passes_left(pipeline, jobs)
        self.pairs = dict(
            pair for resource in range(len(jobs.first) - 1) for pair in _pairs(list(self.keys(resource)))
        )
        """Forward passes by the backward passes with which they are paired."""
        self.seconds_of = {forward: backward for backward, forward in self.pairs.items()}
        for resource in range(len(jobs.first) - 1):
            self.env.process(self._in_order(resource))

    def keys(self, resource: int) -> Iterator[Key]:
        """Yield the jobs of a resource in the schedule's order."""
        span = slice(*self.jobs.first[resource : resource + 2])
        for kind, stage, microbatch in zip(
            self.jobs.kind[span].tolist(),
            self.jobs.stage[span].tolist(),
            self.jobs.microbatch[span].tolist(),
            strict=True,
        ):
            yield JobKind(kind), stage, microbatch

    def _in_order(self, resource: int) -> Process:
        """Run the jobs of a resource in the schedule's order."""
        for key in self.keys(resource):
            yield from self._execute(resource, key)

    def _execute(self, resource: int, key: Key) -> Process:
        """Wait for the inputs of a job, take its time, and notify waiting jobs."""
        kind, stage, microbatch = key
        arrival = 0.0
        for needed in self._needs(key):
            yield self.happened[needed]
            arrival = max(arrival, self.when[needed])
        start = self.env.now
        self._announce_start(resource, key)
        task = Task(kind, stage, resource, microbatch, self.seconds[kind][stage])
        yield from self.machine.perform(self.env, task)
        self.done[resource].append(Done(kind, stage, microbatch, start, self.env.now, arrival))
        self._announce_end(resource, key)

    def _needs(self, key: Key) -> list[Message]:
        """Return the events that must precede a job."""
        kind, stage, number = key
        if kind >= JobKind.SYNC and kind != JobKind.UPDATE:
            return [(*key, replica) for replica in range(self.pipeline.replicas[self._group(stage)])]
        if (kind == JobKind.RECOMPUTE and not self.pipeline.early_recompute) or kind in BACKWARD_PASSES:
            kind = JobKind.BACKWARD
        needed = [(kind, stage, number, 0)] if self._waits(kind, stage, number) else []
        second = self.seconds_of.get(key)
        return needed + (self._needs(second) if second else [])

    def _group(self, stage: int) -> int:
        return int(self.pipeline.groups[stage])

    def _waits(self, kind: JobKind, stage: int, number: int) -> bool:
        """True if a job of this kind waits for more than its resource."""
        place, last = stage % self.pipeline.stream, self.pipeline.stream - 1
        waits = {
            JobKind.FETCH: self.pipeline.release_s > 0 and number > 0,
            JobKind.FORWARD: place > 0 or fetches_ahead(self.pipeline),
            JobKind.BACKWARD: place < last,
            JobKind.UPDATE: self.pipeline.stages[stage].sync_s > 0,
        }
        return waits.get(kind, False)

    def _announce_start(self, resource: int, key: Key) -> None:
        """Notify jobs that may start some time after a job's start."""
        kind, stage, number = key
        if kind == JobKind.FETCH and self.pipeline.release_s > 0:
            self._later(self.pipeline.release_s, (JobKind.FETCH, 0, number + 1, 0))
        again = self.pipeline.stages[stage].recompute_s > 0 and not self.pipeline.early_recompute
        again = again and not self.pipeline.rules.splits
        batch = number // self.pipeline.lane_microbatches
        begins = kind == JobKind.RECOMPUTE if again else self.pipeline.rules.releases(np.array(kind))
        if self.pipeline.rules.trains and begins and self.left[resource, stage, batch] == 1:
            span = self.seconds[JobKind.BACKWARD if again else kind][stage]
            span += again * self.seconds[JobKind.RECOMPUTE][stage]
            message = JobKind.SYNC, stage, batch, self.pipeline.workers[resource][1]
            self._later(span - self.early[stage], message)

    def _announce_end(self, resource: int, key: Key) -> None:
        """Notify jobs that may start when a job ends."""
        kind, stage, number = key
        place, last = stage % self.pipeline.stream, self.pipeline.stream - 1
        if self.pipeline.rules.releases(np.array(kind)) and self.pipeline.rules.trains:
            self._count_backward(resource, stage, number // self.pipeline.lane_microbatches)
        if kind == JobKind.FETCH:
            self._tell((JobKind.FORWARD, 0, number, 0))
        elif kind == JobKind.FORWARD and place < last and key not in self.seconds_of:
            self._send(resource, key, stage + 1, self.activation[stage])
        elif kind in BACKWARD_PASSES and place > 0:
            self._send(resource, (JobKind.BACKWARD, stage, number), stage - 1, self.gradient[stage - 1])
        elif kind == JobKind.LAST_SYNC:
            for replica in range(self.pipeline.replicas[self._group(stage)]):
                self._tell((JobKind.UPDATE, stage, number, replica))
        elif kind == JobKind.UPDATE:
            self._tell((JobKind.GATHER, stage, number, self.pipeline.workers[resource][1]))
        if key in self.pairs:
            self._announce_paired(resource, self.pairs[key])

    def _announce_paired(self, resource: int, forward: Key) -> None:
        """Send the output of a paired forward pass when the pair has ended."""
        if forward[1] % self.pipeline.stream < self.pipeline.stream - 1:
            self._send(resource, forward, forward[1] + 1, self.activation[forward[1]])

    def _count_backward(self, worker: int, stage: int, batch: int) -> None:
        """Notify the synchronisation that a worker has finished a batch: this chunk, or all chunks."""
        group, replica = self.pipeline.workers[worker]
        self.left[worker, stage, batch] -= 1
        chunks = self.pipeline.stages_of(group).tolist()
        own = [stage] if self.pipeline.overlap_sync else chunks
        if not any(self.left[worker, q, batch] for q in own):
            for q in own:
                self._tell((JobKind.LAST_SYNC, q, batch, replica))

    def _holder(self, group: int, microbatch: int) -> int:
        """Return the worker of a group that has a microbatch."""
        return self.worker_of[group, microbatch % self.pipeline.replicas[group]]

    def _send(self, worker: int, key: Key, target: int, seconds: float) -> None:
        """Send an activation or gradient to the worker that has the microbatch at the target stage."""
        kind, stage, number = key
        receiver = self._holder(self._group(target), number)
        if self.pipeline.transfers == "occupying":
            self._tell((kind, target, number, 0))
            return
        transfer = Transfer(stage, target, worker, receiver, number, seconds)
        self.env.process(self._deliver(transfer, (kind, target, number, 0)))

    def _deliver(self, transfer: Transfer, message: Message) -> Process:
        """Notify the receiver of a tensor's arrival."""
        yield from self.machine.carry(self.env, transfer)
        self._tell(message)

    def _tell(self, message: Message) -> None:
        """Trigger an event now, and wake the worker that may wait for it."""
        self.when[message] = self.env.now
        self.happened[message].succeed()

    def _later(self, seconds: float, message: Message) -> None:
        """Trigger an event after some seconds."""

        def wait() -> Process:
            yield self.env.timeout(seconds)
            self._tell(message)

        self.env.process(wait())

    def check(self) -> None:
        """Raise `PhazeError` if jobs wait for each other."""
        done = sum(map(len, self.done))
        if done < len(self.jobs):
            raise PhazeError(
                f"pipeline: under {self.pipeline.schedule} with data {self.pipeline.data} only {done} of "
                f"{len(self.jobs)} jobs can run, the others wait for each other; {ADVICE}"
            )

    def timeline(self) -> Timeline:
        """Return the timeline, with jobs in the order of execution."""
        rows = np.array([row for rows in self.done for row in rows], np.float64)
        jobs = Jobs(
            rows[:, 0].astype(np.int8),
            rows[:, 1].astype(np.int32),
            rows[:, 2].astype(np.int32),
            self.jobs.first,
        )
        graph = event_graph(self.pipeline, jobs)
        start, end, arrival = rows[:, 3], rows[:, 4], rows[:, 5]
        # Where a job took as long as on an idle machine, that without the rounding of the clock.
        usual = np.isclose(end, start + graph.duration_s, rtol=1e-12, atol=0)
        duration = np.where(usual, graph.duration_s, end - start)
        return Timeline(self.pipeline, jobs, start, duration, arrival, _binding(end, graph))


def _passes_left(pipeline: Pipeline, jobs: Jobs) -> Counter[tuple[int, int, int]]:
    """Return the passes that end a microbatch by worker, stage and batch."""
    which = np.flatnonzero(pipeline.rules.releases(jobs.kind))
    batch = jobs.microbatch[which] // pipeline.lane_microbatches
    return Counter(
        zip(jobs.resource[which].tolist(), jobs.stage[which].tolist(), batch.tolist(), strict=True)
    )


def _pairs(keys: list[Key]) -> Iterator[tuple[Key, Key]]:
    """Yield the second halves of jobs of two passes, with their first halves, of one resource."""
    for place, key in enumerate(keys):
        if key[0] == JobKind.PAIRED_BACKWARD:
            yield key, next(k for k in reversed(keys[:place]) if k[0] == JobKind.FORWARD)


def _binding(end_s: Floats, graph: EventGraph) -> Ints:
    """Return for every job the predecessor that lets it start last, -1 without any."""
    binding = np.full(len(end_s), -1, np.int64)
    arrival = end_s[graph.predecessor] + graph.delay_s
    waiting = np.repeat(np.arange(len(end_s)), np.diff(graph.preceded))
    rising = np.argsort(arrival, kind="stable")
    binding[waiting[rising]] = graph.predecessor[rising]
    return binding
