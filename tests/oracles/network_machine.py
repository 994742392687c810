"""A network as the machine of a pipeline: its tensors and its collectives contend for the same links."""

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
"""Whether every message holds the links of its route, or a plan those of all its messages for its whole time.

A plan's time on an idle network is found once. Where plans do not meet, both are equal; where they do, a plan
that holds all of its links waits longer, and makes others wait longer, than its messages would.
"""


@dataclass
class NetworkMachine:
    """Carries tensors between the tiles of workers, and runs jobs with what they send; for one simulation.

    A job sends the plan of its kind and stage when it starts, beside the seconds that it takes anyway, and is
    over when both are. Synchronisation that a plan replaces should have only the seconds that come on top.
    """

    topology: Topology
    tiles: Sequence[Sequence[int]]
    """Tiles of every worker."""
    sent_bytes: Mapping[tuple[int, int], float]
    """Bytes of a tensor between two neighbouring stages, (source, target); all tiles send equal shares."""
    plans: Mapping[tuple[JobKind, int], Plan] = field(default_factory=dict)
    """What the jobs of a kind send, by stage."""
    switching: Switching = "pipelined"
    detail: Detail = "messages"
    _wholes: dict[int, Whole] = field(default_factory=dict, init=False, repr=False)
    """By the identity of the plan; hashing a plan takes longer."""
    _passing: dict[tuple[int, int, float], Plan] = field(default_factory=dict, init=False, repr=False)
    network: Carrier | None = field(default=None, init=False)

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Send a tensor from the tiles of a worker to those of another."""
        pair = transfer.source, transfer.target
        if pair not in self.sent_bytes:
            raise PhazeError(f"network: sent_bytes must have stages {pair[0]} to {pair[1]}")
        plan = self._between(transfer.source_worker, transfer.target_worker, self.sent_bytes[pair])
        yield self._send(env, plan)

    def perform(self, env: simpy.Environment, task: Task) -> Process:
        """Take the job's seconds, and wait for what it sends."""
        plan = self.plans.get((task.kind, task.stage), ())
        if plan:
            yield env.all_of([self._send(env, plan), env.timeout(task.seconds)])
        else:
            yield env.timeout(task.seconds)

    def _send(self, env: simpy.Environment, plan: Plan) -> simpy.Event:
        """Start a plan, and return an event that happens when all of it has arrived."""
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
    """A plan that holds all of its links for as long as it takes alone."""

    plan: Plan
    """Kept, because plans are known by their identity, which lasts as long as they are here."""
    leg: Leg
    sent: tuple[tuple[int, float], ...]
    """Nodes that send and their bytes."""
    received: tuple[tuple[int, float], ...]
    carried: tuple[tuple[int, float], ...]
    """Links and the bytes over them."""


def _whole(topology: Topology, plan: Plan, switching: Switching) -> Whole:
    """Return what a plan holds and brings as a whole."""
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
