"""Contended links as discrete events of SimPy: the oracle of `phaze.cost.network.compiled`, with the same
rules.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import simpy

from phaze.cost.network.delivery import Delivery
from phaze.cost.network.messages import Message, Plan, check_plan
from phaze.cost.network.topology import Leg, Switching, Topology

Arrived = Callable[[float], None]
"""Callback on arrival, with the time at which the first link was occupied."""


def deliver_events(topology: Topology, plan: Plan, switching: Switching = "pipelined") -> Delivery:
    """Simulate a plan, first come first served."""
    env = simpy.Environment()
    carrier = Carrier(env, topology, switching)
    times = np.full((3, len(plan)), -1.0)

    def arrived(number: int, asked_s: float, started_s: float) -> None:
        times[:, number] = asked_s, started_s, env.now

    carrier.play(plan, arrived)
    env.run()
    return Delivery(topology, plan, times, np.array(carrier.busy_s), np.array(carrier.link_bytes))


class _Transfer:
    """Message in flight."""

    __slots__ = ("arrived", "blocked", "legs", "number", "seconds", "size_bytes", "started_s", "target")

    def __init__(self, target: int, size_bytes: float, legs: tuple[Leg, ...], arrived: Arrived) -> None:
        self.target, self.size_bytes, self.legs, self.arrived = target, size_bytes, legs, arrived
        self.number, self.blocked = 0, 0
        self.seconds, self.started_s = 0.0, -1.0


class Carrier:
    """Simulated topology; one object serves one SimPy environment."""

    def __init__(
        self, env: simpy.Environment, topology: Topology, switching: Switching = "pipelined"
    ) -> None:
        self.env, self.topology, self.switching = env, topology, switching
        self.queues: list[deque[_Transfer]] = [deque() for _ in range(topology.resources)]
        self.busy_s = [0.0] * topology.resources
        """Busy seconds of every resource."""
        self.link_bytes = [0.0] * len(topology.links)
        """Bytes over every link."""
        self.received_bytes = [0.0] * topology.nodes
        self.sent_bytes = [0.0] * topology.nodes

    def send(self, source: int, target: int, size_bytes: float, arrived: Arrived) -> None:
        """Send bytes now, with a callback on arrival."""
        legs = self.topology.legs(source, target, self.switching)
        self.sent_bytes[source] += size_bytes
        transfer = _Transfer(target, size_bytes, legs, arrived)
        if legs:
            self._ask(transfer)
        else:
            self._at_once(transfer)

    def transfer(self, source: int, target: int, size_bytes: float) -> simpy.Event:
        """Send bytes now, and return an event for their arrival."""
        done = self.env.event()
        self.send(source, target, size_bytes, lambda _: _happen(done))
        return done

    def play(
        self, plan: Sequence[Message], arrived: Callable[[int, float, float], None] | None = None
    ) -> simpy.Event:
        """Start a plan now, and return an event for the arrival of all its messages.

        The callback gets the number of every message that arrives, its request time and its start time.
        """
        check_plan(plan)
        return _Play(self, plan, arrived or _ignore).done

    def hold(self, leg: Leg) -> simpy.Event:
        """Occupy resources together for the latency of a leg, and return an event for its end."""
        done = self.env.event()
        self._ask(_Transfer(0, 0.0, (leg,), lambda _: _happen(done)))
        return done

    def _at_once(self, transfer: _Transfer) -> None:
        """Deliver local messages at this instant, after earlier requests."""
        transfer.started_s = self.env.now
        event = self.env.timeout(0.0)
        event.callbacks.append(partial(self._arrive, transfer))

    def _ask(self, transfer: _Transfer) -> None:
        """Queue at every link of the leg."""
        waiting = 0
        for resource in transfer.legs[transfer.number].resources:
            queue = self.queues[resource]
            waiting += bool(queue)
            queue.append(transfer)
        transfer.blocked = waiting
        if not waiting:
            self._begin(transfer)

    def _begin(self, transfer: _Transfer) -> None:
        if transfer.started_s < 0:
            transfer.started_s = self.env.now
        transfer.seconds = transfer.legs[transfer.number].seconds(transfer.size_bytes)
        event = self.env.timeout(transfer.seconds)
        event.callbacks.append(partial(self._end, transfer))

    def _end(self, transfer: _Transfer, event: simpy.Event) -> None:
        """Release the links to waiting transfers, and continue."""
        leg = transfer.legs[transfer.number]
        for link in leg.links:
            self.link_bytes[link] += transfer.size_bytes
        ready = []
        for resource in leg.resources:
            queue = self.queues[resource]
            queue.popleft()
            self.busy_s[resource] += transfer.seconds
            if queue:
                queue[0].blocked -= 1
                if not queue[0].blocked:
                    ready.append(queue[0])
        for other in ready:
            self._begin(other)
        transfer.number += 1
        if transfer.number < len(transfer.legs):
            self._ask(transfer)
        else:
            self._arrive(transfer, event)

    def _arrive(self, transfer: _Transfer, _: simpy.Event) -> None:
        self.received_bytes[transfer.target] += transfer.size_bytes
        transfer.arrived(transfer.started_s)


class _Play:
    """Plan in execution."""

    def __init__(
        self, carrier: Carrier, plan: Sequence[Message], arrived: Callable[[int, float, float], None]
    ) -> None:
        self.carrier, self.plan, self.arrived = carrier, plan, arrived
        self.done = carrier.env.event()
        self.left = len(plan)
        self.missing = [len(message.after) for message in plan]
        self.followers: list[list[int]] = [[] for _ in plan]
        for number, message in enumerate(plan):
            for other in message.after:
                self.followers[other].append(number)
        for number, missing in enumerate(self.missing[:]):
            if not missing:
                self._release(number)
        if not plan:
            self.done.succeed()

    def _release(self, number: int) -> None:
        delay = self.plan[number].delay_s
        if delay > 0:
            event = self.carrier.env.timeout(delay)
            event.callbacks.append(lambda _: self._send(number))
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        message = self.plan[number]
        arrived = partial(self._arrive, number, self.carrier.env.now)
        self.carrier.send(message.source, message.target, message.size_bytes, arrived)

    def _arrive(self, number: int, asked_s: float, started_s: float) -> None:
        """Send messages whose dependencies have arrived."""
        self.arrived(number, asked_s, started_s)
        for follower in self.followers[number]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self._release(follower)
        self.left -= 1
        if not self.left:
            _happen(self.done)


def _happen(event: simpy.Event) -> None:
    event.succeed()


def _ignore(number: int, asked_s: float, started_s: float) -> None:
    """Do nothing with an arrival."""
