"""A pipeline and all its communication as one plan of messages in the order of its schedule.

Every job of the pipeline is a local message with the job's duration. It waits for the preceding job on its
resource, and for the tensors and jobs that it needs. Tensors between stages, and communication of a job
during which the devices of its worker wait, are messages over links. The same plan is simulated in three
ways: with exclusive links (contention), with links that carry all messages at once (none), and without
communication (work only). The three times therefore differ by exactly these effects.

Work and messages alternate in turns, as a layer's matrix products and all-reduces do.

The template of a message plan, its draft, has the jobs and the transfers of their tensors in order. It does
not depend on the devices of the pipeline, so one draft serves all mappings of a plan.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.compiled import Columns, carry, columns
from phaze.cost.network.delivery import Contention
from phaze.cost.network.messages import Message, Plan
from phaze.cost.network.topology import Switching, Topology
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import EventGraph, event_graph
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.timeline import Timeline

Pair = tuple[int, int]
"""Pair of a sending and a receiving stage."""
Job = tuple[JobKind, int, int]
"""Job kind, resource index (workers, then ports) and stage."""


class TimedJob(NamedTuple):
    """Job that alternates between work and messages, as its traffic specifies (see `Turn`)."""

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
    return Draft(
        writer.graph,
        tuple(writer.indices),
        np.array(writer.part, np.int64),
        np.array([len(before) for before in writer.after], np.int64),
        np.array([other for before in writer.after for other in before], np.int64),
        np.array(writer.job, np.int64),
        np.array(writer.arrivals, np.int64),
    )


class _Writer:
    """Builder of a draft."""

    def __init__(self, graph: EventGraph, sent: Collection[Pair], timed: Collection[Job]) -> None:
        self.graph, self.sent, self.timed = graph, sent, timed
        jobs = graph.jobs
        # Python lists: reading single elements of NumPy arrays is several times slower.
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
        self.indices: dict[Part, int] = {}
        self.tensor_parts: dict[tuple[int, int], int] = {}
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
        if (sender, stage) not in self.tensor_parts:
            self.tensor_parts[sender, stage] = self._append(
                SentTensor(pair, worker, resource), [self.job[sender]]
            )
        return self.tensor_parts[sender, stage]

    def _append(self, part: Part, before: list[int]) -> int:
        self.part.append(self.indices.setdefault(part, len(self.indices)))
        self.after.append(before)
        return len(self.part) - 1


def in_order(graph: EventGraph) -> list[int]:
    """Topological order of the jobs that alternates between resources."""
    jobs = graph.jobs
    # A job waits for its predecessors and, unless it is the first of its resource, for the job before it.
    missing = np.diff(graph.preceded) + 1
    missing[jobs.first[:-1]] -= 1
    starts = set(jobs.first.tolist())
    waiting = np.repeat(np.arange(len(jobs)), np.diff(graph.preceded))
    order = np.argsort(graph.predecessor, kind="stable")
    begins = np.searchsorted(graph.predecessor[order], np.arange(len(jobs) + 1)).tolist()
    followers, remaining = waiting[order].tolist(), missing.tolist()
    # Jobs early in their resource come first, so that the order alternates between resources.
    depth = (np.arange(len(jobs)) - jobs.first[jobs.resource]).tolist()
    heap = [(depth[job], job) for job in range(len(jobs)) if not remaining[job]]
    heapq.heapify(heap)
    sequence = []
    while heap:
        _, job = heapq.heappop(heap)
        sequence.append(job)
        after = [] if job + 1 in starts else [job + 1]
        for other in (*followers[begins[job] : begins[job + 1]], *after):
            remaining[other] -= 1
            if not remaining[other]:
                heapq.heappush(heap, (depth[other], other))
    if len(sequence) < len(jobs):
        raise PhazeError(
            f"network: only {len(sequence)} of {len(jobs)} jobs can run, the others wait for each other"
        )
    return sequence


class Turn(NamedTuple):
    """One round of work of all devices of a worker, followed by messages."""

    seconds: float
    plan: Plan = ()
    concurrent: Plan = ()
    """Messages that start with the work; the work ends only when they have arrived."""


@dataclass(frozen=True)
class Sends:
    """Communication of a pipeline: network nodes of workers, tensors between stages, messages within jobs."""

    tiles: Sequence[Sequence[int]]
    """Nodes of each worker."""
    sent_bytes: Mapping[tuple[int, int], float]
    """Bytes of the tensor from a stage to a neighbour, shared equally by all nodes of a worker."""
    turns: Mapping[tuple[JobKind, int, int], Sequence[Turn]] = field(default_factory=dict)
    """Rounds by job kind, resource (workers, then ports) and stage; they replace the jobs' durations.
    """


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """Result of simulating a pipeline on a network."""

    timeline: Timeline
    topology: Topology
    busy_s: Floats
    """Time that each resource of the network is occupied, in seconds, (resources,); 0 without contention."""
    link_bytes: Floats
    """Bytes over each link, (links,)."""
    sent_bytes: Floats
    """Bytes that each node sent, (nodes,)."""
    received_bytes: Floats
    work_s: Floats
    """Time that each resource of the pipeline works, in seconds, excluding communication."""

    @property
    def time_s(self) -> float:
        """End of the last job."""
        return self.timeline.time_s

    @cached_property
    def utilisation(self) -> Floats:
        """Utilisation of each link: bytes relative to its capacity over the whole time, (links,)."""
        width = np.array([link.bandwidth_bytes_per_s for link in self.topology.links])
        return self.link_bytes / (width * self.time_s) if self.time_s else np.zeros_like(width)


@dataclass(frozen=True, eq=False)
class Script:
    """Message plan of a pipeline, with the first and the last message of each job."""

    pipeline: Pipeline
    traffic: Sends
    graph: EventGraph
    plan: Columns
    first: Ints
    """First message of each job, (N,): it arrives when the job starts."""
    last: Ints
    """Last message of each job, (N,): it arrives when the job is over."""
    senders: Ints
    """Predecessor job of each edge of the graph."""
    arrivals: Ints
    """Message whose arrival satisfies the dependency of each edge."""
    work_s: Floats


def script(pipeline: Pipeline, traffic: Sends) -> Script:
    """Build the message plan of a pipeline with its traffic; PhazeError if the two do not match."""
    if len(traffic.tiles) != len(pipeline.workers):
        raise PhazeError(
            f"network: tiles must have the nodes of {len(pipeline.workers)} workers, got {len(traffic.tiles)}"
        )
    template = draft(pipeline, frozenset(traffic.sent_bytes), frozenset(traffic.turns))
    parts = [_part_plan(part, traffic) for part in template.distinct]
    sizes = np.array([len(part.plan.source) for part in parts], np.int64)
    offset = np.concatenate([[0], np.cumsum(sizes[template.part])])
    work_s = np.array([part.work_s for part in parts])[template.part[template.job]]
    jobs = template.graph.jobs
    return Script(
        pipeline,
        traffic,
        template.graph,
        _concatenated(template, parts, offset),
        offset[template.job],
        offset[template.job + 1] - 1,
        template.graph.predecessor,
        offset[template.arrivals + 1] - 1,
        np.bincount(jobs.resource, work_s, len(jobs.first) - 1).astype(np.float64),
    )


def simulate_script(
    script: Script, topology: Topology, contention: Contention = "arrival", switching: Switching = "pipelined"
) -> NetworkResult:
    """Simulate a script on a topology; `contention` is arrival (first come, first served) or none."""
    if contention == "order":
        raise PhazeError("network: contention of a pipeline must be one of arrival, none, got order")
    plan = script.plan
    times, busy, link_bytes = carry(topology, plan, switching, exclusive=contention == "arrival")
    arrived = times[2] >= 0
    if not arrived.all():
        raise PhazeError("network: a pipeline's jobs wait for each other")
    return NetworkResult(
        _timeline(script, times[2]),
        topology,
        busy,
        link_bytes,
        np.bincount(plan.source, plan.size_bytes, topology.nodes).astype(float),
        np.bincount(plan.target, plan.size_bytes * arrived, topology.nodes).astype(float),
        script.work_s,
    )


def silent(original: Script) -> Script:
    """Same script without communication: only the durations of the jobs remain."""
    traffic = original.traffic
    turns = {job: [Turn(turn.seconds) for turn in turns] for job, turns in traffic.turns.items()}
    return script(
        original.pipeline,
        # With all workers on one node and no bytes, nothing is sent over a link.
        Sends([[0]] * len(traffic.tiles), dict.fromkeys(traffic.sent_bytes, 0.0), turns),
    )


def _timeline(script: Script, arrived_s: Floats) -> Timeline:
    """Timeline of the jobs from the arrival times of their messages, with the last input of each job."""
    start, end = arrived_s[script.first], arrived_s[script.last]
    edges = arrived_s[script.arrivals]
    waiting = np.repeat(np.arange(len(start)), np.diff(script.graph.preceded))
    arrival, binding = np.zeros(len(start)), np.full(len(start), -1, np.int64)
    rising = np.argsort(edges, kind="stable")
    arrival[waiting[rising]] = edges[rising]
    binding[waiting[rising]] = script.senders[rising]
    return Timeline(script.pipeline, script.graph.jobs, start, end - start, arrival, binding)


class _Part(NamedTuple):
    """Message plan of one part: one first message, which waits for other parts, and one last message."""

    plan: Columns
    """`waits` excludes the first message's dependencies; `before` is relative to the first message."""
    work_s: float


