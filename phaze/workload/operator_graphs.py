"""Graphs of operators with what a partition needs to know: time, parameters, memory, messages.

An operator graph is directed and acyclic; its operators are ordered topologically, and an edge (i, j) says
that operator j reads what operator i writes (Parmesan, Section IV).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError


@dataclass(frozen=True, eq=False)
class OperatorGraph:
    """Operators of a model for one microbatch on one device (Parmesan, Section IV and Appendix C)."""

    names: tuple[str, ...]
    """Unique, in a topological order, n of them."""
    forward_s: Floats
    """Time of the forward pass of a microbatch, shape (n,)."""
    backward_s: Floats
    """Time of the backward pass of a microbatch, without recomputation, shape (n,)."""
    parameter_bytes: Floats
    """P, bytes of the parameters, as their gradients are exchanged, shape (n,)."""
    forward_bytes: Floats
    """m_fwd, peak memory of the forward pass of a microbatch, shape (n,)."""
    backward_bytes: Floats
    """m_bwd, peak memory of the backward pass of a microbatch, shape (n,)."""
    edges: Ints
    """Pairs (i, j) with i < j, shape (e, 2), sorted, no pair twice."""
    edge_bytes: Floats
    """M(i, j), bytes of a microbatch passed forward along each edge, shape (e,); as many come back."""
    layers: tuple[str, ...] = ()
    """The layer that each operator belongs to, n of them, for partitions by layer; none: not known."""

    def __post_init__(self) -> None:
        """Refuse arrays that are no operator graph."""
        n = len(self.names)
        if n == 0 or len(set(self.names)) != n:
            raise PhazeError("operator graph: needs operators, each with a name of its own")
        if self.layers and len(self.layers) != n:
            raise PhazeError(f"operator graph: needs {n} layers, got {len(self.layers)}")
        for key in ("forward_s", "backward_s", "parameter_bytes", "forward_bytes", "backward_bytes"):
            _check_values(key, getattr(self, key), n)
        _check_values("edge_bytes", self.edge_bytes, len(self.edges))
        source, target = self.edges.reshape(-1, 2).T
        if (source >= target).any() or (source < 0).any() or (target >= n).any():
            raise PhazeError("operator graph: edges must lead from an operator to a later one")

    @property
    def compute_s(self) -> Floats:
        """c_u: forward and backward time of a microbatch, shape (n,)."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, eq=False)
class StageGraph:
    """G_S: the stages of a partition, which are mapped to devices, each R times (Section V)."""

    forward_s: Floats
    """Time of the forward pass of a microbatch, shape (S,)."""
    backward_s: Floats
    """Time of the backward pass of a microbatch, with recomputation if there is any, shape (S,)."""
    parameter_bytes: Floats
    """P(s), bytes of gradients that the replicas of a stage reduce, shape (S,)."""
    edges: Ints
    """Pairs (s, s') with s < s', shape (e, 2), sorted, no pair twice; skip connections are edges."""
    edge_bytes: Floats
    """M(s, s'), bytes of a microbatch passed forward along each edge, shape (e,); as many come back."""
    replicas: int
    """R, devices of every stage."""
    microbatches: int
    """MB, microbatches of a training step on each replica."""

    def __post_init__(self) -> None:
        """Refuse arrays that are no stage graph."""
        n = len(self.forward_s)
        if n == 0 or self.replicas < 1 or self.microbatches < 1:
            raise PhazeError("stage graph: needs at least one stage, one replica and one microbatch")
        for key in ("forward_s", "backward_s", "parameter_bytes"):
            _check_values(key, getattr(self, key), n)
        _check_values("edge_bytes", self.edge_bytes, len(self.edges))
        source, target = self.edges.reshape(-1, 2).T
        if (source >= target).any() or (source < 0).any() or (target >= n).any():
            raise PhazeError("stage graph: edges must lead from a stage to a later one")

    @property
    def compute_s(self) -> Floats:
        """c_u(s): forward and backward time of a microbatch, shape (S,)."""
        return self.forward_s + self.backward_s


def _check_values(key: str, values: Floats, count: int) -> None:
    if values.shape != (count,) or not (np.isfinite(values) & (values >= 0)).all():
        raise PhazeError(f"{key}: needs {count} finite numbers that are not negative")
