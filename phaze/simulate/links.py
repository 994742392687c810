"""What carries tensors between stages in discrete events: wires of their own, or links that transfers share.

Any object with `carry` is a network for `events.simulate_events`; a model of a mesh or of a cluster needs to
know no more of the pipeline than `Transfer`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import simpy

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


class Network(Protocol):
    """Whatever takes time to carry a tensor."""

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Return a process that ends when the tensor has arrived."""


@dataclass(frozen=True)
class Wires:
    """A wire for every transfer: no contention."""

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Take the time of an idle network."""
        yield env.timeout(transfer.seconds)


@dataclass(frozen=True)
class SharedLinks:
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
