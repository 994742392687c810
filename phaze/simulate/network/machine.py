"""A network as the machine of a pipeline: its tensors and its collectives contend for the same links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import simpy

from phaze.errors import PhazeError
from phaze.simulate.durations import Kind
from phaze.simulate.links import Process, Task, Transfer
from phaze.simulate.network.contention import Network
from phaze.simulate.network.messages import Message, Plan
from phaze.simulate.network.topology import Switching, Topology


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
    plans: Mapping[tuple[Kind, int], Plan] = field(default_factory=dict)
    """What the jobs of a kind send, by stage."""
    switching: Switching = "pipelined"
    network: Network | None = field(default=None, init=False)

    def carry(self, env: simpy.Environment, transfer: Transfer) -> Process:
        """Send a tensor from the tiles of a worker to those of another."""
        pair = transfer.source, transfer.target
        if pair not in self.sent_bytes:
            raise PhazeError(f"network: sent_bytes must have stages {pair[0]} to {pair[1]}")
        source, target = self.tiles[transfer.source_worker], self.tiles[transfer.target_worker]
        yield self._in(env).play(passing(source, target, self.sent_bytes[pair]))

    def perform(self, env: simpy.Environment, task: Task) -> Process:
        """Take the job's seconds, and wait for what it sends."""
        plan = self.plans.get((task.kind, task.stage), ())
        if plan:
            yield env.all_of([self._in(env).play(plan), env.timeout(task.seconds)])
        else:
            yield env.timeout(task.seconds)

    def _in(self, env: simpy.Environment) -> Network:
        if self.network is None:
            self.network = Network(env, self.topology, self.switching)
        return self.network


def passing(source: Sequence[int], target: Sequence[int], size_bytes: float) -> Plan:
    """Return a tensor from tiles to tiles, an equal share for each pair in order, the shorter repeated."""
    pairs = max(len(source), len(target))
    part = size_bytes / pairs
    return tuple(
        Message(source[k * len(source) // pairs], target[k * len(target) // pairs], part)
        for k in range(pairs)
    )
