"""Network as the machine of a pipeline: tensors and collectives contend for the same links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import simpy

from phaze.base.errors import PhazeError
from phaze.cost.network.delivery import deliver
from phaze.cost.network.messages import Message, Plan
from phaze.cost.network.topology import Leg, Switching, Topology
from phaze.pipeline.durations import JobKind
from phaze.pipeline.traffic import passing
from tests.oracles.contention import Carrier
from tests.oracles.links import Process, Task, Transfer

Detail = Literal["messages", "plans"]
"""Granularity: every message occupies the links of its route, or a plan those of all its messages for its
whole time.

The time of a plan on an idle network is computed once. If plans do not overlap, both give equal times. If
they do, a plan that occupies all of its links waits longer, and delays others longer, than its messages
would.
"""


@dataclass
class NetworkMachine:
    """Machine that carries tensors between the tiles of workers, and runs jobs with their messages; for one
    simulation.

    A job starts the plan of its kind and stage concurrently with its own seconds, and ends when both have
    ended. If a plan replaces synchronisation, the job should have only its remaining seconds.
    """

    topology: Topology
    tiles: Sequence[Sequence[int]]
    """Tiles of every worker."""
    sent_bytes: Mapping[tuple[int, int], float]
    """Bytes of a tensor between two neighbouring stages, (source, target); all tiles send equal shares."""
    plans: Mapping[tuple[JobKind, int], Plan] = field(default_factory=dict)
    """Plans of jobs by kind and stage."""
    switching: Switching = "pipelined"
    detail: Detail = "messages"
    _wholes: dict[int, Whole] = field(default_factory=dict, init=False, repr=False)
    """Cache by identity of the plan, because hashing a plan is slow."""
    _passing: dict[tuple[int, int, float], Plan] = field(default_factory=dict, init=False, repr=False)
    network: Carrier | None = field(default=None, init=False)

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Send a tensor from the tiles of one worker to those of another."""
        pair = transfer.source, transfer.target
        if pair not in self.sent_bytes:
            raise PhazeError(f"network: sent_bytes must have stages {pair[0]} to {pair[1]}")
        plan = self._between(transfer.source_worker, transfer.target_worker, self.sent_bytes[pair])
        yield self._send(env, plan)

    def perform(self, env: simpy.Environment, task: Task) -> Process:
        """Take the job's seconds, and wait for its messages."""
        plan = self.plans.get((task.kind, task.stage), ())
        if plan:
            yield env.all_of([self._send(env, plan), env.timeout(task.seconds)])
        else:
            yield env.timeout(task.seconds)

    def _send(self, env: simpy.Environment, plan: Plan) -> simpy.Event:
        """Start a plan, and return an event for the arrival of all its messages."""
        network = self._in(env)
        if self.detail == "messages":
            return network.play(plan)
        if id(plan) not in self._wholes:
            self._wholes[id(plan)] = _whole(self.topology, plan, self.switching)
        whole = self._wholes[id(plan)]
        for node, amount in whole.sent:
            network.sent_bytes[node] += amount
        done = network.hold(whole.leg)
        callbacks = done.callbacks
        assert callbacks is not None
        callbacks.append(lambda _: _arrive(network, whole))
        return done

    def _between(self, source: int, target: int, size_bytes: float) -> Plan:
        """Return the plan of a tensor between two workers."""
        key = source, target, size_bytes
        if key not in self._passing:
            self._passing[key] = passing(self.tiles[source], self.tiles[target], size_bytes)
        return self._passing[key]

    def _in(self, env: simpy.Environment) -> Carrier:
        if self.network is None:
            self.network = Carrier(env, self.topology, self.switching)
        return self.network


@dataclass(frozen=True)
class Whole:
    """Plan that occupies all of its links for its idle-network time."""

    plan: Plan
    """Reference that keeps the plan alive, because plans are identified by identity."""
    leg: Leg
    sent: tuple[tuple[int, float], ...]
    """Sending nodes and their bytes."""
    received: tuple[tuple[int, float], ...]
    carried: tuple[tuple[int, float], ...]
    """Links and their bytes."""


def _whole(topology: Topology, plan: Plan, switching: Switching) -> Whole:
    """Return the links, nodes and bytes of a plan as a whole."""
    alone = deliver(topology, plan, switching=switching)
    resources = tuple(np.flatnonzero(alone.busy_s > 0).tolist())
    leg = Leg((), resources, alone.time_s, float("inf"))
    sent = _positive(sent_by(plan, topology.nodes))
    return Whole(
        plan, leg, sent, _positive(alone.received_bytes.tolist()), _positive(alone.link_bytes.tolist())
    )


def _positive(amounts: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Return those above 0 with their places."""
    return tuple((place, amount) for place, amount in enumerate(amounts) if amount > 0)


def _arrive(network: Carrier, whole: Whole) -> None:
    """Count the bytes of a plan that has arrived."""
    for node, amount in whole.received:
        network.received_bytes[node] += amount
    for link, amount in whole.carried:
        network.link_bytes[link] += amount


def sent_by(plan: Iterable[Message], nodes: int) -> list[float]:
    """Return the bytes that every node sends."""
    sent = [0.0] * nodes
    for message in plan:
        sent[message.source] += message.size_bytes
    return sent
