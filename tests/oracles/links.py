"""What carries tensors and executes jobs in discrete events: all on their own, or over links that they share.

Any object with `carry` and `perform` is a machine for `events.simulate_events`. A model of tiles, a mesh or a
cluster needs to know no more of the pipeline than `Transfer` and `Task`: it may take the seconds as they are,
wait for what is contended first, or run a simulation of its own for the job.
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
    """A tensor on its way from one worker to another."""

    source: int
    """Stage that sends."""
    target: int
    """Stage that receives: source + 1 for activations, source - 1 for gradients."""
    source_worker: int
    target_worker: int
    microbatch: int
    seconds: float
    """Time on an idle network."""


@dataclass(frozen=True)
class Task:
    """A job of a worker or of a port."""

    kind: JobKind
    stage: int
    resource: int
    """Workers come first, then ports, as in `Jobs`."""
    number: int
    """Microbatch; of synchronisation, update and gather the batch."""
    seconds: float
    """Time on an idle machine."""


class Machine(Protocol):
    """Whatever takes time to carry a tensor and to do a job."""

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Return a process that ends when the tensor has arrived."""

    def perform(self, env: simpy.Environment, task: Task) -> Process:
        """Return a process that ends with the job; its resource does nothing else meanwhile."""


class Idle:
    """A wire for every transfer and all a job needs for every job: no contention."""

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Take the time of an idle network."""
        yield env.timeout(transfer.seconds)

    def perform(self, env: simpy.Environment, task: Task) -> Process:
        """Take the time of an idle machine."""
        yield env.timeout(task.seconds)


@dataclass(frozen=True)
class SharedLinks(Idle):
    """Links that one transfer at a time holds: all of its route for its whole time, first come first served.

    One object serves one simulation. Links are taken in rising order, so that transfers cannot block each
    other for ever.
    """

    routes: Mapping[tuple[int, int], tuple[int, ...]]
    """Links from a worker to another; a pair that is not in it has a wire of its own."""
    links: dict[int, simpy.Resource] = field(default_factory=dict, repr=False)
    busy_s: dict[int, float] = field(default_factory=dict, repr=False)
    """Seconds for which each link carried tensors."""

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Wait for every link of the route, and hold all of them."""
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
