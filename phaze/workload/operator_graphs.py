"""Graphs of operators and of stages, with what a partition needs to know: time, parameters, memory, messages.

Such a graph is directed and acyclic; its nodes are ordered topologically, and an edge (i, j) says that node
j reads what node i writes (Parmesan, Section IV).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.spec.operators import StoredOperator, StoredOperators
from phaze.spec.stages import StoredStages

OF_OPERATORS = tuple(StoredOperator.model_fields)


@dataclass(frozen=True, eq=False)
class TimedGraph:
    """A graph of what runs for one microbatch, with its times."""

    kind: ClassVar[str]
    node: ClassVar[str]

    forward_s: Floats
    """Time of the forward pass of a microbatch, shape (n,)."""
    backward_s: Floats
    """Time of the backward pass of a microbatch: with recomputation for stages that recompute, shape (n,)."""
    parameter_bytes: Floats
    """P, bytes of the parameters, as replicas reduce their gradients, shape (n,)."""
    edges: Ints
    """Pairs (i, j) with i < j, shape (e, 2), sorted, no pair twice; skip connections are edges."""
    edge_bytes: Floats
    """M(i, j), bytes of a microbatch passed forward along each edge, shape (e,); as many come back."""

    def __post_init__(self) -> None:
        """Refuse arrays that are no such graph."""
        n = len(self.forward_s)
        for key in ("forward_s", "backward_s", "parameter_bytes"):
            _check_values(key, getattr(self, key), n)
        _check_values("edge_bytes", self.edge_bytes, len(self.edges))
        source, target = self.edges.reshape(-1, 2).T
        if (source >= target).any() or (source < 0).any() or (target >= n).any():
            raise PhazeError(f"{self.kind}: edges must lead from {self.node} to a later one")

    @property
    def compute_s(self) -> Floats:
        """c_u: forward and backward time of a microbatch, shape (n,)."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, eq=False)
class OperatorGraph(TimedGraph):
    """Operators of a model for one microbatch on one device (Parmesan, Section IV and Appendix C)."""

    kind = "operator graph"
    node = "an operator"

    names: tuple[str, ...]
    """Unique, in a topological order, n of them."""
    forward_bytes: Floats
    """m_fwd, peak memory of the forward pass of a microbatch, shape (n,)."""
    backward_bytes: Floats
    """m_bwd, peak memory of the backward pass of a microbatch, shape (n,)."""
    layers: tuple[str, ...] = ()
    """The layer that each operator belongs to, n of them, for partitions by layer; none: not known."""

    def __post_init__(self) -> None:
        """Refuse arrays that are no operator graph."""
        n = len(self.names)
        if n == 0 or len(set(self.names)) != n:
            raise PhazeError("operator graph: needs operators, each with a name of its own")
        if self.layers and len(self.layers) != n:
            raise PhazeError(f"operator graph: needs {n} layers, got {len(self.layers)}")
        for key in ("forward_s", "forward_bytes", "backward_bytes"):
            _check_values(key, getattr(self, key), n)
        super().__post_init__()


@dataclass(frozen=True, eq=False)
class StageGraph(TimedGraph):
    """G_S: the stages of a partition, which are mapped to devices, each R times (Section V)."""

    kind = "stage graph"
    node = "a stage"

    replicas: int
    """R, devices of every stage."""
    microbatches: int
    """MB, microbatches of a training step on each replica."""

    def __post_init__(self) -> None:
        """Refuse arrays that are no stage graph."""
        if len(self.forward_s) == 0 or self.replicas < 1 or self.microbatches < 1:
            raise PhazeError("stage graph: needs at least one stage, one replica and one microbatch")
        super().__post_init__()


def _check_values(key: str, values: Floats, count: int) -> None:
    if values.shape != (count,) or not (np.isfinite(values) & (values >= 0)).all():
        raise PhazeError(f"{key}: needs {count} finite numbers that are not negative")


def operator_graph(stored: StoredOperators) -> OperatorGraph:
    """Return the graph of a file, its operators in a topological order."""
    operators = [stored.operators[k] for k in stored.order()]
    position = {operator.name: k for k, operator in enumerate(operators)}
    pairs = [(position[edge.source], position[edge.target], edge.bytes) for edge in stored.edges]
    edges, edge_bytes = _sorted_edges(pairs)
    return OperatorGraph(
        names=tuple(position),
        edges=edges,
        edge_bytes=edge_bytes,
        layers=tuple(one.name if one.layer is None else one.layer for one in operators),
        **{key: np.array([getattr(one, key) for one in operators]) for key in OF_OPERATORS[1:-1]},
    )


def stored_operators(graph: OperatorGraph, name: str, microbatch: int) -> StoredOperators:
    """Return the file of a graph; PhazeError where numbers are larger than files may hold."""
    rows = np.stack([getattr(graph, key) for key in OF_OPERATORS[1:-1]], axis=1).tolist()
    layers = graph.layers or (None,) * len(graph.names)
    content = {
        "format": "phaze-operators",
        "version": 1,
        "name": name,
        "microbatch": microbatch,
        "operators": [
            dict(zip(OF_OPERATORS, (own, *row, layer), strict=True))
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
