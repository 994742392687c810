"""When every message of a plan arrives: with contention, with links that serve in a fixed order, without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import simpy

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.network.contention import Network
from phaze.cost.network.messages import Message, Plan, check_plan
from phaze.cost.network.topology import Switching, Topology

Contention = Literal["arrival", "order", "none"]
"""First come first served; links that serve in the order of the plan; as if every transfer were alone."""

LOADING = 10_000
"""Messages that SimPy serves in less time than it takes to load machine code."""


@dataclass(frozen=True)
class Delivery:
    """A plan that has been carried out."""

    topology: Topology
    plan: Plan
    switching: Switching
    asked_s: Floats
    """When every message could have been sent, (messages,)."""
    started_s: Floats
    """When it got its first links."""
    arrived_s: Floats
    busy_s: Floats
    """Seconds for which every resource was held, (resources,)."""
    link_bytes: Floats
    """Bytes over every link, (links,)."""
    received_bytes: Floats
    """Bytes that came to every node, (nodes,)."""

    @property
    def time_s(self) -> float:
        """When the last message has arrived."""
        return float(self.arrived_s.max(initial=0.0))

    @cached_property
    def contention_s(self) -> Floats:
        """How much longer every message took than on an idle network (PALM, Equation 2)."""
        alone = [self.topology.seconds(m.source, m.target, m.size_bytes, self.switching) for m in self.plan]
        return np.maximum(self.arrived_s - self.asked_s - np.array(alone, np.float64), 0.0)

    @property
    def utilisation(self) -> Floats:
        """Share of the time for which every resource was held, (resources,)."""
        return self.busy_s / self.time_s if self.time_s > 0 else np.zeros_like(self.busy_s)

    @property
    def used_bandwidth(self) -> Floats:
        """Bytes over every link as a share of what it could have carried, (links,)."""
        width = np.array([link.bandwidth_bytes_per_s for link in self.topology.links])
        return self.link_bytes / (width * self.time_s) if self.time_s > 0 else np.zeros_like(width)

    @property
    def busiest(self) -> int:
        """First link of the resource that was held longest: what binds the time most."""
        return self.topology.resource_of.index(int(np.argmax(self.busy_s)))


def deliver(
    topology: Topology,
    plan: Sequence[Message],
    contention: Contention = "arrival",
    switching: Switching = "pipelined",
) -> Delivery:
    """Carry out a plan on a network that carries nothing else.

    Raises `PhazeError` on a plan or an option that cannot be.
    """
    check_plan(plan)
    if contention not in get_args(Contention):
        raise PhazeError(
            f"network: contention must be one of {', '.join(get_args(Contention))}, got {contention}"
        )
    if contention == "arrival":
        run = in_compiled_events if len(plan) > LOADING else in_events
        return run(topology, tuple(plan), switching)
    return _in_order(topology, tuple(plan), switching, contention == "order")


def in_events(topology: Topology, plan: Plan, switching: Switching) -> Delivery:
    """Carry out a plan first come first served, in discrete events of SimPy."""
    env = simpy.Environment()
    network = Network(env, topology, switching)
    times = np.zeros((3, len(plan)))

    def arrived(number: int, asked_s: float, started_s: float) -> None:
        times[:, number] = asked_s, started_s, env.now

    network.play(plan, arrived)
    env.run()
    return Delivery(
        topology,
        plan,
        switching,
        times[0],
        times[1],
        times[2],
        busy_s=np.array(network.busy_s),
        link_bytes=np.array(network.link_bytes),
        received_bytes=np.array(network.received_bytes),
    )


def in_compiled_events(topology: Topology, plan: Plan, switching: Switching) -> Delivery:
    """Do the same in compiled code."""
    from phaze.cost.network.compiled import events

    times, busy_s, link_bytes = events(topology, plan, switching)
    target = np.array([message.target for message in plan], np.int64)
    size = np.array([message.size_bytes for message in plan], np.float64)
    received = np.bincount(target, size * (times[2] >= 0), topology.nodes).astype(np.float64)
    return Delivery(topology, plan, switching, times[0], times[1], times[2], busy_s, link_bytes, received)


def _in_order(topology: Topology, plan: Plan, switching: Switching, exclusive: bool) -> Delivery:
    """Carry out a plan message by message; each comes after all earlier ones on links that it shares.

    Every time is then a maximum of sums of times, so that a longer one can only delay.
    """
    free = [0.0] * topology.resources
    busy, carried = [0.0] * topology.resources, [0.0] * len(topology.links)
    received = [0.0] * topology.nodes
    times = np.zeros((3, len(plan)))
    arrivals: list[float] = []
    for number, message in enumerate(plan):
        asked = max((arrivals[other] for other in message.after), default=0.0) + message.delay_s
        at, started = asked, -1.0
        for leg in topology.legs(message.source, message.target, switching):
            if exclusive:
                at = max(at, *(free[resource] for resource in leg.resources))
            started = at if started < 0 else started
            seconds = leg.seconds(message.size_bytes)
            at += seconds
            for resource in leg.resources:
                free[resource] = at
                busy[resource] += seconds
            for link in leg.links:
                carried[link] += message.size_bytes
        received[message.target] += message.size_bytes
        arrivals.append(at)
        times[:, number] = asked, started if started >= 0 else asked, at
    return Delivery(
        topology,
        plan,
        switching,
        times[0],
        times[1],
        times[2],
        busy_s=np.array(busy),
        link_bytes=np.array(carried),
        received_bytes=np.array(received),
    )