def _part_plan(part: Part, traffic: Sends) -> _Part:
    """Build the message plan of one part."""
    if isinstance(part, Wait):
        return _turn_plan([Turn(part.seconds)])
    if isinstance(part, TimedJob):
        return _turn_plan(traffic.turns[part.job])
    tiles = traffic.tiles
    plan = passing(tiles[part.worker], tiles[part.to], traffic.sent_bytes[part.pair])
    return _turn_plan([Turn(0.0, plan)])


def _concatenated(template: Draft, parts: Sequence[_Part], offset: Ints) -> Columns:
    """Concatenate the message plans of all parts, each at its offset."""
    # Columns 0 to 4 have an element per message; column 5, `before`, has one per dependency.
    sizes, inner = (np.array([len(part.plan[column]) for part in parts], np.int64) for column in (0, 5))
    messages = _runs((np.cumsum(sizes) - sizes)[template.part], sizes[template.part])
    source, target, size, delay, waits = (
        np.concatenate([part.plan[column] for part in parts])[messages] for column in range(5)
    )
    # Only the first message of a part waits for other parts, namely for their last messages.
    waits[offset[:-1]] = template.waits
    within = inner[template.part]
    ends = np.cumsum(template.waits + within)
    before = np.empty(ends[-1], np.int64)
    before[_runs(ends - within - template.waits, template.waits)] = offset[template.before + 1] - 1
    part_before = np.concatenate([part.plan.before for part in parts])
    message_before = part_before[_runs((np.cumsum(inner) - inner)[template.part], within)]
    before[_runs(ends - within, within)] = message_before + np.repeat(offset[:-1], within)
    return Columns(source, target, size, delay, waits, before)


