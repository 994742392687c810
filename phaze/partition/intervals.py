"""Partitions along one order: stages are intervals of operators in a given topological order.

    T[j, s] = min over i < j of max(T[i, s - 1], t(i, j))

With the time (3) on operators this is the method of planners that fix a topological order first (RaNNC). With
the maximum of computation and messages, on layers, it is PipeDream's with a straight pipeline (Narayanan et
al., SOSP 2019, Section 3.1), where a stage's messages overlap with its computation.

In a graph of layers the operators of a layer are one node. Layers with edges in both directions, as in a
pyramid, are merged into one node.
"""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit
from phaze.base.errors import PhazeError
from phaze.partition.weights import NONE, ROUNDING, Predecessors, Weights, quotient
from phaze.workload.operator_graphs import OperatorGraph


class StagePaces(NamedTuple):
    """Speed of the devices and links of S stages in order."""

    slowness: Floats
    """Time of a pass on each stage's slowest device relative to the profiled device, (S,)."""
    seconds_per_byte: Floats
    """Round-trip time per byte of the link before each stage, and after the last one, (S + 1,)."""
    waits_s: Floats
    """Round-trip latency of the same links, (S + 1,)."""


def cut_in_order(weights: Weights, stages: int, *, overlapped: bool = False) -> Ints | None:
    """Stage of each node (n,) in the best partition into intervals; None if none fits in memory.

    `overlapped`: messages overlap with computation, and memory is ignored.
    """
    links = np.full(stages + 1, weights.seconds_per_byte)
    return cut_at_paces(
        weights, StagePaces(np.ones(stages), links, np.zeros(stages + 1)), overlapped=overlapped
    )


def cut_at_paces(weights: Weights, paces: StagePaces, *, overlapped: bool = False) -> Ints | None:
    """Stage of each node (n,) in the best partition into intervals for devices and links of several speeds.

    Minimises the longest stage time, with the messages of a stage on the links to its neighbours. None if no
    partition fits in memory. `overlapped`: messages overlap with computation, and memory is ignored.
    """
    values, choices = _intervals(
        weights.compute_s,
        weights.memory_bytes,
        weights.predecessors,
        _sent(weights),
        paces,
        np.inf if overlapped else weights.limit_bytes * (1 + ROUNDING),
        overlapped,
    )
    stages = len(paces.slowness)
    if not np.isfinite(values[len(weights), stages]):
        return None
    return _stages_of(choices, stages, len(weights))


def _stages_of(choices: Ints, stages: int, nodes: int) -> Ints:
    """Stage of each node (n,), from the best last cut of every prefix."""
    ends = [nodes]
    for s in range(stages, 0, -1):
        ends.append(int(choices[ends[-1], s]))
    return np.repeat(np.arange(stages), np.diff(ends[::-1]))


def layers_of(graph: OperatorGraph) -> tuple[str, ...]:
    """Layer of each operator (n,): the given layer, or the part of its name before the first dot."""
    return graph.layers or tuple(name.partition(".")[0] for name in graph.names)


def layer_labels(graph: OperatorGraph) -> Ints:
    """Layer number of each operator (n,); layers that form a cycle share a number."""
    names, number = np.unique(np.array(layers_of(graph)), return_inverse=True)
    between: nx.DiGraph[int] = nx.DiGraph()
    between.add_nodes_from(range(len(names)))
    between.add_edges_from(number[graph.edges.reshape(-1, 2)].tolist())
    joined = np.empty(len(names), dtype=np.int64)
    for k, members in enumerate(nx.strongly_connected_components(between)):
        joined[list(members)] = k
    return np.asarray(joined[number.ravel()])


def layer_weights(graph: OperatorGraph, weights: Weights, stages: int) -> tuple[Weights, Ints]:
    """Graph of layers and the layer of each operator; PhazeError for fewer layers than stages."""
    layers, layer_of = quotient(weights, layer_labels(graph))
    if len(layers) < stages:
        raise PhazeError(f"{stages} stages need as many layers, the graph has {len(layers)}")
    return layers, layer_of


def cut_as_pipedream(graph: OperatorGraph, weights: Weights, stages: int) -> Ints:
    """Stage of each operator in PipeDream's partition by layer (Narayanan et al., SOSP 2019).

    A stage takes the larger of its computation and its messages; memory is ignored.
    """
    layers, layer_of = layer_weights(graph, weights, stages)
    stage_of = cut_in_order(layers, stages, overlapped=True)
    if stage_of is None:
        raise PhazeError("no partition by layer")
    return stage_of[layer_of]


def _sent(weights: Weights) -> Floats:
    """Bytes that cross each cut of the topological order, shape (n + 1,)."""
    sent = np.zeros(len(weights) + 1)
    for u, v, size in weights.tensors:
        sent[u + 1 : v + 1] += size  # only added, as subtracting a large message would cancel small ones
    return sent


@njit
def _intervals(
    compute: Floats,
    memory: Floats,
    predecessors: Predecessors,
    sent: Floats,
    paces: StagePaces,
    most_memory: float,
    overlapped: bool,
) -> tuple[Floats, Ints]:
    """Minimum bottleneck time T[j, s] of the first j nodes in s stages, and the best last cut i.

    `sent` are the bytes that cross each cut of the order, (n + 1,).
    """
    slowness, seconds_per_byte, waits_s = paces
    first, source, size = predecessors
    n, stages, fastest = len(compute), len(slowness), slowness.min()
    value, choice = np.full((n + 1, stages + 1), np.inf), np.full((n + 1, stages + 1), NONE, np.int64)
    value[0, 0] = 0.0
    both_s, after_s = waits_s[:-1] + waits_s[1:], waits_s[1:]
    enters_s, leaves_s = seconds_per_byte[:-1], seconds_per_byte[1:]
    for i in range(n):
        time, stored, passing = 0.0, 0.0, sent[i]
        for j in range(i + 1, n + 1):
            time += compute[j - 1]
            stored += memory[j - 1]
            for e in range(first[j - 1], first[j]):
                if source[e] < i:
                    passing -= size[e]
            # What passes the stage by is on the link before it and after it, but is not its message.
            enters, leaves = sent[i] - passing, sent[j] - passing
            if stored + enters + leaves > most_memory:
                continue
            # Longer stages only take longer, and a partition as fast is there already.
            if time * fastest >= value[n, stages]:
                break
            before, reached, cut = value[i], value[j], choice[j]
            for s in range(min(stages, j)):
                busy = time * slowness[s]
                if overlapped:
                    cost = max(busy, after_s[s] + leaves_s[s] * sent[j])
                else:
                    cost = busy + both_s[s] + enters * enters_s[s] + leaves * leaves_s[s]
                longest = max(before[s], cost)
                if longest < reached[s + 1]:
                    reached[s + 1], cut[s + 1] = longest, i
    return value, choice
