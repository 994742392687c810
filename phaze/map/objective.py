"""What a mapping is judged by before it is simulated: the longest stage time (Parmesan, (5) to (9)).

A stage takes c_u + c_m + c_AR: the passes of a microbatch, its messages to and from the adjacent stages, and
the all-reduce of its gradients. The paper's two instantiations leave out one of the two, because all three
together are known late in a search; here all three are a third one.

- c_m (8): M(s, s') / B summed over the adjacent stages. Activations go one way and gradients back, c_u counts
  both passes, and so does this: the bytes of an edge over the bandwidth there, and over that back.
- c_AR (9): 2 (R − 1) / R · P / B of the slowest link of the ring of replicas.

With a latency L every message takes L + M / B, every one of the 2 (R − 1) rounds of a ring L + P / (R B).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.deadline import Deadline, OutOfTimeError
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.network import rounds, sent_bytes
from phaze.workload.operator_graphs import StageGraph

Instantiation = Literal["p2p", "allreduce", "exact"]
"""c_u + c_m (6), c_u + c_AR (7), or c_u + c_m + c_AR."""
INSTANTIATIONS: tuple[Instantiation, ...] = get_args(Instantiation)


@dataclass(frozen=True, eq=False)
class MappingProblem:
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
        """S and R."""
        return len(self.stages.forward_s), self.stages.replicas

    @property
    def slots(self) -> int:
        """S R, the devices that are needed."""
        return self.shape[0] * self.shape[1]

    @property
    def counts_messages(self) -> bool:
        """True where c_m is counted."""
        return self.instantiation != "allreduce"

    @property
    def counts_rings(self) -> bool:
        """True where c_AR is counted; a ring of one replica has no links."""
        return self.instantiation != "p2p" and self.stages.replicas > 1

    @cached_property
    def edges(self) -> Ints:
        """Edges that are counted, shape (e, 2)."""
        pairs = np.ascontiguousarray(self.stages.edges.reshape(-1, 2), np.int64)
        return pairs if self.counts_messages else pairs[:0]

    @cached_property
    def edge_bytes(self) -> Floats:
        """Bytes of the edges that are counted, shape (e,)."""
        return np.ascontiguousarray(self.stages.edge_bytes[: len(self.edges)], np.float64)

    @cached_property
    def ring_bytes(self) -> Floats:
        """Bytes over a link of each stage's ring in an all-reduce, 2 (R − 1) / R · P, shape (S,)."""
        sent = sent_bytes("all_reduce", self.stages.parameter_bytes, self.stages.replicas)
        return np.ascontiguousarray(sent)

    @property
    def ring_waits(self) -> float:
        """Latencies in an all-reduce."""
        return rounds("all_reduce", self.stages.replicas)

    def stage_times_s(self, mapping: Ints) -> Floats:
        """Time of every stage, of its slowest replica, under a mapping (S, R)."""
        seconds, waits = self.network.seconds_per_byte, self.network.waits_s
        times = np.tile(self.stages.compute_s, (self.stages.replicas, 1)).T
        for (s, t), size in zip(self.edges, self.edge_bytes, strict=True):
            there, back = (mapping[s], mapping[t]), (mapping[t], mapping[s])
            cost = size * (seconds[there] + seconds[back]) + (waits[there] + waits[back])
            times[s] += cost
            times[t] += cost
        longest: Floats = times.max(axis=1)
        return longest + self.all_reduce_s(mapping) if self.counts_rings else longest

    def all_reduce_s(self, mapping: Ints) -> Floats:
        """Time of the all-reduce of every stage by its slowest link, shape (S,)."""
        links = mapping, np.roll(mapping, -1, axis=1)
        seconds, waits = self.network.seconds_per_byte[links], self.network.waits_s[links]
        slowest: Floats = (self.ring_bytes[:, None] * seconds + self.ring_waits * waits).max(axis=1)
        return slowest

    def value_s(self, mapping: Ints) -> float:
        """Longest stage time (5)."""
        return float(self.stage_times_s(mapping).max())


def choose_instantiation(stages: StageGraph) -> Instantiation:
    """Instantiation by the ratio of bytes, of gradients reduced to those passed between stages.

    Above one the all-reduce counts (Section V-B). Both are taken for a step: a ring's link carries
    2 (R − 1) / R of the gradients once, an edge its bytes there and back for every microbatch.
    """
    reduced = sent_bytes("all_reduce", float(stages.parameter_bytes.sum()), stages.replicas)
    passed = 2.0 * stages.microbatches * stages.edge_bytes.sum()
    return "allreduce" if reduced > passed else "p2p"


def lower_bound_s(problem: MappingProblem, deadline: Deadline | None = None) -> float:
    """Time that no mapping stays below: (10), (11), or the larger for all three terms.

    With all three every stage takes at least its best messages and its best ring, each for itself. At the
    deadline it is the longest computation of a stage.
    """
    compute, until = problem.stages.compute_s, deadline or Deadline()
    try:
        messages = _best_messages_s(problem, until)
        rings = _best_rings_s(problem, until) if problem.counts_rings else np.zeros_like(messages)
    except OutOfTimeError:
        return float(compute.max())
    return float((compute + (messages + rings).min(axis=1)).max())


def _best_messages_s(problem: MappingProblem, until: Deadline) -> Floats:
    """Least messages of every stage on every device: largest edges on best links, shape (S, D).

    Sorting is exact without latencies, and with equal ones; otherwise the latencies are bounded apart.
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
    """Least so many links of every device there and back, rising, shape (D, count)."""
    until.check()
    links = _without_self(problem.network.both_ways[which])
    until.check()
    if count < links.shape[1]:
        links.partition(count, axis=1)
    return np.asarray(np.sort(links[:, :count], axis=1))


def _best_rings_s(problem: MappingProblem, until: Deadline) -> Floats:
    """Least slowest link of a ring through every device, to two others, shape (S, D).

    With R = 2 both links go to one device.
    """
    seconds, waits, replicas = problem.network.seconds_per_byte, problem.network.waits_s, problem.shape[1]
    if not waits.any():
        until.check()
        return np.multiply.outer(problem.ring_bytes, _best_pass(seconds, replicas))
    found: dict[float, Floats] = {}
    for size in problem.ring_bytes.tolist():
        if size not in found:
            until.check()
            found[size] = _best_pass(size * seconds + problem.ring_waits * waits, replicas)
    return np.array([found[size] for size in problem.ring_bytes.tolist()])


def _best_pass(link_s: Floats, replicas: int) -> Floats:
    """For every device the least of the slower of a link in and a link out, shape (D,)."""
    links = _without_self(link_s)
    if replicas == 2:
        return np.asarray(np.maximum(links, links.T).min(axis=1))
    each = np.arange(len(links))
    first_out, first_in = links.argmin(axis=1), links.argmin(axis=0)
    out, into = links[each, first_out], links[first_in, each]
    best = np.maximum(out, into)
    one = np.flatnonzero(first_out == first_in)  # and the other link goes to the second best
    links[one, first_out[one]] = np.inf
    second_out = links[one].min(axis=1)
    links[one, first_out[one]] = out[one]
    links[first_in[one], one] = np.inf
    second_in = links[:, one].min(axis=0)
    best[one] = np.minimum(np.maximum(out[one], second_in), np.maximum(second_out, into[one]))
    return np.asarray(best)


def _without_self(matrix: Floats) -> Floats:
    """Copy of a matrix with an endless diagonal, shape (D, D)."""
    found = matrix.copy()
    np.fill_diagonal(found, np.inf)
    return found