def _runs(first: Ints, size: Ints) -> Ints:
    """Concatenated ranges of integers, given their first values and sizes."""
    begins = np.cumsum(size) - size
    return np.repeat(first - begins, size) + np.arange(size.sum())


def _turn_plan(turns: Sequence[Turn]) -> _Part:
    """Message plan for alternating work and communication."""
    pieces, size = [_message(0.0)], 1
    for turn in turns:
        begin = size - 1
        if turn.seconds:
            pieces.append(_message(turn.seconds, begin))
            size += 1
        if turn.concurrent:
            pieces += _extension(columns(turn.concurrent), begin, size)
            size += len(turn.concurrent) + 1
        if turn.plan:
            pieces += _extension(columns(turn.plan), size - 1, size)
            size += len(turn.plan) + 1
    return _Part(
        Columns(*(np.concatenate(column) for column in zip(*pieces, strict=True))),
        sum(turn.seconds for turn in turns),
    )


def _message(seconds: float, *before: int) -> Columns:
    """Local message with a given duration."""
    return columns([Message(0, 0, 0.0, before, seconds)])


def _extension(plan: Columns, begin: int, size: int) -> tuple[Columns, Columns]:
    """Shift a plan to follow `size` messages, and add a message that waits for the whole plan.

    The last message also waits for the preceding one. Messages of the plan without dependencies wait for
    message `begin`.
    """
    first = plan.waits == 0
    waits = np.maximum(plan.waits, 1)
    before = np.full(waits.sum(), begin)
    before[~np.repeat(first, waits)] = plan.before + size
    waited = np.zeros(len(waits), np.bool_)
    waited[plan.before] = True
    ends = (np.flatnonzero(~waited) + size).tolist()
    last = [] if size - 1 == begin else [size - 1]
    return plan._replace(waits=waits, before=before), _message(0.0, *last, *ends)


def passing(source: Sequence[int], target: Sequence[int], size_bytes: float) -> Plan:
    """Messages that send equal shares of a tensor between pairs of tiles, repeating the shorter list."""
    pairs = max(len(source), len(target))
    part = size_bytes / pairs
    return tuple(
        Message(source[k * len(source) // pairs], target[k * len(target) // pairs], part)
        for k in range(pairs)
    )
