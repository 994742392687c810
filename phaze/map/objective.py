"""Objective of a mapping before simulation: the longest stage time (Parmesan, (5) to (9)).

A stage takes c_u + c_m + c_AR: the passes of a microbatch, its messages to and from the adjacent stages, and
the all-reduce of its gradients. The paper's two instantiations omit c_m or c_AR, because the sum of all three
is known only late in a search. Here the sum of all three is a third instantiation.

- c_m (8): M(s, s') / B summed over the adjacent stages. Activations go one way and gradients back. As c_u
  covers both passes, an edge counts its bytes over the bandwidth in both directions.
- c_AR (9): 2 (R − 1) / R · P / B of the slowest link of the ring of replicas.

On devices of several speeds c_u is the time of the passes over the speed of the device.

With a latency L each message takes L + M / B, and each of the 2 (R − 1) rounds of a ring L + P / (R B).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.deadline import Deadline, OutOfTimeError
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.network import rounds, sent_bytes
from phaze.spec.names import Instantiation
from phaze.workload.operator_graphs import StageGraph

INSTANTIATIONS: tuple[Instantiation, ...] = get_args(Instantiation)


@dataclass(frozen=True, eq=False)
class MappingProblem:
    """Stages to map, the network of devices, and the terms that the stage time includes."""

    stages: StageGraph
    network: DeviceNetwork
    instantiation: Instantiation

    def __post_init__(self) -> None:
        """Raise PhazeError if the network is too small."""
        if self.network.devices < self.slots:
            stages, replicas = self.shape
            raise PhazeError(
                f"network: needs at least {self.slots} devices for {stages} stages x {replicas} replicas, "
                f"got {self.network.devices}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of stages and replicas, S and R."""
        return len(self.stages.forward_s), self.stages.replicas

    @property
    def slots(self) -> int:
        """Number of devices needed, S R."""
        return self.shape[0] * self.shape[1]

    @property
    def counts_messages(self) -> bool:
        """True if the stage time includes the message time c_m."""
        return self.instantiation != "allreduce"

    @property
    def counts_rings(self) -> bool:
        """True if the stage time includes the all-reduce time c_AR; a ring of one replica has no links."""
        return self.instantiation != "p2p" and self.stages.replicas > 1

    @cached_property
    def least_compute_s(self) -> Floats:
        """Compute time of each stage on the fastest device, shape (S,)."""
        return np.ascontiguousarray(self.stages.compute_s * self.network.slowness.min())

    @cached_property
    def extra_compute_s(self) -> Floats:
        """Compute time of each stage on each device beyond the one on the fastest, shape (S, D)."""
        slowness = self.network.slowness
        return np.asarray(np.multiply.outer(self.stages.compute_s, slowness - slowness.min()))

    @cached_property
    def edges(self) -> Ints:
        """Edges included in the stage time, shape (e, 2)."""
        pairs = np.ascontiguousarray(self.stages.edges.reshape(-1, 2), np.int64)
        return pairs if self.counts_messages else pairs[:0]

    @cached_property
    def edge_bytes(self) -> Floats:
        """Bytes of each edge in `edges`, shape (e,)."""
        return np.ascontiguousarray(self.stages.edge_bytes[: len(self.edges)], np.float64)

    @cached_property
    def ring_bytes(self) -> Floats:
        """Bytes over each link of a stage's ring in an all-reduce, 2 (R − 1) / R · P, shape (S,)."""
        sent = sent_bytes("all_reduce", self.stages.parameter_bytes, self.stages.replicas)
        return np.ascontiguousarray(sent)

    @property
    def ring_waits(self) -> float:
        """Number of link latencies in an all-reduce."""
        return rounds("all_reduce", self.stages.replicas)

    def stage_times_s(self, mapping: Ints) -> Floats:
        """Time of the slowest replica of each stage under a mapping (S, R), shape (S,)."""
        seconds, waits = self.network.seconds_per_byte, self.network.waits_s
        times = self.stages.compute_s[:, None] * self.network.slowness[mapping]
        for (s, t), size in zip(self.edges, self.edge_bytes, strict=True):
            out, back = (mapping[s], mapping[t]), (mapping[t], mapping[s])
            cost = size * (seconds[out] + seconds[back]) + (waits[out] + waits[back])
            times[s] += cost
            times[t] += cost
        longest: Floats = times.max(axis=1)
        return longest + self.all_reduce_s(mapping) if self.counts_rings else longest

    def all_reduce_s(self, mapping: Ints) -> Floats:
        """All-reduce time of each stage, by its slowest link, shape (S,)."""
        links = mapping, np.roll(mapping, -1, axis=1)
        seconds, waits = self.network.seconds_per_byte[links], self.network.waits_s[links]
        slowest: Floats = (self.ring_bytes[:, None] * seconds + self.ring_waits * waits).max(axis=1)
        return slowest

    def value_s(self, mapping: Ints) -> float:
        """Longest stage time of a mapping, Equation (5)."""
        return float(self.stage_times_s(mapping).max())


