"""A pipeline and all its communication as one plan of messages in the order of its schedule.

Every job of the pipeline is a local message with the job's duration. It waits for the preceding job on its
resource, and for the tensors and jobs that it needs. Tensors between stages, and communication of a job
during which the devices of its worker wait, are messages over links. The same plan is simulated in three
ways: with exclusive links (contention), with links that carry all messages at once (none), and without
communication (work only). The three times therefore differ by exactly these effects.

Work and messages alternate in turns, as a layer's matrix products and all-reduces do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.compiled import Columns, carry, columns
from phaze.cost.network.delivery import Contention
from phaze.cost.network.messages import Message, Plan
from phaze.cost.network.topology import Switching, Topology
from phaze.pipeline.draft import Draft, Part, TimedJob, Wait, draft
from phaze.pipeline.durations import JobKind
from phaze.pipeline.graph import EventGraph
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.timeline import Timeline


class Turn(NamedTuple):
    """One round of work of all devices of a worker, followed by messages."""

    seconds: float
    plan: Plan = ()
    beside: Plan = ()
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
    found = draft(pipeline, frozenset(traffic.sent_bytes), frozenset(traffic.turns))
    parts = [_written(part, traffic) for part in found.distinct]
    sizes = np.array([len(part.plan.source) for part in parts], np.int64)
    offset = np.concatenate([[0], np.cumsum(sizes[found.part])])
    work_s = np.array([part.work_s for part in parts])[found.part[found.job]]
    jobs = found.graph.jobs
    return Script(
        pipeline,
        traffic,
        found.graph,
        _joined(found, parts, offset),
        offset[found.job],
        offset[found.job + 1] - 1,
        found.graph.predecessor,
        offset[found.arrivals + 1] - 1,
        np.bincount(jobs.resource, work_s, len(jobs.first) - 1).astype(np.float64),
    )


def simulate_script(
    found: Script, topology: Topology, contention: Contention = "arrival", switching: Switching = "pipelined"
) -> NetworkResult:
    """Simulate a script on a topology; `contention` is arrival (first come, first served) or none."""
    if contention == "order":
        raise PhazeError("network: contention of a pipeline must be one of arrival, none, got order")
    plan = found.plan
    times, busy, link_bytes = carry(topology, plan, switching, exclusive=contention == "arrival")
    arrived = times[2] >= 0
    if not arrived.all():
        raise PhazeError("network: a pipeline's jobs wait for each other")
    return NetworkResult(
        _timeline(found, times[2]),
        topology,
        busy,
        link_bytes,
        np.bincount(plan.source, plan.size_bytes, topology.nodes).astype(float),
        np.bincount(plan.target, plan.size_bytes * arrived, topology.nodes).astype(float),
        found.work_s,
    )


def silent(found: Script) -> Script:
    """Same script without communication: only the durations of the jobs remain."""
    traffic = found.traffic
    turns = {job: [Turn(turn.seconds) for turn in turns] for job, turns in traffic.turns.items()}
    return script(
        found.pipeline,
        Sends([[0]] * len(traffic.tiles), dict.fromkeys(traffic.sent_bytes, 0.0), turns),
    )


def _timeline(found: Script, arrived_s: Floats) -> Timeline:
    """Timeline of the jobs from the arrival times of their messages, with the last input of each job."""
    start, end = arrived_s[found.first], arrived_s[found.last]
    edges = arrived_s[found.arrivals]
    waiting = np.repeat(np.arange(len(start)), np.diff(found.graph.preceded))
    arrival, binding = np.zeros(len(start)), np.full(len(start), -1, np.int64)
    rising = np.argsort(edges, kind="stable")
    arrival[waiting[rising]] = edges[rising]
    binding[waiting[rising]] = found.senders[rising]
    return Timeline(found.pipeline, found.graph.jobs, start, end - start, arrival, binding)


class _Part(NamedTuple):
    """Message plan of one part: one first message, which waits for other parts, and one last message."""

    plan: Columns
    """`waits` excludes the first message's dependencies; `before` is relative to the first message."""
    work_s: float


def _written(part: Part, traffic: Sends) -> _Part:
    """Build the message plan of one part."""
    if isinstance(part, Wait):
        return _part([Turn(part.seconds)])
    if isinstance(part, TimedJob):
        return _part(traffic.turns[part.job])
    tiles = traffic.tiles
    plan = passing(tiles[part.worker], tiles[part.to], traffic.sent_bytes[part.pair])
    return _part([Turn(0.0, plan)])


def _joined(found: Draft, parts: Sequence[_Part], offset: Ints) -> Columns:
    """Concatenate the message plans of all parts, each at its offset."""
    sizes, inner = (np.array([len(part.plan[column]) for part in parts], np.int64) for column in (0, 5))
    messages = _runs((np.cumsum(sizes) - sizes)[found.part], sizes[found.part])
    source, target, size, delay, waits = (
        np.concatenate([part.plan[column] for part in parts])[messages] for column in range(5)
    )
    waits[offset[:-1]] = found.waits
    within = inner[found.part]
    ends = np.cumsum(found.waits + within)
    before = np.empty(ends[-1], np.int64)
    before[_runs(ends - within - found.waits, found.waits)] = offset[found.before + 1] - 1
    kept = np.concatenate([part.plan.before for part in parts])
    own = kept[_runs((np.cumsum(inner) - inner)[found.part], within)]
    before[_runs(ends - within, within)] = own + np.repeat(offset[:-1], within)
    return Columns(source, target, size, delay, waits, before)


def _runs(first: Ints, size: Ints) -> Ints:
    """Concatenated ranges of integers, given their first values and sizes."""
    begins = np.cumsum(size) - size
    return np.repeat(first - begins, size) + np.arange(size.sum())


def _part(turns: Sequence[Turn]) -> _Part:
    """Message plan for alternating work and communication."""
    pieces, size = [_message(0.0)], 1
    for turn in turns:
        begin = size - 1
        if turn.seconds:
            pieces.append(_message(turn.seconds, begin))
            size += 1
        if turn.beside:
            pieces += _extension(columns(turn.beside), begin, size)
            size += len(turn.beside) + 1
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


def _extension(own: Columns, begin: int, size: int) -> tuple[Columns, Columns]:
    """Shift a plan to follow `size` messages, and add a message that waits for all of it.

    The last message also waits for the preceding one. Messages of the plan without dependencies wait for
    message `begin`.
    """
    first = own.waits == 0
    waits = np.maximum(own.waits, 1)
    before = np.full(waits.sum(), begin)
    before[~np.repeat(first, waits)] = own.before + size
    waited = np.zeros(len(waits), np.bool_)
    waited[own.before] = True
    ends = (np.flatnonzero(~waited) + size).tolist()
    last = [] if size - 1 == begin else [size - 1]
    return own._replace(waits=waits, before=before), _message(0.0, *last, *ends)


def passing(source: Sequence[int], target: Sequence[int], size_bytes: float) -> Plan:
    """Messages that send equal shares of a tensor between pairs of tiles, repeating the shorter list."""
    pairs = max(len(source), len(target))
    part = size_bytes / pairs
    return tuple(
        Message(source[k * len(source) // pairs], target[k * len(target) // pairs], part)
        for k in range(pairs)
    )
