"""Operator and stage graphs, the inputs of a partitioner: times, parameters, memory and messages.

The graphs are directed and acyclic, with nodes in topological order. An edge (i, j) means that node j reads
the output of node i (Parmesan, Section IV).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.spec.operators import ProfiledModule, StoredOperator, StoredOperators
from phaze.spec.stages import StoredStages
from phaze.workload.graphs import TimedGraph, check_values, edge_arrays

OPERATOR_FIELDS = tuple(StoredOperator.model_fields)


@dataclass(frozen=True, eq=False)
class OperatorGraph(TimedGraph):
    """Operator graph of a model for one microbatch on one device (Parmesan, Section IV and Appendix C)."""

    kind = "operator graph"
    node = "an operator"

    names: tuple[str, ...]
    """Unique operator names in topological order, n of them."""
    forward_bytes: Floats
    """m_fwd, peak memory of the forward pass of a microbatch, shape (n,)."""
    backward_bytes: Floats
    """m_bwd, peak memory of the backward pass of a microbatch, shape (n,)."""
    layers: tuple[str, ...] = ()
    """Name of each operator's layer, for partitions by layer; empty if unknown."""

    def __post_init__(self) -> None:
        n = len(self.names)
        if n == 0 or len(set(self.names)) != n:
            raise PhazeError("operator graph: needs operators, each with a name of its own")
        if self.layers and len(self.layers) != n:
            raise PhazeError(f"operator graph: needs {n} layers, got {len(self.layers)}")
        for key in ("forward_s", "forward_bytes", "backward_bytes"):
            check_values(key, getattr(self, key), n)
        super().__post_init__()


@dataclass(frozen=True, eq=False)
class StageGraph(TimedGraph):
    """Stage graph G_S: the stages of a partition, each replicated on R devices (Section V)."""

    kind = "stage graph"
    node = "a stage"

    replicas: int
    """R, number of devices per stage."""
    microbatches: int
    """MB, number of microbatches per training step on each replica."""

    def __post_init__(self) -> None:
        if len(self.forward_s) == 0 or self.replicas < 1 or self.microbatches < 1:
            raise PhazeError("stage graph: needs at least one stage, one replica and one microbatch")
        super().__post_init__()


def operator_graph(stored: StoredOperators) -> OperatorGraph:
    """Build an operator graph from a file's content, with operators in topological order."""
    operators = [stored.operators[k] for k in stored.order()]
    position = {operator.name: k for k, operator in enumerate(operators)}
    tensors = [(position[edge.source], position[edge.target], edge.bytes) for edge in stored.edges]
    return OperatorGraph(
        names=tuple(position),
        layers=tuple(operator.name if operator.layer is None else operator.layer for operator in operators),
        **{
            key: np.array([getattr(operator, key) for operator in operators]) for key in OPERATOR_FIELDS[1:-1]
        },
        **edge_arrays(sorted(tensors)),
    )


def stored_operators(
    graph: OperatorGraph, name: str, microbatch: int, profiled: ProfiledModule | None = None
) -> StoredOperators:
    """Convert an operator graph to file content; PhazeError if numbers exceed the format's limits."""
    rows = np.stack([getattr(graph, key) for key in OPERATOR_FIELDS[1:-1]], axis=1).tolist()
    # Files may omit layers, which only partitions by layer need.
    layers = graph.layers or (None,) * len(graph.names)
    content = {
        "format": "phaze-operators",
        "version": 1,
        "name": name,
        "microbatch": microbatch,
        "operators": [
            dict(zip(OPERATOR_FIELDS, (operator, *row, layer), strict=True))
            for operator, row, layer in zip(graph.names, rows, layers, strict=True)
        ],
        "edges": [
            {"source": graph.names[i], "target": graph.names[j], "bytes": size}
            for i, j, size in graph.tensors
        ],
        "profiled": profiled,
    }
    return StoredOperators.parse(content, name)


def stage_graph(stored: StoredStages) -> StageGraph:
    """Build a stage graph from a file's content."""
    return StageGraph(
        forward_s=np.array([stage.forward_s for stage in stored.stages]),
        backward_s=np.array([stage.backward_s for stage in stored.stages]),
        parameter_bytes=np.array([stage.parameter_bytes for stage in stored.stages]),
        replicas=stored.replicas,
        microbatches=stored.microbatches,
        **edge_arrays(sorted((edge.source, edge.target, edge.bytes) for edge in stored.edges)),
    )
