"""Machines that carry tensors and run jobs in discrete events: without contention, or over shared links.

Any object with `carry` and `perform` is a machine for `events.simulate_events`. A model of tiles, a mesh or a
cluster only needs to know `Transfer` and `Task` of the pipeline. It may use the given seconds, wait for
contended resources first, or run its own simulation of the job.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import simpy

from phaze.pipeline.durations import JobKind

Process = Generator[simpy.Event, object, None]


@dataclass(frozen=True)
class Transfer:
    """Tensor sent from one worker to another."""

    source: int
    """Source stage."""
    target: int
    """Target stage: source + 1 for activations, source - 1 for gradients."""
    source_worker: int
    target_worker: int
    microbatch: int
    seconds: float
    """Time on an idle network."""


@dataclass(frozen=True)
class Task:
    """Job of a worker or of a port."""

    kind: JobKind
    stage: int
    resource: int
    """Index of the resource; workers come first, then ports, as in `Jobs`."""
    number: int
    """Microbatch; for synchronisation, update and gather the batch."""
    seconds: float
    """Time on an idle machine."""


class Machine(Protocol):
    """Interface of a machine: carries tensors and runs jobs."""

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Return a process that ends when the tensor has arrived."""

    def perform(self, env: simpy.Environment, task: Task) -> Process:
        """Return a process that ends with the job; its resource is busy meanwhile."""


class Idle:
    """Machine without contention: every transfer has its own wire, every job its resources."""

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Take the time of an idle network."""
        yield env.timeout(transfer.seconds)

    def perform(self, env: simpy.Environment, task: Task) -> Process:
        """Take the time of an idle machine."""
        yield env.timeout(task.seconds)


@dataclass(frozen=True)
class SharedLinks(Idle):
    """Links that carry one transfer at a time: a transfer occupies its whole route, first come first served.

    One object serves one simulation. Links are acquired in ascending order, which avoids deadlocks.
    """

    routes: Mapping[tuple[int, int], tuple[int, ...]]
    """Links from one worker to another; missing pairs have their own wire."""
    links: dict[int, simpy.Resource] = field(default_factory=dict, repr=False)
    busy_s: dict[int, float] = field(default_factory=dict, repr=False)
    """Busy seconds of each link."""

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Wait for every link of the route, and occupy all of them."""
        route = sorted(set(self.routes.get((transfer.source_worker, transfer.target_worker), ())))
        held = []
        for name in route:
            link = self.links.setdefault(name, simpy.Resource(env))
            request = link.request()
            yield request
            held.append((link, request))
        yield env.timeout(transfer.seconds)
        for name, (link, request) in zip(route, held, strict=True):
            self.busy_s[name] = self.busy_s.get(name, 0.0) + transfer.seconds
            link.release(request)
