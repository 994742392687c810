"""A pipeline with everything that it sends, as one plan of messages in the order of its schedule.

Every job of the pipeline is a message that stays where it is and takes the job's seconds; it waits for the
job before it on its resource, and for the tensors and jobs that it needs. Tensors between stages, and what a
job sends while the devices of its worker wait, are messages over links. The same plan is carried out with
links that exclude each other (contention), with links that carry all that comes at once (none), and with
nothing sent (the work alone), so that the three times differ by what is named and by nothing else.

Where `NetworkMachine` starts what a job sends together with the job, here work and messages follow each other
in turns, as a layer's products and all-reduces do.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from phaze.errors import PhazeError
from phaze.ndarrays import Floats, Ints
from phaze.simulate.durations import Kind
from phaze.simulate.graph import EventGraph, event_graph
from phaze.simulate.network.compiled import Columns, carry, columns
from phaze.simulate.network.delivery import Contention
from phaze.simulate.network.machine import passing
from phaze.simulate.network.messages import Message, Plan
from phaze.simulate.network.topology import Switching, Topology
from phaze.simulate.pipeline import Pipeline
from phaze.simulate.timeline import Timeline


class Turn(NamedTuple):
    """Work of all devices of a worker, and what they send after it."""

    seconds: float
    plan: Plan = ()
    beside: Plan = ()
    """What they send or fetch from the beginning of the work on; the work is not over before."""


@dataclass(frozen=True)
class Traffic:
    """What a pipeline sends."""

    tiles: Sequence[Sequence[int]]
    """Nodes of every worker."""
    sent_bytes: Mapping[tuple[int, int], float]
    """Bytes of the tensor from a stage to a neighbour, of all nodes of a worker in equal shares."""
    turns: Mapping[tuple[Kind, int, int], Sequence[Turn]] = field(default_factory=dict)
    """Of jobs by kind, resource (workers, then ports) and stage, instead of the pipeline's seconds."""


@dataclass(frozen=True, eq=False)
class Carried:
    """A pipeline that has been carried out over a network."""

    timeline: Timeline
    topology: Topology
    busy_s: Floats
    """Seconds for which every resource of the network was held, (resources,); 0 without contention."""
    link_bytes: Floats
    """Bytes over every link, (links,)."""
    sent_bytes: Floats
    """Bytes that every node sent, (nodes,)."""
    received_bytes: Floats
    work_s: Floats
    """Seconds of work of every resource of the pipeline, without what it sends."""

    @property
    def time_s(self) -> float:
        """Return when the last job is over."""
        return self.timeline.time_s

    @cached_property
    def utilisation(self) -> Floats:
        """Return the bytes over every link as a share of what it could have carried, (links,)."""
        width = np.array([link.bandwidth_bytes_per_s for link in self.topology.links])
        return self.link_bytes / (width * self.time_s) if self.time_s else np.zeros_like(width)


@dataclass(frozen=True, eq=False)
class Script:
    """A pipeline as messages, and where its jobs are among them."""

    pipeline: Pipeline
    graph: EventGraph
    plan: Columns
    first: Ints
    """First message of every job, (N,): it arrives when the job starts."""
    last: Ints
    """Last message of every job, (N,): it arrives when the job is over."""
    senders: Ints
    """Jobs that others wait for, by edge of the graph."""
    arrivals: Ints
    """The message with which each edge is there."""
    work_s: Floats


def script(pipeline: Pipeline, traffic: Traffic) -> Script:
    """Return a pipeline with all that it sends; raises `PhazeError` where that has no place in its graph."""
    graph = event_graph(pipeline)
    writer = _Writer(pipeline, traffic, graph)
    for job in _in_order(graph):
        writer.write(job)
    return writer.script()


