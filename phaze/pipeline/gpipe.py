"""Training step time of stages mapped to devices: synchronous GPipe (Parmesan, Sections VII and VIII).

The model is a task graph as in FlexFlow's simulator (Jia et al., MLSys 2019), which the paper's follows. A
device runs one task at a time (a stage's pass takes its time over the device's speed), and so does the link
of every ordered pair of devices. Each replica passes MB microbatches forward through all stages, then
backward in the same order. Each edge of the stage graph, skip connections included, sends one message per
microbatch: forward on the link to the later stage, backward on the reverse link. Links work concurrently with
the devices. A link is occupied for size / bandwidth, and the message arrives a latency later. A mapping gives
each replica of each stage its own device, so no link serves two edges.

When the last backward pass of a stage is over on all its replicas, they reduce its gradients around their
ring, in replica order: 2 (R − 1) rounds of P / R bytes, each as long as the slowest link needs, (9). Then
each updates its parameters: plain SGD reads weights and gradients and writes weights, 3 P bytes. The step
ends with the last update.

A second model (`held_step_s`) lets a message in flight occupy both the sending and the receiving device. It
describes a program that sends and receives between its passes, without separate streams for messages, and
therefore cannot compute meanwhile. Section VII does not say which of the two its simulator uses. Every device
then does one thing at a time in the order of such a program. For each microbatch it receives from the stages
before it, computes, and sends to the stages after it; the backward pass is the reverse. A message begins when
both devices are free, and occupies them for latency + size / bandwidth. The step is never shorter than under
the first model.

In a third model (`shared_step_s`) the devices of a node share its network port. The bandwidths of a cluster
are measured between two devices at a time (Parmesan, Section VII and Appendix D-B), and the first model gives
every ordered pair of devices its own link. A machine with several devices has one Ethernet port, so
concurrent messages to other machines are sent one after the other. Here a message between nodes occupies, in
addition to its link, the output port of the sending node and the input port of the receiving node, each for
size / bandwidth. The message that has been ready longest goes first, unless one of its ports is busy.
Otherwise the model equals the first one, with equal times if no message leaves a node.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit, njit_nested
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork, flat_network
from phaze.cost.network.network import Levels, Tier
from phaze.layout import Group
from phaze.workload.operator_graphs import StageGraph

UPDATE_TRAFFIC = 3.0
"""Bytes of memory traffic of an SGD update per byte of parameters."""
Resource = tuple[str, int, int]
"""Link between two devices, or port of a node."""


@dataclass(frozen=True, eq=False)
class GPipeStep:
    """A simulated training step: its time, and the times of its passes, all-reduces and updates."""

    step_s: float
    ended_s: Floats
    """End of the last backward pass of each stage and replica, shape (S, R)."""
    all_reduce_s: Floats
    """All-reduce time of each stage, shape (S,)."""
    update_s: Floats
    """Update time of each stage, shape (S,)."""
    compute_s: float
    """Step time if communication took no time."""

    @cached_property
    def critical_stage(self) -> int:
        """Stage whose update ends the step."""
        return int(np.argmax(self.ended_s.max(axis=1) + self.all_reduce_s + self.update_s))

    @property
    def pipeline_s(self) -> float:
        """Time at which the last pass of the critical stage ends."""
        return float(self.ended_s[self.critical_stage].max())


def step_time_s(
    stages: StageGraph, mapping: Ints, network: DeviceNetwork, memory_bytes_per_s: float = math.inf
) -> float:
    """Step time if the stages are mapped to the devices `mapping`, shape (S, R).

    `memory_bytes_per_s` is the memory bandwidth of the update. Raises PhazeError for an invalid mapping.
    """
    return float(step_times_s(stages, mapping[None], network, memory_bytes_per_s)[0])


def step_times_s(
    stages: StageGraph, mappings: Ints, network: DeviceNetwork, memory_bytes_per_s: float = math.inf
) -> Floats:
    """Step times under n mappings, shape (n, S, R), as an array (n,)."""
    mappings = np.ascontiguousarray(mappings, np.int64)
    for mapping in mappings:
        check_mapping(stages, mapping, network.devices)
    work = stage_arrays(stages, memory_bytes_per_s, network.slowness)
    return np.asarray(_all_steps(work, mappings, network.seconds_per_byte, network.waits_s))


def simulate_step(
    stages: StageGraph, mapping: Ints, network: DeviceNetwork, memory_bytes_per_s: float = math.inf
) -> GPipeStep:
    """Simulate a step under one mapping, shape (S, R): its pass, all-reduce and update times."""
    check_mapping(stages, mapping, network.devices)
    work = stage_arrays(stages, memory_bytes_per_s, network.slowness)
    mapping = np.ascontiguousarray(mapping, np.int64)
    seconds, waits, count = network.seconds_per_byte, network.waits_s, len(mapping)
    ended, alone, silent = np.empty(mapping.shape), np.zeros(count), np.zeros_like(seconds)
    for replica in range(stages.replicas):
        devices = mapping[:, replica].copy()
        ended[:, replica] = passes_end(work, devices, seconds, waits)
        alone = np.maximum(alone, passes_end(work, devices, silent, silent))
    reduced = _reduced_s(work, mapping, network)
    step = float((ended.max(axis=1) + reduced + work.update).max())
    return GPipeStep(step, ended, reduced, work.update, float((alone + work.update).max()))


def held_step_s(
    stages: StageGraph, mapping: Ints, network: DeviceNetwork, memory_bytes_per_s: float = math.inf
) -> float:
    """Step time under one mapping, shape (S, R), if a message occupies its sender and its receiver."""
    check_mapping(stages, mapping, network.devices)
    work = stage_arrays(stages, memory_bytes_per_s, network.slowness)
    mapping = np.ascontiguousarray(mapping, np.int64)
    seconds, waits, edges = network.seconds_per_byte, network.waits_s, work.edges
    # Messages go in the order of their senders, which in the backward pass are the edges' targets.
    sent, returned = np.lexsort(edges.T[::-1]), np.lexsort(edges.T)[::-1]
    order, ended = np.arange(len(mapping)), np.empty(mapping.shape)
    for replica in range(stages.replicas):
        sources, targets = mapping[edges, replica].T
        to_s = (work.sizes * seconds[sources, targets] + waits[sources, targets])[sent]
        fro_s = (work.sizes * seconds[targets, sources] + waits[targets, sources])[returned]
        free, back = np.zeros(len(mapping)), edges[returned][:, ::-1].copy()
        slowness = work.slowness[mapping[:, replica]]
        _one_way(work.forward * slowness, edges[sent], to_s, order, work.microbatches, free)
        _one_way(work.backward * slowness, back, fro_s, order[::-1].copy(), work.microbatches, free)
        ended[:, replica] = free
    return float((ended.max(axis=1) + _reduced_s(work, mapping, network) + work.update).max())


def flat_step_time_s(stages: StageGraph, bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Step time on a network with equal links, where all replicas are identical and one is simulated."""
    count, replicas = len(stages.forward_s), stages.replicas
    network = flat_network(count, bandwidth_bytes_per_s, latency_s)
    work = stage_arrays(stages, math.inf, network.slowness)
    ended = passes_end(work, np.arange(count), network.seconds_per_byte, network.waits_s)
    ring = Levels((Tier(replicas, bandwidth_bytes_per_s, latency_s),))
    return float((ended + ring.seconds("all_reduce", work.gradients, Group(replicas, 1)) + work.update).max())


