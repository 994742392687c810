"""Arrival times of a plan's messages: with contention, with a fixed order on links, or without contention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.network.compiled import carry, columns
from phaze.cost.network.messages import Message, Plan, check_plan
from phaze.cost.network.topology import Switching, Topology

Contention = Literal["arrival", "order", "none"]
"""Contention model: first come, first served; links serve in plan order; or every transfer alone."""


@dataclass(frozen=True)
class Delivery:
    """Result of simulating a message plan: message times, and the links' busy time and bytes."""

    topology: Topology
    plan: Plan
    times_s: Floats
    """Times at which every message was ready, started and arrived, (3, messages)."""
    busy_s: Floats
    """Busy time of every resource, in seconds, (resources,)."""
    link_bytes: Floats
    """Bytes transferred over every link, (links,)."""

    @property
    def arrived_s(self) -> Floats:
        """Arrival time of every message, (messages,)."""
        return np.asarray(self.times_s[2])

    @property
    def received_bytes(self) -> Floats:
        """Bytes received by every node, (nodes,)."""
        target = np.array([message.target for message in self.plan], np.int64)
        size = np.array([message.size_bytes for message in self.plan], np.float64)
        return np.bincount(target, size * (self.arrived_s >= 0), self.topology.nodes).astype(np.float64)

    @property
    def time_s(self) -> float:
        """Arrival time of the last message."""
        return float(self.arrived_s.max(initial=0.0))


def deliver(
    topology: Topology,
    plan: Sequence[Message],
    contention: Contention = "arrival",
    switching: Switching = "pipelined",
) -> Delivery:
    """Simulate a message plan on an otherwise idle network.

    Raises `PhazeError` for an invalid plan or option.
    """
    check_plan(plan)
    if contention not in get_args(Contention):
        raise PhazeError(
            f"network: contention must be one of {', '.join(get_args(Contention))}, got {contention}"
        )
    if contention == "arrival":
        return Delivery(topology, tuple(plan), *carry(topology, columns(plan), switching))
    return _deliver_in_order(topology, tuple(plan), switching, contention == "order")


def _deliver_in_order(topology: Topology, plan: Plan, switching: Switching, exclusive: bool) -> Delivery:
    """Simulate a plan in plan order: each message follows all earlier ones on shared links.

    Every time is then a maximum of sums of durations, so a longer transfer can only delay others.
    """
    free = [0.0] * topology.resources
    busy, carried = [0.0] * topology.resources, [0.0] * len(topology.links)
    times = np.zeros((3, len(plan)))
    arrivals: list[float] = []
    for number, message in enumerate(plan):
        requested_s = max((arrivals[other] for other in message.after), default=0.0) + message.delay_s
        at_s, started_s = requested_s, -1.0
        for leg in topology.legs(message.source, message.target, switching):
            if exclusive:
                # The order of the plan replaces the queue: whoever comes earlier in it has the link first.
                at_s = max(at_s, *(free[resource] for resource in leg.resources))
            started_s = at_s if started_s < 0 else started_s
            seconds = leg.seconds(message.size_bytes)
            at_s += seconds
            for resource in leg.resources:
                free[resource] = at_s
                busy[resource] += seconds
            for link in leg.links:
                carried[link] += message.size_bytes
        arrivals.append(at_s)
        times[:, number] = requested_s, started_s if started_s >= 0 else requested_s, at_s
    return Delivery(topology, plan, times, np.array(busy), np.array(carried))