def carry_out(
    found: Script, topology: Topology, contention: Contention = "arrival", switching: Switching = "pipelined"
) -> Carried:
    """Return when everything happens; contention is arrival (first come first served) or none."""
    if contention == "order":
        raise PhazeError("network: contention of a pipeline must be one of arrival, none, got order")
    plan = found.plan
    times, busy, link_bytes = carry(topology, plan, switching, exclusive=contention == "arrival")
    arrived = times[2] >= 0
    if not arrived.all():
        raise PhazeError("network: a pipeline's jobs wait for each other")
    return Carried(
        _timeline(found, times[2]),
        topology,
        busy,
        link_bytes,
        np.bincount(plan.source, plan.size_bytes, topology.nodes).astype(float),
        np.bincount(plan.target, plan.size_bytes * arrived, topology.nodes).astype(float),
        found.work_s,
    )


def silent(found: Script) -> Script:
    """Return the same with nothing sent: messages stay where they are, and neither have bytes nor wait."""
    own = found.plan
    work_s = np.where(own.source == own.target, own.delay_s, 0.0)
    plan = own._replace(target=own.source, size_bytes=np.zeros_like(own.size_bytes), delay_s=work_s)
    return Script(**{**vars(found), "plan": plan})


def _timeline(found: Script, arrived_s: Floats) -> Timeline:
    """Return the jobs' times, and for every job what came last."""
    start, end = arrived_s[found.first], arrived_s[found.last]
    edges = arrived_s[found.arrivals]
    waiting = np.repeat(np.arange(len(start)), np.diff(found.graph.preceded))
    arrival, binding = np.zeros(len(start)), np.full(len(start), -1, np.int64)
    rising = np.argsort(edges, kind="stable")
    arrival[waiting[rising]] = edges[rising]
    binding[waiting[rising]] = found.senders[rising]
    return Timeline(found.pipeline, found.graph.jobs, start, end - start, arrival, binding)


def _in_order(graph: EventGraph) -> list[int]:
    """Return the jobs such that each comes after what it waits for, resources in turns."""
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


class _Part(NamedTuple):
    """Messages that begin with one that waits for others, and end with one that waits for all."""

    plan: Columns
    """Waits counts those of the first message as none; before is counted from the first message."""
    work_s: float


