"""Template of a pipeline's message plan: its jobs and the transfers of their tensors in order.

It does not depend on the devices of the pipeline, so one draft serves all mappings of a plan.
"""

import heapq
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.errors import PhazeError
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import EventGraph, event_graph
from phaze.pipeline.pipeline import Pipeline

Pair = tuple[int, int]
"""Pair of a sending and a receiving stage."""
Job = tuple[JobKind, int, int]
"""Job kind, resource index (workers, then ports) and stage."""


class TimedJob(NamedTuple):
    """Job that alternates between work and messages, as its traffic specifies (see `traffic.Turn`)."""

    job: Job


class Wait(NamedTuple):
    """Waiting time in a message plan: the duration of a job or a transfer delay, in seconds."""

    seconds: float


class SentTensor(NamedTuple):
    """A tensor sent from one worker to another."""

    pair: Pair
    worker: int
    to: int


Part = TimedJob | Wait | SentTensor


@dataclass(frozen=True, eq=False)
class Draft:
    """Template of a message plan: its parts in order, each with the earlier parts that it waits for."""

    graph: EventGraph
    distinct: tuple[Part, ...]
    part: Ints
    """Index into `distinct` of each part, (parts,)."""
    waits: Ints
    """Number of parts that each part waits for, (parts,)."""
    before: Ints
    """Indices of the parts that each part waits for, concatenated."""
    job: Ints
    """Index of the part of each job, (jobs,)."""
    arrivals: Ints
    """Index of the part after which the input of each graph edge is available."""


@lru_cache(maxsize=2)
def draft(pipeline: Pipeline, sent: frozenset[Pair], timed: frozenset[Job]) -> Draft:
    """Build the draft: stage pairs in `sent` send tensors, jobs in `timed` alternate work with messages."""
    writer = _Writer(event_graph(pipeline), sent, timed)
    for job in in_order(writer.graph):
        writer.write(job)
    return writer.draft()


class _Writer:
    """Builder of a draft."""

    def __init__(self, graph: EventGraph, sent: Collection[Pair], timed: Collection[Job]) -> None:
        self.graph, self.sent, self.timed = graph, sent, timed
        jobs = graph.jobs
        self.jobs: list[list[int]] = [column.tolist() for column in (jobs.kind, jobs.stage, jobs.resource)]
        self.begins = set(jobs.first[:-1].tolist())
        self.preceded = graph.preceded.tolist()
        self.predecessor: list[int] = graph.predecessor.tolist()
        self.delay: list[float] = graph.delay_s.tolist()
        self.duration: list[float] = graph.duration_s.tolist()
        self.job = [-1] * len(jobs)
        self.arrivals = [-1] * len(self.predecessor)
        self.part: list[int] = []
        self.after: list[list[int]] = []
        self.known: dict[Part, int] = {}
        self.there: dict[tuple[int, int], int] = {}
        """Part that sends a tensor, by sending job and receiving stage; several jobs may wait for it."""

    def write(self, job: int) -> None:
        """Append the transfers that a job waits for, then the job."""
        kind, stage, resource = (column[job] for column in self.jobs)
        before = [] if job in self.begins else [self.job[job - 1]]
        for edge in range(self.preceded[job], self.preceded[job + 1]):
            self.arrivals[edge] = self._arrival(edge, stage, resource)
            before.append(self.arrivals[edge])
        name = JobKind(kind), resource, stage
        part = TimedJob(name) if name in self.timed else Wait(self.duration[job])
        self.job[job] = self._append(part, before)

    def _arrival(self, edge: int, stage: int, resource: int) -> int:
        """Index of the part after which an edge's tensor is available to the receiving stage."""
        sender, delay = self.predecessor[edge], self.delay[edge]
        source, worker = self.jobs[1][sender], self.jobs[2][sender]
        if delay < 0:
            raise PhazeError("network: operators must be 1, nothing is sent before its job is over")
        pair = source, stage
        if source == stage or pair not in self.sent:
            return self._append(Wait(delay), [self.job[sender]]) if delay else self.job[sender]
        if (sender, stage) not in self.there:
            self.there[sender, stage] = self._append(SentTensor(pair, worker, resource), [self.job[sender]])
        return self.there[sender, stage]

    def _append(self, part: Part, before: list[int]) -> int:
        self.part.append(self.known.setdefault(part, len(self.known)))
        self.after.append(before)
        return len(self.part) - 1

    def draft(self) -> Draft:
        """Build the draft of all parts appended so far."""
        return Draft(
            self.graph,
            tuple(self.known),
            np.array(self.part, np.int64),
            np.array([len(before) for before in self.after], np.int64),
            np.array([other for before in self.after for other in before], np.int64),
            np.array(self.job, np.int64),
            np.array(self.arrivals, np.int64),
        )


def in_order(graph: EventGraph) -> list[int]:
    """Topological order of the jobs that alternates between resources."""
    jobs = graph.jobs
    follower = np.full(len(jobs), -1, np.int64)
    follower[:-1] = np.arange(1, len(jobs))
    follower[jobs.first[1:] - 1] = -1
    missing = np.diff(graph.preceded)
    missing = missing + 1
    missing[jobs.first[:-1]] -= 1
    waiting = np.repeat(np.arange(len(jobs)), np.diff(graph.preceded))
    order = np.argsort(graph.predecessor, kind="stable")
    begins = np.searchsorted(graph.predecessor[order], np.arange(len(jobs) + 1)).tolist()
    followers, left, after = waiting[order].tolist(), missing.tolist(), follower.tolist()
    depth = (np.arange(len(jobs)) - jobs.first[jobs.resource]).tolist()
    heap = [(depth[job], job) for job in range(len(jobs)) if not left[job]]
    heapq.heapify(heap)
    found = []
    while heap:
        _, job = heapq.heappop(heap)
        found.append(job)
        for other in (*followers[begins[job] : begins[job + 1]], *([after[job]] if after[job] >= 0 else [])):
            left[other] -= 1
            if not left[other]:
                heapq.heappush(heap, (depth[other], other))
    if len(found) < len(jobs):
        raise PhazeError(
            f"network: only {len(found)} of {len(jobs)} jobs can run, the others wait for each other"
        )
    return found