def check_mapping(stages: StageGraph, mapping: Ints, devices: int) -> None:
    """Raise PhazeError unless a mapping, shape (S, R), gives each replica of each stage its own device."""
    shape = (len(stages.forward_s), stages.replicas)
    if mapping.shape != shape:
        raise PhazeError(f"mapping: must have the shape {shape} of stages x replicas, got {mapping.shape}")
    if mapping.min() < 0 or mapping.max() >= devices or len(np.unique(mapping)) < mapping.size:
        raise PhazeError(f"mapping: must name {mapping.size} different devices from 0 to {devices - 1}")


class StageArrays(NamedTuple):
    """The S stages and the e edges between them, sorted by source, as arrays for compiled code."""

    forward: Floats
    backward: Floats
    edges: Ints
    sizes: Floats
    gradients: Floats
    """Gradient bytes of each stage, (S,)."""
    update: Floats
    """Update time of each stage in seconds, (S,)."""
    microbatches: int
    slowness: Floats
    """Factor of the times of passes on each device, (D,)."""


def stage_arrays(stages: StageGraph, memory_bytes_per_s: float, slowness: Floats) -> StageArrays:
    """Convert a stage graph and the slowness of devices, (D,), to arrays for compiled code."""
    update_s = UPDATE_TRAFFIC * stages.parameter_bytes / memory_bytes_per_s
    columns = stages.forward_s, stages.backward_s, stages.edge_bytes, stages.parameter_bytes, update_s
    forward, backward, sizes, gradients, update = (np.ascontiguousarray(c, np.float64) for c in columns)
    edges = np.ascontiguousarray(stages.edges.reshape(-1, 2), np.int64)
    return StageArrays(forward, backward, edges, sizes, gradients, update, stages.microbatches, slowness)


def _reduced_s(work: StageArrays, mapping: Ints, network: DeviceNetwork) -> Floats:
    """All-reduce time of each stage, (S,)."""
    rings = zip(work.gradients.tolist(), mapping, strict=True)
    return np.array([network.seconds("all_reduce", size, ring) for size, ring in rings])


