"""Training step time if the devices of a node share its network port.

The bandwidths of a cluster are measured between two devices at a time (Parmesan, Section VII and Appendix
D-B), and `gpipe` gives every ordered pair of devices its own link. A machine with several devices has one
Ethernet port, so concurrent messages to other machines are sent one after the other. Here a message between
nodes occupies, in addition to its link, the output port of the sending node and the input port of the
receiving node, each for size / bandwidth. The message that has been ready longest goes first, unless one of
its ports is busy. Otherwise the model equals `gpipe`, with equal times if no message leaves a node.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from phaze.base.arrays import Ints
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.pipeline.gpipe import UPDATE_TRAFFIC, check_mapping
from phaze.workload.operator_graphs import StageGraph

Resource = tuple[str, int, int]
"""Link between two devices, or port of a node."""


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
    stages: StageGraph,
    mapping: Ints,
    network: DeviceNetwork,
    node: int,
    memory_bytes_per_s: float = math.inf,
) -> float:
    """Step time if the stages are mapped to devices `mapping`, shape (S, R), with `node` devices per node.

    Raises PhazeError for an invalid mapping.
    """
    check_mapping(stages, mapping, network.devices)
    work = _Work(stages, mapping, network, node)
    ended = _Events(work.jobs).ended_s()
    updates: list[float] = (UPDATE_TRAFFIC * stages.parameter_bytes / memory_bytes_per_s).tolist()
    over = [max(ended[k] for k in last) for last in work.last]
    return max(end + update for end, update in zip(over, updates, strict=True))


class _Work:
    """All jobs of a step: passes in order by device, messages, and all-reduce rounds."""

    def __init__(self, stages: StageGraph, mapping: Ints, network: DeviceNetwork, node: int) -> None:
        self.stages, self.network, self.node = stages, network, node
        self.devices: list[list[int]] = mapping.tolist()
        self.jobs: list[_Job] = []
        self.last: list[list[int]] = [[] for _ in self.devices]
        """Indices of the jobs that precede the update of each stage."""
        for replica in range(stages.replicas):
            self._pass_through(replica)
        for stage in range(len(self.devices)):
            self.last[stage] = self._reduce(stage)

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
        for stage, own in enumerate(before):
            self.last[stage] += own

    def _microbatch(self, replica: int, before: list[list[int]], *, forward: bool) -> None:
        """Add a microbatch's passes after the last jobs of their devices, `before`, and update `before`."""
        times = self.stages.forward_s if forward else self.stages.backward_s
        arriving: list[list[int]] = [[] for _ in before]
        for stage in range(len(before)) if forward else reversed(range(len(before))):
            done = self._add(_Job(float(times[stage])), *arriving[stage], *before[stage])
            before[stage] = [done]
            for other, size in self._sent(stage, forward=forward):
                sent = self._message(self.devices[stage][replica], self.devices[other][replica], size)
                arriving[other].append(self._add(sent, done))

    def _sent(self, stage: int, *, forward: bool) -> Iterator[tuple[int, float]]:
        """Yield each stage to which a stage sends a microbatch, with the number of bytes sent."""
        edges = self.stages.edges.reshape(-1, 2).tolist()
        for (source, target), size in zip(edges, self.stages.edge_bytes.tolist(), strict=True):
            if (source if forward else target) == stage:
                yield (target if forward else source), size

    def _reduce(self, stage: int) -> list[int]:
        """Add the rounds of a stage's all-reduce after its last passes; return the jobs of the last round."""
        ring, before = self.devices[stage], self.last[stage]
        size = float(self.stages.parameter_bytes[stage]) / len(ring)
        for _ in range(2 * (len(ring) - 1)):
            pairs = zip(ring, [*ring[1:], ring[0]], strict=True)
            before = [self._add(self._message(a, b, size), *before) for a, b in pairs]
        return before


class _Events:
    """Event simulation of the jobs; each resource runs one job at a time."""

    def __init__(self, jobs: list[_Job]) -> None:
        self.jobs = jobs
        self.waits_for = [job.waits_for for job in jobs]
        self.may_begin_s = [0.0] * len(jobs)
        self.events = [(0.0, False, k) for k, job in enumerate(jobs) if not job.waits_for]
        """Heap of events: a job becomes ready (False) or ends (True)."""
        self.ready: list[int] = []
        self.busy: set[Resource] = set()

    def ended_s(self) -> list[float]:
        """Time at which each job has ended, including its message latency."""
        ended = [0.0] * len(self.jobs)
        heapq.heapify(self.events)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, over, k = heapq.heappop(self.events)
                if over:
                    ended[k] = now + self.jobs[k].latency_s
                    self._end(k, ended[k])
                else:
                    self.ready.append(k)
            self._begin(now)
        return ended

    def _end(self, k: int, time_s: float) -> None:
        """Release the resources of a job, and queue dependent jobs whose predecessors are all over."""
        self.busy.difference_update(self.jobs[k].resources)
        for later in self.jobs[k].after:
            self.waits_for[later] -= 1
            self.may_begin_s[later] = max(self.may_begin_s[later], time_s)
            if not self.waits_for[later]:
                heapq.heappush(self.events, (self.may_begin_s[later], False, later))

    def _begin(self, now: float) -> None:
        """Start the ready jobs whose resources are free."""
        waiting = []
        for k in self.ready:
            if self.busy.isdisjoint(self.jobs[k].resources):
                self.busy.update(self.jobs[k].resources)
                heapq.heappush(self.events, (now + self.jobs[k].seconds, True, k))
            else:
                waiting.append(k)
        self.ready = waiting
