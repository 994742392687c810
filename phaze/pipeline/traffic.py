"""A pipeline with everything that it sends, as one plan of messages in the order of its schedule.

Every job of the pipeline is a message that stays where it is and takes the job's seconds; it waits for the
job before it on its resource, and for the tensors and jobs that it needs. Tensors between stages, and what a
job sends while the devices of its worker wait, are messages over links. The same plan is carried out with
links that exclude each other (contention), with links that carry all that comes at once (none), and with
nothing sent (the work alone), so that the three times differ by what is named and by nothing else.

Work and messages follow each other in turns, as a layer's products and all-reduces do.
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
    """Work of all devices of a worker, and what they send after it."""

    seconds: float
    plan: Plan = ()
    beside: Plan = ()
    """What they send or fetch from the beginning of the work on; the work is not over before."""


@dataclass(frozen=True)
class Sends:
    """What a pipeline sends."""

    tiles: Sequence[Sequence[int]]
    """Nodes of every worker."""
    sent_bytes: Mapping[tuple[int, int], float]
    """Bytes of the tensor from a stage to a neighbour, of all nodes of a worker in equal shares."""
    turns: Mapping[tuple[JobKind, int, int], Sequence[Turn]] = field(default_factory=dict)
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
        """Time at which the last job is over."""
        return self.timeline.time_s

    @cached_property
    def utilisation(self) -> Floats:
        """Bytes over every link as a share of what it could have carried, (links,)."""
        width = np.array([link.bandwidth_bytes_per_s for link in self.topology.links])
        return self.link_bytes / (width * self.time_s) if self.time_s else np.zeros_like(width)


@dataclass(frozen=True, eq=False)
class Script:
    """A pipeline as messages, and where its jobs are among them."""

    pipeline: Pipeline
    traffic: Sends
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


def script(pipeline: Pipeline, traffic: Sends) -> Script:
    """A pipeline with all that it sends; raises `PhazeError` where that has no place in its graph."""
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


def carry_out(
    found: Script, topology: Topology, contention: Contention = "arrival", switching: Switching = "pipelined"
) -> Carried:
    """Times of all events; contention is arrival (first come first served) or none."""
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
    """The same with nothing sent: what is left are the seconds of its jobs."""
    traffic = found.traffic
    turns = {job: [Turn(turn.seconds) for turn in turns] for job, turns in traffic.turns.items()}
    return script(
        found.pipeline,
        Sends([[0]] * len(traffic.tiles), dict.fromkeys(traffic.sent_bytes, 0.0), turns),
    )


def _timeline(found: Script, arrived_s: Floats) -> Timeline:
    """Times of the jobs, and for every job what came last."""
    start, end = arrived_s[found.first], arrived_s[found.last]
    edges = arrived_s[found.arrivals]
    waiting = np.repeat(np.arange(len(start)), np.diff(found.graph.preceded))
    arrival, binding = np.zeros(len(start)), np.full(len(start), -1, np.int64)
    rising = np.argsort(edges, kind="stable")
    arrival[waiting[rising]] = edges[rising]
    binding[waiting[rising]] = found.senders[rising]
    return Timeline(found.pipeline, found.graph.jobs, start, end - start, arrival, binding)


class _Part(NamedTuple):
    """Messages that begin with one that waits for others, and end with one that waits for all."""

    plan: Columns
    """Waits counts those of the first message as none; before is counted from the first message."""
    work_s: float


def _written(part: Part, traffic: Sends) -> _Part:
    """Messages of a part."""
    if isinstance(part, Wait):
        return _part([Turn(part.seconds)])
    if isinstance(part, TimedJob):
        return _part(traffic.turns[part.job])
    tiles = traffic.tiles
    plan = passing(tiles[part.worker], tiles[part.to], traffic.sent_bytes[part.pair])
    return _part([Turn(0.0, plan)])


def _joined(found: Draft, parts: Sequence[_Part], offset: Ints) -> Columns:
    """Parts one after the other, of which each begins at its offset."""
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
    """Numbers of several runs, one run after the other."""
    begins = np.cumsum(size) - size
    return np.repeat(first - begins, size) + np.arange(size.sum())


def _part(turns: Sequence[Turn]) -> _Part:
    """Work and messages in turns."""
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
    """A message that stays where it is for some time."""
    return columns([Message(0, 0, 0.0, before, seconds)])


def _extension(own: Columns, begin: int, size: int) -> tuple[Columns, Columns]:
    """A plan behind so many messages, and one that waits for all of it and for what was last.

    What waits for nothing in the plan waits for the message at which it begins.
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
    """A tensor from tiles to tiles, an equal share for each pair in order, the shorter repeated."""
    pairs = max(len(source), len(target))
    part = size_bytes / pairs
    return tuple(
        Message(source[k * len(source) // pairs], target[k * len(target) // pairs], part)
        for k in range(pairs)
    )