@njit_nested
def ring_s(size: float, ring: Ints, seconds: Floats, waits: Floats) -> float:
    """All-reduce time of `size` bytes around a ring of devices, bound by its slowest link (equation 9)."""
    replicas = len(ring)
    slowest = 0.0
    if replicas == 1:
        return slowest
    for r in range(replicas):
        source, target = ring[r], ring[(r + 1) % replicas]
        slowest = max(slowest, waits[source, target] + size / replicas * seconds[source, target])
    return 2.0 * (replicas - 1) * slowest


@njit
def passes_end(work: StageArrays, devices: Ints, seconds: Floats, waits: Floats) -> Floats:
    """End of the last backward pass of each stage of one replica on `devices`, shape (S,)."""
    free, scratch = np.empty(len(work.forward)), np.empty(len(work.forward) + len(work.edges))
    pass_through(work, devices, seconds, waits, free, scratch)
    return free


@njit_nested
def pass_through(
    work: StageArrays, devices: Ints, seconds: Floats, waits: Floats, free: Floats, scratch: Floats
) -> None:
    """Write the end of each stage's last backward pass in one replica into `free`, shape (S,).

    `scratch` must have one element per stage and per edge.
    """
    # scratch[s] is the time at which all inputs of stage s are there, scratch[count + e] that at which
    # the link of edge e is free. Links stay occupied from one microbatch to the next, inputs do not.
    forward, backward, edges, sizes = work.forward, work.backward, work.edges, work.sizes
    count, messages = len(forward), len(edges)
    free[:] = 0.0
    scratch[:] = 0.0
    for _ in range(work.microbatches):
        scratch[:count] = 0.0
        e = 0
        for s in range(count):
            free[s] = max(free[s], scratch[s]) + forward[s] * work.slowness[devices[s]]
            while e < messages and edges[e, 0] == s:
                t = edges[e, 1]
                busy = max(scratch[count + e], free[s]) + sizes[e] * seconds[devices[s], devices[t]]
                scratch[count + e] = busy
                scratch[t] = max(scratch[t], busy + waits[devices[s], devices[t]])
                e += 1
    scratch[:] = 0.0
    for _ in range(work.microbatches):
        # Edges are sorted by source, so that a sweep from the end meets those of each stage in a row.
        e = messages - 1
        for s in range(count - 1, -1, -1):
            arrived = 0.0
            while e >= 0 and edges[e, 0] == s:
                t = edges[e, 1]
                busy = max(scratch[count + e], free[t]) + sizes[e] * seconds[devices[t], devices[s]]
                scratch[count + e] = busy
                arrived = max(arrived, busy + waits[devices[t], devices[s]])
                e -= 1
            free[s] = max(free[s], arrived) + backward[s] * work.slowness[devices[s]]


@njit
def _all_steps(work: StageArrays, mappings: Ints, seconds: Floats, waits: Floats) -> Floats:
    """Step time under each mapping, shape (n,)."""
    steps = np.zeros(len(mappings))
    for n in range(len(mappings)):
        over = np.zeros(len(work.forward))
        for replica in range(mappings.shape[2]):
            over = np.maximum(over, passes_end(work, mappings[n, :, replica].copy(), seconds, waits))
        for s in range(len(over)):
            last = ring_s(work.gradients[s], mappings[n, s], seconds, waits) + work.update[s]
            steps[n] = max(steps[n], over[s] + last)
    return steps


@njit
def _one_way(
    times: Floats, messages: Ints, message_s: Floats, order: Ints, microbatches: int, free: Floats
) -> None:
    """Simulate one pass of all microbatches in stage order, updating each device's end time in `free` (S,).

    `messages` (e, 2) are pairs of sender and receiver, in the order of their senders.
    """
    for _ in range(microbatches):
        e = 0
        for s in order:
            free[s] += times[s]
            while e < len(messages) and messages[e, 0] == s:
                t = messages[e, 1]
                free[s] = free[t] = max(free[s], free[t]) + message_s[e]
                e += 1


@dataclass
class _Job:
    """Job of the simulation: a pass or a message."""

    seconds: float
    resources: tuple[Resource, ...] = ()
    latency_s: float = 0.0
    """Delay from the end of the job until dependent jobs may begin."""
    after: list[int] = field(default_factory=list)
    """Indices of dependent jobs."""
    waits_for: int = 0
    """Number of jobs that this job depends on."""


def shared_step_s(
    stages: StageGraph, mapping: Ints, network: DeviceNetwork, node: int, memory_bytes_per_s: float = math.inf
) -> float:
    """Step time if the stages are mapped to devices `mapping`, shape (S, R), with `node` devices per node.

    Raises PhazeError for an invalid mapping.
    """
    check_mapping(stages, mapping, network.devices)
    work = _Work(stages, mapping, network, node)
    ended = _ended_s(work.jobs)
    update_s = UPDATE_TRAFFIC * stages.parameter_bytes / memory_bytes_per_s
    over_s = np.array([max(ended[k] for k in last) for last in work.last])
    return float((over_s + update_s).max())


