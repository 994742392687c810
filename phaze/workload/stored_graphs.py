"""Graphs of operators and of stages from their files, and to them."""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.spec.operators import StoredOperator, StoredOperators
from phaze.spec.stages import StoredStages
from phaze.workload.operator_graphs import OperatorGraph, StageGraph

_OF_OPERATORS = tuple(StoredOperator.model_fields)


def operator_graph(stored: StoredOperators) -> OperatorGraph:
    """Return the graph of a file, its operators in a topological order."""
    operators = [stored.operators[k] for k in stored.order()]
    position = {operator.name: k for k, operator in enumerate(operators)}
    pairs = [(position[edge.source], position[edge.target], edge.bytes) for edge in stored.edges]
    edges, edge_bytes = _sorted_edges(pairs)
    return OperatorGraph(
        names=tuple(position),
        forward_s=np.array([one.forward_s for one in operators]),
        backward_s=np.array([one.backward_s for one in operators]),
        parameter_bytes=np.array([one.parameter_bytes for one in operators]),
        forward_bytes=np.array([one.forward_bytes for one in operators]),
        backward_bytes=np.array([one.backward_bytes for one in operators]),
        edges=edges,
        edge_bytes=edge_bytes,
        layers=tuple(one.name if one.layer is None else one.layer for one in operators),
    )


def stored_operators(graph: OperatorGraph, name: str, microbatch: int) -> StoredOperators:
    """Return the file of a graph; PhazeError where numbers are larger than files may hold."""
    columns = (graph.forward_s, graph.backward_s, graph.parameter_bytes, graph.forward_bytes)
    rows = np.stack([*columns, graph.backward_bytes], axis=1).tolist()
    layers = graph.layers or (None,) * len(graph.names)
    content = {
        "format": "phaze-operators",
        "version": 1,
        "name": name,
        "microbatch": microbatch,
        "operators": [
            dict(zip(_OF_OPERATORS, (own, *row, layer), strict=True))
            for own, row, layer in zip(graph.names, rows, layers, strict=True)
        ],
        "edges": [
            {"source": graph.names[i], "target": graph.names[j], "bytes": size}
            for (i, j), size in zip(graph.edges.tolist(), graph.edge_bytes.tolist(), strict=True)
        ],
    }
    return StoredOperators.parse(content, name)


def stage_graph(stored: StoredStages) -> StageGraph:
    """Return the graph of a file of stages."""
    edges, edge_bytes = _sorted_edges([(edge.source, edge.target, edge.bytes) for edge in stored.edges])
    return StageGraph(
        forward_s=np.array([stage.forward_s for stage in stored.stages]),
        backward_s=np.array([stage.backward_s for stage in stored.stages]),
        parameter_bytes=np.array([stage.parameter_bytes for stage in stored.stages]),
        edges=edges,
        edge_bytes=edge_bytes,
        replicas=stored.replicas,
        microbatches=stored.microbatches,
    )


def _sorted_edges(edges: list[tuple[int, int, float]]) -> tuple[Ints, Floats]:
    """Return the ends (e, 2) and the bytes (e,) of edges, sorted."""
    ordered = sorted(edges)
    ends = np.array([(i, j) for i, j, _ in ordered], dtype=np.int64).reshape(-1, 2)
    return ends, np.array([size for _, _, size in ordered], dtype=np.float64)
