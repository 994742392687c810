"""Costs of a partition: computation, messages and memory of operators, clusters, and stages.

The time of a stage is the computation of its operators plus the messages across its boundaries (Parmesan,
(3)). A message crosses as an activation and returns as a gradient, so its bytes count twice over the
bandwidth. In this phase all bandwidths are equal (Section VI). The memory of a stage is (14). All sizes are
per microbatch, so the paper's division by MB is already applied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.bitsets import BITS
from phaze.base.compiled import njit
from phaze.base.errors import PhazeError
from phaze.workload.graphs import Graph
from phaze.workload.operator_graphs import OperatorGraph, StageGraph

ROUNDING = 1e-9
"""Relative tolerance for rounding between sums of the same numbers."""
NONE = -1
"""Marker of a missing node, edge or set in index arrays."""


@dataclass(frozen=True)
class PartitionTerms:
    """Device and training parameters that a partition depends on."""

    bandwidth_bytes_per_s: float
    """Bandwidth between any two devices."""
    device_memory_bytes: float = np.inf
    """DM, the memory limit of a stage."""
    microbatches: int = 4
    """MB, number of microbatches per training step on each replica."""
    recompute: bool = True
    """True if backward passes recompute the forward pass."""
    latency_s: float = 0.0
    """Latency of a message between any two devices, of the simulated step."""


class Predecessors(NamedTuple):
    """Predecessors of each node, ascending."""

    first: Ints
    """Offset of each node's predecessors, (n + 1,)."""
    node: Ints
    """Predecessor node, (e,)."""
    size: Floats
    """Bytes of the edge, (e,)."""


@dataclass(frozen=True, eq=False)
class Weights(Graph):
    """Graph of operators or clusters in a topological order, with their compute time and memory."""

    compute_s: Floats
    """Compute time c_u of a microbatch, shape (n,)."""
    memory_bytes: Floats
    """Memory without messages, shape (n,)."""
    seconds_per_byte: float
    """Transfer time c_m per byte, both directions together."""
    limit_bytes: float
    """Memory limit of a device."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.compute_s)

    @property
    def total_s(self) -> float:
        """Compute time of all nodes."""
        return float(self.compute_s.sum())

    @cached_property
    def border_bytes(self) -> Floats:
        """Total bytes of each node's edges, shape (n,)."""
        return sums(self.edges.ravel(), np.repeat(self.edge_bytes, 2), len(self))

    @cached_property
    def predecessors(self) -> Predecessors:
        """Edges sorted by target node, then by source."""
        order = np.lexsort((self.sources, self.targets))
        first = np.searchsorted(self.targets[order], np.arange(len(self) + 1)).astype(np.int64)
        return Predecessors(first, self.sources[order], self.edge_bytes[order])

    @cached_property
    def closures(self) -> tuple[Floats, Floats]:
        """Compute time of each node with all its ancestors, and with all its descendants, (n,) each."""
        return with_ancestors(self.compute_s, self.edges), with_descendants(self.compute_s, self.edges)


def weigh(graph: OperatorGraph, terms: PartitionTerms) -> Weights:
    """Compute time and memory of a graph's operators; recompute adds a forward pass to the backward pass.

    Without recompute, the forward bytes of each microbatch, except the parameters, stay until the backward
    pass. The paper gives (14) for recompute only.
    """
    memory = np.maximum(graph.forward_bytes, graph.backward_bytes)
    stored = np.maximum(graph.forward_bytes - graph.parameter_bytes, 0.0)
    return Weights(
        compute_s=graph.compute_s + (graph.forward_s if terms.recompute else 0.0),
        memory_bytes=memory if terms.recompute else memory + (terms.microbatches - 1) * stored,
        edges=np.ascontiguousarray(graph.edges.reshape(-1, 2)),
        edge_bytes=np.asarray(graph.edge_bytes, dtype=np.float64),
        seconds_per_byte=2.0 / terms.bandwidth_bytes_per_s,
        limit_bytes=float(terms.device_memory_bytes),
    )


def quotient(weights: Weights, labels: Ints) -> tuple[Weights, Ints]:
    """Graph of node groups and the group of each node (n,); PhazeError if groups form a cycle.

    `labels` (n,) are arbitrary numbers. Groups are in a topological order, earlier first members first.
    """
    _, first, group = np.unique(labels, return_index=True, return_inverse=True)
    pairs = group[weights.edges]
    across = pairs[:, 0] != pairs[:, 1]
    place = _topological(len(first), pairs[across], first)
    group = place[group].astype(np.int64)
    ends, sizes = _merge_edges(group[weights.edges[across]], weights.edge_bytes[across])
    merged = replace(
        weights,
        compute_s=sums(group, weights.compute_s, len(first)),
        memory_bytes=sums(group, weights.memory_bytes, len(first)),
        edges=ends,
        edge_bytes=sizes,
    )
    return merged, group