class _Writer:
    """Messages as they are written down."""

    def __init__(self, pipeline: Pipeline, traffic: Traffic, graph: EventGraph) -> None:
        if len(traffic.tiles) != len(pipeline.workers):
            raise PhazeError(
                f"network: tiles must have the nodes of {len(pipeline.workers)} workers, "
                f"got {len(traffic.tiles)}"
            )
        self.pipeline, self.traffic, self.graph = pipeline, traffic, graph
        self.jobs: list[list[int]] = [
            column.tolist() for column in (graph.jobs.kind, graph.jobs.stage, graph.jobs.resource)
        ]
        self.begins = set(graph.jobs.first[:-1].tolist())
        self.preceded = graph.preceded.tolist()
        self.predecessor: list[int] = graph.predecessor.tolist()
        self.delay: list[float] = graph.delay_s.tolist()
        self.first: list[int] = [-1] * len(graph.jobs)
        self.last: list[int] = [-1] * len(graph.jobs)
        self.arrivals = [-1] * len(self.predecessor)
        self.size = 0
        self.parts: list[_Part] = []
        self.after: list[list[int]] = []
        self.offsets: list[int] = []
        self.known: dict[object, _Part] = {}
        self.sent: dict[tuple[int, int], int] = {}
        """When tensors are there, by the job that sends and the stage: several jobs may wait for one."""
        self.work_s = np.zeros(len(graph.jobs.first) - 1)

    def write(self, job: int) -> None:
        """Write what brings a job its tensors, and the job."""
        kind, stage, resource = (column[job] for column in self.jobs)
        before = [] if job in self.begins else [self.last[job - 1]]
        for edge in range(self.preceded[job], self.preceded[job + 1]):
            self.arrivals[edge] = self._arrival(edge, stage, resource)
            before.append(self.arrivals[edge])
        part = self._job(Kind(kind), stage, resource, float(self.graph.duration_s[job]))
        self.first[job] = self.size
        self._append(part, before)
        self.last[job] = self.size - 1
        self.work_s[resource] += part.work_s

    def _arrival(self, edge: int, stage: int, resource: int) -> int:
        """Return the message with which something is there for a stage."""
        sender, delay = self.predecessor[edge], self.delay[edge]
        source, worker = self.jobs[1][sender], self.jobs[2][sender]
        if delay < 0:
            raise PhazeError("network: operators must be 1, nothing is sent before its job is over")
        pair = source, stage
        if source == stage or pair not in self.traffic.sent_bytes:
            if not delay:
                return self.last[sender]
            self._append(self._wait(delay), [self.last[sender]])
            return self.size - 1
        if (sender, stage) not in self.sent:
            self._append(self._tensor(pair, worker, resource), [self.last[sender]])
            self.sent[sender, stage] = self.size - 1
        return self.sent[sender, stage]

    def _append(self, part: _Part, before: list[int]) -> None:
        self.parts.append(part)
        self.after.append(before)
        self.offsets.append(self.size)
        self.size += len(part.plan.source)

    def _job(self, kind: Kind, stage: int, resource: int, seconds: float) -> _Part:
        key = kind, resource, stage
        turns = self.traffic.turns.get(key)
        known = ("job", *key) if turns is not None else ("job", kind, resource, stage, seconds)
        if known not in self.known:
            self.known[known] = _part(turns if turns is not None else [Turn(seconds)])
        return self.known[known]

    def _tensor(self, pair: tuple[int, int], worker: int, resource: int) -> _Part:
        known = ("tensor", pair, worker, resource)
        if known not in self.known:
            tiles = self.traffic.tiles
            plan = passing(tiles[worker], tiles[resource], self.traffic.sent_bytes[pair])
            self.known[known] = _part([Turn(0.0, plan)])
        return self.known[known]

    def _wait(self, seconds: float) -> _Part:
        return self.known.setdefault(("wait", seconds), _part([Turn(seconds)]))

    def script(self) -> Script:
        """Return all that was written."""
        waits = np.concatenate([part.plan.waits for part in self.parts])
        waits[self.offsets] = [len(before) for before in self.after]
        before = [
            np.concatenate([np.array(own, np.int64), part.plan.before + offset])
            for own, part, offset in zip(self.after, self.parts, self.offsets, strict=True)
        ]
        source, target, size, delay = (
            np.concatenate([part.plan[column] for part in self.parts]) for column in range(4)
        )
        return Script(
            self.pipeline,
            self.graph,
            Columns(source, target, size, delay, waits, np.concatenate(before)),
            np.array(self.first, np.int64),
            np.array(self.last, np.int64),
            self.graph.predecessor,
            np.array(self.arrivals, np.int64),
            self.work_s,
        )


def _part(turns: Sequence[Turn]) -> _Part:
    """Return work and messages in turns."""
    plan = [Message(0, 0, 0.0)]
    for turn in turns:
        start = len(plan) - 1
        if turn.seconds:
            plan.append(Message(0, 0, 0.0, (start,), turn.seconds))
        if turn.beside:
            _extend(plan, turn.beside, start)
        _extend(plan, turn.plan, len(plan) - 1)
    return _Part(columns(plan), sum(turn.seconds for turn in turns))


def _extend(plan: list[Message], other: Plan, begin: int) -> None:
    """Append a plan that starts with a message, and one that waits for all of it and for what was last."""
    if not other:
        return
    start, last = len(plan), len(plan) - 1
    waited: set[int] = set()
    for message in other:
        after = tuple(start + number for number in message.after) or (begin,)
        waited.update(after)
        plan.append(message.waiting_for(after))
    ends = tuple(number for number in range(start, len(plan)) if number not in waited)
    plan.append(Message(0, 0, 0.0, (last, *ends) if last != begin else ends))
