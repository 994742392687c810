"""Graphs of layers, which planners by layer cut, from graphs of operators.

Operators of a layer are one node. Where layers lead into each other both ways, as those of a pyramid may,
they are one node together.
"""

from __future__ import annotations

import networkx as nx
import numpy as np

from phaze.base.arrays import Ints
from phaze.base.errors import PhazeError
from phaze.partition.intervals import cut_in_order
from phaze.partition.weights import Weights, quotient
from phaze.workload.operator_graphs import OperatorGraph


def layers_of(graph: OperatorGraph) -> tuple[str, ...]:
    """Return the layer of each operator (n,): what is given, or what its name has before a dot."""
    return graph.layers or tuple(name.partition(".")[0] for name in graph.names)


def layer_labels(graph: OperatorGraph) -> Ints:
    """Return a number for the layer of each operator (n,), equal for layers that form a cycle."""
    names, number = np.unique(np.array(layers_of(graph)), return_inverse=True)
    between: nx.DiGraph[int] = nx.DiGraph()
    between.add_nodes_from(range(len(names)))
    between.add_edges_from(number[graph.edges.reshape(-1, 2)].tolist())
    joined = np.empty(len(names), dtype=np.int64)
    for k, members in enumerate(nx.strongly_connected_components(between)):
        joined[list(members)] = k
    return np.asarray(joined[number.ravel()])


def layer_weights(graph: OperatorGraph, weights: Weights, stages: int) -> tuple[Weights, Ints]:
    """Return the graph of layers and the layer of each operator; PhazeError for fewer layers than stages."""
    layers, layer_of = quotient(weights, layer_labels(graph))
    if len(layers) < stages:
        raise PhazeError(f"{stages} stages need as many layers, the graph has {len(layers)}")
    return layers, layer_of


def cut_as_pipedream(graph: OperatorGraph, weights: Weights, stages: int) -> Ints:
    """Return the stage of each operator in PipeDream's partition by layer (Narayanan et al., SOSP 2019).

    The slowest stage takes the larger of its computation and its messages; memory is not looked at.
    """
    layers, layer_of = layer_weights(graph, weights, stages)
    found = cut_in_order(layers, stages, overlapped=True)
    if found is None:
        raise PhazeError("no partition by layer")
    return found[layer_of]