def choose_instantiation(stages: StageGraph) -> Instantiation:
    """Choose an instantiation by the ratio of gradient bytes reduced to bytes passed between stages.

    The all-reduce is included if the ratio exceeds one (Section V-B). Both are per step: a ring's link
    carries 2 (R − 1) / R of the gradients once, an edge its bytes in both directions for each microbatch.
    """
    reduced = sent_bytes("all_reduce", float(stages.parameter_bytes.sum()), stages.replicas)
    passed = 2.0 * stages.microbatches * stages.edge_bytes.sum()
    return "allreduce" if reduced > passed else "p2p"


def lower_bound_s(problem: MappingProblem, deadline: Deadline | None = None) -> float:
    """Lower bound on the objective of all mappings: Parmesan's (10) or (11), or a bound for all three terms.

    With all three terms each stage takes at least its best messages plus its best ring, bounded
    independently. At the deadline the bound is the longest compute time of a stage.
    """
    compute, until = problem.least_compute_s, deadline or Deadline()
    try:
        messages = _best_messages_s(problem, until)
        rings = _best_rings_s(problem, until) if problem.counts_rings else np.zeros_like(messages)
    except OutOfTimeError:
        return float(compute.max())
    return float((compute + (messages + rings + problem.extra_compute_s).min(axis=1)).max())


def _best_messages_s(problem: MappingProblem, until: Deadline) -> Floats:
    """Lower bound on the message time c_m of each stage on each device, from its best links, shape (S, D).

    Sorting is exact without latencies and with equal ones; otherwise the latencies are bounded separately.
    """
    stages, devices = problem.shape[0], problem.network.devices
    most = int(np.bincount(problem.edges.ravel(), minlength=1).max())
    seconds, waits = (_least_of_rows(problem, k, most, until) for k in range(2))
    least = np.zeros((stages, devices))
    for s in range(stages):
        sizes = np.sort(problem.edge_bytes[(problem.edges == s).any(axis=1)])[::-1]
        count = len(sizes)
        least[s] = seconds[:, :count] @ sizes + waits[:, :count].sum(axis=1)
    return least


def _least_of_rows(problem: MappingProblem, which: int, count: int, until: Deadline) -> Floats:
    """The `count` smallest round-trip times per byte, or latencies, of each device, ascending, (D, count)."""
    until.check()
    links = _without_self(problem.network.both_ways[which])
    until.check()
    if count < links.shape[1]:
        links.partition(count, axis=1)
    return np.asarray(np.sort(links[:, :count], axis=1))


def _best_rings_s(problem: MappingProblem, until: Deadline) -> Floats:
    """Lower bound on the slower of the two ring links at each device, shape (S, D).

    With R = 2 both links connect to the same device.
    """
    seconds, waits, replicas = problem.network.seconds_per_byte, problem.network.waits_s, problem.shape[1]
    if not waits.any():
        until.check()
        return np.multiply.outer(problem.ring_bytes, _best_pass(seconds, replicas))
    ring_s: dict[float, Floats] = {}
    for size in problem.ring_bytes.tolist():
        if size not in ring_s:
            until.check()
            ring_s[size] = _best_pass(size * seconds + problem.ring_waits * waits, replicas)
    return np.array([ring_s[size] for size in problem.ring_bytes.tolist()])


def _best_pass(link_s: Floats, replicas: int) -> Floats:
    """Minimum over link pairs of the slower of one incoming and one outgoing link, per device, shape (D,)."""
    links = _without_self(link_s)
    if replicas == 2:
        return np.asarray(np.maximum(links, links.T).min(axis=1))
    devices = np.arange(len(links))
    first_out, first_in = links.argmin(axis=1), links.argmin(axis=0)
    out, into = links[devices, first_out], links[first_in, devices]
    best = np.maximum(out, into)
    same = np.flatnonzero(first_out == first_in)  # so the other link takes the second best device
    links[same, first_out[same]] = np.inf
    second_out = links[same].min(axis=1)
    links[same, first_out[same]] = out[same]
    links[first_in[same], same] = np.inf
    second_in = links[:, same].min(axis=0)
    best[same] = np.minimum(np.maximum(out[same], second_in), np.maximum(second_out, into[same]))
    return np.asarray(best)


def _without_self(matrix: Floats) -> Floats:
    """Copy of a matrix with an infinite diagonal, shape (D, D)."""
    others = matrix.copy()
    np.fill_diagonal(others, np.inf)
    return others
