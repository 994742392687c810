"""Graphs of layers, operators or stages, with the tensors that they pass on per microbatch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypedDict

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.errors import PhazeError


@dataclass(frozen=True, eq=False, kw_only=True)
class Graph:
    """Directed acyclic graph of n nodes, numbered from 0, with e edges."""

    edges: Ints
    """Edges (i, j), shape (e, 2): node j reads the output of node i; unique, with skip connections."""
    edge_bytes: Floats
    """Bytes sent forward along each edge per microbatch, shape (e,); gradients of equal size return."""

    @cached_property
    def sources(self) -> Ints:
        """Node at the start of each edge, (e,)."""
        return np.ascontiguousarray(self.edges[:, 0])

    @cached_property
    def targets(self) -> Ints:
        """Node at the end of each edge, (e,)."""
        return np.ascontiguousarray(self.edges[:, 1])

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Source and target of each edge."""
        return tuple(zip(self.sources.tolist(), self.targets.tolist(), strict=True))

    @cached_property
    def tensors(self) -> tuple[tuple[int, int, float], ...]:
        """Source, target and bytes of each edge."""
        columns = (self.sources.tolist(), self.targets.tolist(), self.edge_bytes.tolist())
        return tuple(zip(*columns, strict=True))

    def crossing(self, inside: Bools) -> tuple[Bools, Bools]:
        """Masks (e,) of the edges that enter and that leave a set of nodes, given as a mask (n,)."""
        starts, ends = inside[self.sources], inside[self.targets]
        return ends & ~starts, starts & ~ends


class EdgeArrays(TypedDict):
    """Edges of a graph, as keyword arguments for its constructor."""

    edges: Ints
    edge_bytes: Floats


def edge_arrays(tensors: Iterable[tuple[int, int, float]]) -> EdgeArrays:
    """Edges (e, 2) and their bytes (e,), in the given order."""
    rows = list(tensors)
    return {
        "edges": np.array([row[:2] for row in rows], np.int64).reshape(-1, 2),
        "edge_bytes": np.array([row[2] for row in rows], np.float64),
    }


@dataclass(frozen=True, eq=False)
class TimedGraph(Graph):
    """Graph in topological order whose nodes have forward and backward times for one microbatch."""

    kind: ClassVar[str]
    node: ClassVar[str]

    forward_s: Floats
    """Time of the forward pass of a microbatch, shape (n,)."""
    backward_s: Floats
    """Time of the backward pass of a microbatch, including recomputation, shape (n,)."""
    parameter_bytes: Floats
    """P, bytes of the parameters and of the gradients that replicas reduce, shape (n,)."""

    def __post_init__(self) -> None:
        n = len(self)
        for key in ("forward_s", "backward_s", "parameter_bytes"):
            check_values(key, getattr(self, key), n)
        check_values("edge_bytes", self.edge_bytes, len(self.edges))
        source, target = self.edges.reshape(-1, 2).T
        # Edges that lead forward make the graph acyclic, and node order topological.
        if (source >= target).any() or (source < 0).any() or (target >= n).any():
            raise PhazeError(f"{self.kind}: edges must lead from {self.node} to a later one")

    def __len__(self) -> int:
        return len(self.forward_s)

    @property
    def compute_s(self) -> Floats:
        """c_u: forward and backward time of a microbatch, shape (n,)."""
        return self.forward_s + self.backward_s


def check_values(key: str, values: Floats, count: int) -> None:
    """Raise PhazeError unless `values` are `count` finite, non-negative numbers."""
    if values.shape != (count,) or not (np.isfinite(values) & (values >= 0)).all():
        raise PhazeError(f"{key}: needs {count} finite numbers that are not negative")