def sums(group: Ints, values: Floats, count: int) -> Floats:
    """Sum of the values of each group, shape (count,)."""
    return np.bincount(group, values, count).astype(np.float64)


def stage_graph_of(graph: OperatorGraph, stage_of: Ints, terms: PartitionTerms, replicas: int) -> StageGraph:
    """Stage graph of a partition; `stage_of` (n,) is non-decreasing along all edges."""
    count = int(stage_of.max()) + 1
    forward, backward, gradients = (
        sums(stage_of, values, count) for values in (graph.forward_s, graph.backward_s, graph.parameter_bytes)
    )
    pairs = stage_of[graph.edges.reshape(-1, 2)]
    across = pairs[:, 0] != pairs[:, 1]
    ends, sizes = _merge_edges(pairs[across], graph.edge_bytes[across])
    return StageGraph(
        forward_s=forward,
        backward_s=backward + (forward if terms.recompute else 0.0),
        parameter_bytes=gradients,
        edges=ends,
        edge_bytes=sizes,
        replicas=replicas,
        microbatches=terms.microbatches,
    )


def stage_times(weights: Weights, stage_of: Ints) -> Floats:
    """Time of each stage on one device, Equation (3), shape (S,)."""
    count = int(stage_of.max()) + 1
    compute = sums(stage_of, weights.compute_s, count)
    return np.asarray(compute + weights.seconds_per_byte * border_bytes(weights, stage_of))


def stage_memory(weights: Weights, stage_of: Ints) -> Floats:
    """Memory of each stage, Equation (14), shape (S,)."""
    memory = sums(stage_of, weights.memory_bytes, int(stage_of.max()) + 1)
    return np.asarray(memory + border_bytes(weights, stage_of))


def border_bytes(weights: Weights, stage_of: Ints) -> Floats:
    """Bytes of all edges that enter or leave each stage, each edge counted once, shape (S,)."""
    pairs = stage_of[weights.edges]
    across = pairs[:, 0] != pairs[:, 1]
    sizes = np.repeat(weights.edge_bytes[across], 2)
    return sums(pairs[across].ravel(), sizes, int(stage_of.max()) + 1)


def fits(weights: Weights, stage_of: Ints) -> bool:
    """True if every stage fits a device."""
    return bool((stage_memory(weights, stage_of) <= weights.limit_bytes * (1 + ROUNDING)).all())


def _merge_edges(pairs: Ints, sizes: Floats) -> tuple[Ints, Floats]:
    """Sorted edges with parallel edges merged."""
    if not len(pairs):
        return np.empty((0, 2), dtype=np.int64), np.empty(0)
    ends, which = np.unique(pairs, axis=0, return_inverse=True)
    return np.ascontiguousarray(ends), sums(which.ravel(), sizes, len(ends))


def _topological(count: int, pairs: Ints, first: Ints) -> Ints:
    """Position of each group in a topological order; the ready group with the smallest `first` comes next."""
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for i, j in np.unique(pairs, axis=0).tolist() if len(pairs) else ():
        after[i].append(j)
        waiting[j] += 1
    ready = [(first[i], i) for i in range(count) if not waiting[i]]
    heapify(ready)
    place, taken = np.empty(count, dtype=np.int64), 0
    while ready:
        _, i = heappop(ready)
        place[i], taken = taken, taken + 1
        for j in after[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heappush(ready, (first[j], j))
    if taken < count:
        raise PhazeError("groups of operators: their edges contain a cycle")
    return place


def with_ancestors(values: Floats, edges: Ints) -> Floats:
    """Sum of values over each node and its ancestors, (n,); edges (e, 2) lead to later nodes."""
    order = np.argsort(edges[:, 1], kind="stable")
    first = np.searchsorted(edges[order, 1], np.arange(len(values) + 1)).astype(np.int64)
    return _closure(values, first, np.ascontiguousarray(edges[order, 0]))


def with_descendants(values: Floats, edges: Ints) -> Floats:
    """Sum of values over each node and its descendants, (n,)."""
    return with_ancestors(values[::-1].copy(), len(values) - 1 - edges[::-1, ::-1])[::-1].copy()


@njit
def _closure(values: Floats, first: Ints, source: Ints) -> Floats:
    """Sum of values over each node and its ancestors; the edges to node v begin at first[v]."""
    n = len(values)
    words = (n + BITS - 1) // BITS
    reached, total = np.zeros((n, words), np.uint64), np.zeros(n)
    for v in range(n):
        reached[v, v // BITS] |= np.uint64(1) << np.uint64(v % BITS)
        for k in range(first[v], first[v + 1]):
            for w in range(source[k] // BITS + 1):
                reached[v, w] |= reached[source[k], w]
        for w in range(v // BITS + 1):
            word, node = reached[v, w], w * BITS
            while word != 0:
                if word & np.uint64(1):
                    total[v] += values[node]
                word >>= np.uint64(1)
                node += 1
    return total
