"""What a mapping is judged by before it is simulated: the longest stage time (Parmesan, (5) to (9)).

A stage takes c_u + c_m + c_AR: the passes of a microbatch, its messages to and from the adjacent stages, and
the all-reduce of its gradients. The paper's two instantiations leave out one of the two, because all three
together are known late in a search; here all three are a third one.

- c_m (8): M(s, s') / B summed over the adjacent stages. Activations go one way and gradients back, c_u counts
  both passes, and so does this: the bytes of an edge over the bandwidth there, and over that back.
- c_AR (9): 2 (R − 1) / R · P / B of the slowest link of the ring of replicas.

With a latency L every message takes L + M / B, every one of the 2 (R − 1) rounds of a ring L + P / (R B).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from phaze.errors import PhazeError
from phaze.ndarrays import Floats, Ints
from phaze.theory.device_networks import DeviceNetwork
from phaze.theory.operator_graphs import StageGraph

Instantiation = Literal["p2p", "allreduce", "exact"]
"""c_u + c_m (6), c_u + c_AR (7), or c_u + c_m + c_AR."""
INSTANTIATIONS: tuple[Instantiation, ...] = get_args(Instantiation)


@dataclass(frozen=True, eq=False)
class Problem:
    """Stages to be mapped, the network of their devices, and what of a stage's time is counted."""

    stages: StageGraph
    network: DeviceNetwork
    instantiation: Instantiation

    def __post_init__(self) -> None:
        """Refuse a network that is too small."""
        if self.network.devices < self.slots:
            stages, replicas = self.shape
            raise PhazeError(
                f"network: needs at least {self.slots} devices for {stages} stages x {replicas} replicas, "
                f"got {self.network.devices}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Return S and R."""
        return len(self.stages.forward_s), self.stages.replicas

    @property
    def slots(self) -> int:
        """Return S R, the devices that are needed."""
        return self.shape[0] * self.shape[1]

    @property
    def counts_messages(self) -> bool:
        """Return whether c_m is counted."""
        return self.instantiation != "allreduce"

    @property
    def counts_rings(self) -> bool:
        """Return whether c_AR is counted; a ring of one replica has no links."""
        return self.instantiation != "p2p" and self.stages.replicas > 1

    @cached_property
    def edges(self) -> Ints:
        """Return the edges that are counted, shape (e, 2)."""
        pairs = np.ascontiguousarray(self.stages.edges.reshape(-1, 2), np.int64)
        return pairs if self.counts_messages else pairs[:0]

    @cached_property
    def edge_bytes(self) -> Floats:
        """Return the bytes of the edges that are counted, shape (e,)."""
        return np.ascontiguousarray(self.stages.edge_bytes[: len(self.edges)], np.float64)

    @cached_property
    def both_ways(self) -> tuple[Floats, Floats]:
        """Return seconds per byte and latency there and back, shapes (D, D)."""
        seconds, waits = self.network.seconds_per_byte, self.network.waits_s
        return np.ascontiguousarray(seconds + seconds.T), np.ascontiguousarray(waits + waits.T)

    @cached_property
    def ring_bytes(self) -> Floats:
        """Return what a link of each stage's ring carries in an all-reduce, 2 (R − 1) / R · P, shape (S,)."""
        replicas = self.stages.replicas
        return np.ascontiguousarray(2.0 * (replicas - 1) / replicas * self.stages.parameter_bytes)

    @property
    def ring_waits(self) -> float:
        """Return how often a latency occurs in an all-reduce."""
        return 2.0 * (self.stages.replicas - 1)

    def stage_times_s(self, mapping: Ints) -> Floats:
        """Return the time of every stage, of its slowest replica, under a mapping (S, R)."""
        message_s, message_wait_s = self.both_ways
        times = np.tile(self.stages.compute_s, (self.stages.replicas, 1)).T
        for (s, t), size in zip(self.edges, self.edge_bytes, strict=True):
            there = mapping[s], mapping[t]
            cost = size * message_s[there] + message_wait_s[there]
            times[s] += cost
            times[t] += cost
        longest: Floats = times.max(axis=1)
        return longest + self.all_reduce_s(mapping) if self.counts_rings else longest

    def all_reduce_s(self, mapping: Ints) -> Floats:
        """Return the time of the all-reduce of every stage by its slowest link, shape (S,)."""
        links = mapping, np.roll(mapping, -1, axis=1)
        seconds, waits = self.network.seconds_per_byte[links], self.network.waits_s[links]
        slowest: Floats = (self.ring_bytes[:, None] * seconds + self.ring_waits * waits).max(axis=1)
        return slowest

    def value_s(self, mapping: Ints) -> float:
        """Return the longest stage time (5)."""
        return float(self.stage_times_s(mapping).max())


def choose_instantiation(stages: StageGraph) -> Instantiation:
    """Return the instantiation by the ratio of bytes, of gradients reduced to those passed between stages.

    Above one the all-reduce counts (Section V-B). Both are taken for a step: a ring's link carries
    2 (R − 1) / R of the gradients once, an edge its bytes there and back for every microbatch.
    """
    replicas = stages.replicas
    reduced = 2.0 * (replicas - 1) / replicas * stages.parameter_bytes.sum()
    passed = 2.0 * stages.microbatches * stages.edge_bytes.sum()
    return "allreduce" if reduced > passed else "p2p"


def lower_bound_s(problem: Problem) -> float:
    """Return a time that no mapping stays below: (10), (11), or the larger for all three terms.

    With all three every stage takes at least its best messages and its best ring, each for itself.
    """
    compute = problem.stages.compute_s
    messages = _best_messages_s(problem)
    rings = _best_rings_s(problem) if problem.counts_rings else np.zeros_like(messages)
    return float((compute + (messages + rings).min(axis=1)).max())


def _best_messages_s(problem: Problem) -> Floats:
    """Return the least messages of every stage on every device: largest edges on best links, shape (S, D).

    Sorting is exact without latencies, and with equal ones; otherwise the latencies are bounded apart.
    """
    stages, devices = problem.shape[0], problem.network.devices
    seconds, waits = (np.sort(_without_self(matrix), axis=1) for matrix in problem.both_ways)
    least = np.zeros((stages, devices))
    for s in range(stages):
        sizes = np.sort(problem.edge_bytes[(problem.edges == s).any(axis=1)])[::-1]
        count = len(sizes)
        least[s] = seconds[:, :count] @ sizes + waits[:, :count].sum(axis=1)
    return least


def _best_rings_s(problem: Problem) -> Floats:
    """Return the least slowest link of a ring through every device, to two others, shape (S, D).

    With R = 2 both links go to one device.
    """
    seconds, waits, replicas = problem.network.seconds_per_byte, problem.network.waits_s, problem.shape[1]
    if not waits.any():
        return np.multiply.outer(problem.ring_bytes, _best_pass(seconds, replicas))
    pairs = (size * seconds + problem.ring_waits * waits for size in problem.ring_bytes)
    return np.array([_best_pass(pair, replicas) for pair in pairs])


def _best_pass(link_s: Floats, replicas: int) -> Floats:
    """Return for every device the least of the slower of a link in and a link out, shape (D,)."""
    if replicas == 2:
        return np.asarray(_without_self(np.maximum(link_s, link_s.T)).min(axis=1))
    out, into = _without_self(link_s), _without_self(link_s.T)
    first_out, first_in = out.argmin(axis=1), into.argmin(axis=1)
    outs, ins = (np.partition(links, 1, axis=1)[:, :2].T for links in (out, into))
    shared = np.minimum(np.maximum(outs[0], ins[1]), np.maximum(outs[1], ins[0]))
    return np.asarray(np.where(first_out == first_in, shared, np.maximum(outs[0], ins[0])))


def _without_self(matrix: Floats) -> Floats:
    """Return the matrix without its diagonal, shape (D, D − 1)."""
    devices = len(matrix)
    return np.asarray(matrix[~np.eye(devices, dtype=bool)].reshape(devices, devices - 1))