class _Work:
    """All jobs of a step: passes in order by device, messages, and all-reduce rounds."""

    def __init__(self, stages: StageGraph, mapping: Ints, network: DeviceNetwork, node: int) -> None:
        self.stages, self.network, self.node = stages, network, node
        self.devices: list[list[int]] = mapping.tolist()
        edges = stages.edges.reshape(-1, 2).tolist()
        self.edges = list(zip(edges, stages.edge_bytes.tolist(), strict=True))
        """Pairs of a source and a target stage, with the bytes of the message between them."""
        self.jobs: list[_Job] = []
        self.last: list[list[int]] = [[] for _ in self.devices]
        """Indices of the jobs that precede the update of each stage."""
        for replica in range(stages.replicas):
            self._pass_through(replica)
        self.last = [self._reduce(stage) for stage in range(len(self.devices))]

    def _add(self, job: _Job, *before: int) -> int:
        number = len(self.jobs)
        self.jobs.append(job)
        for other in before:
            self.jobs[other].after.append(number)
        job.waits_for = len(before)
        return number

    def _message(self, source: int, target: int, size: float) -> _Job:
        resources: tuple[Resource, ...] = (("link", source, target),)
        a, b = source // self.node, target // self.node
        # Messages within a node do not use its network port.
        if a != b:
            resources += (("out", a, 0), ("in", b, 0))
        seconds = size * float(self.network.seconds_per_byte[source, target])
        return _Job(seconds, resources, float(self.network.waits_s[source, target]))

    def _pass_through(self, replica: int) -> None:
        """Add the passes of a replica and the messages between them: all forward, then all backward."""
        before: list[list[int]] = [[] for _ in self.devices]
        for forward in (True, False):
            for _ in range(self.stages.microbatches):
                self._microbatch(replica, before, forward=forward)
        for stage, jobs in enumerate(before):
            self.last[stage] += jobs

    def _microbatch(self, replica: int, before: list[list[int]], *, forward: bool) -> None:
        """Add a microbatch's passes after the last jobs of their devices, `before`, and update `before`."""
        times = self.stages.forward_s if forward else self.stages.backward_s
        arriving: list[list[int]] = [[] for _ in before]
        for stage in range(len(before)) if forward else reversed(range(len(before))):
            seconds = float(times[stage] * self.network.slowness[self.devices[stage][replica]])
            done = self._add(_Job(seconds), *arriving[stage], *before[stage])
            before[stage] = [done]
            for edge, size in self.edges:
                sender, receiver = edge if forward else edge[::-1]
                if sender == stage:
                    sent = self._message(self.devices[stage][replica], self.devices[receiver][replica], size)
                    arriving[receiver].append(self._add(sent, done))

    def _reduce(self, stage: int) -> list[int]:
        """Add the rounds of a stage's all-reduce after its last passes; return the jobs of the last round."""
        ring, before = self.devices[stage], self.last[stage]
        size = float(self.stages.parameter_bytes[stage]) / len(ring)
        for _ in range(2 * (len(ring) - 1)):
            # A round starts when the previous one is over on all links, as equation 9 assumes.
            pairs = zip(ring, [*ring[1:], ring[0]], strict=True)
            before = [self._add(self._message(a, b, size), *before) for a, b in pairs]
        return before


def _ended_s(jobs: list[_Job]) -> list[float]:
    """Time at which each job has ended, including its message latency; a resource runs one job at a time."""
    waits_for, ready_s, ended = [job.waits_for for job in jobs], [0.0] * len(jobs), [0.0] * len(jobs)
    # Heap of events: a job becomes ready (False) or ends (True).
    events = [(0.0, False, k) for k, job in enumerate(jobs) if not job.waits_for]
    ready: list[int] = []
    busy: set[Resource] = set()
    while events:
        # Everything that ends now must release its resources before any job starts.
        now = events[0][0]
        while events and events[0][0] == now:
            _, over, k = heapq.heappop(events)
            if not over:
                ready.append(k)
                continue
            ended[k] = now + jobs[k].latency_s
            busy.difference_update(jobs[k].resources)
            for later in jobs[k].after:
                waits_for[later] -= 1
                ready_s[later] = max(ready_s[later], ended[k])
                if not waits_for[later]:
                    heapq.heappush(events, (ready_s[later], False, later))
        # Jobs are in the order in which they became ready: the one that waited longest goes first.
        waiting = []
        for k in ready:
            if busy.isdisjoint(jobs[k].resources):
                busy.update(jobs[k].resources)
                heapq.heappush(events, (now + jobs[k].seconds, True, k))
            else:
                waiting.append(k)
        ready = waiting
    return ended
