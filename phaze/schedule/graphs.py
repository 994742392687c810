"""Operator graphs of a layer: order, series components and downsets.

An operator graph is a set of operators with a strict partial order, the transitive closure of its edges
(Section 4). Two operators are incomparable if neither precedes the other; only these can run concurrently.
The connected components of the incomparability graph are in series: every operator of one component precedes
every operator of the next. A layer's latency is therefore the sum of the latencies of its components, and
each component can be scheduled alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.errors import PhazeError
from phaze.solver import SolverRun

Edges = tuple[tuple[int, int], ...]

CORES = ("tensor", "vector", "fused", "network", "none")
"""Core types; the position is the code in arrays."""
TENSOR, VECTOR, FUSED, NETWORK, NONE = range(5)
ALL_CORES = -1
"""Core number of an operator that runs on all cores of its type."""

Status = Literal["optimal", "feasible", "timed_out"]


@dataclass(frozen=True, eq=False)
class ScheduledLayer:
    """One pass of a layer on one architecture, the input of scheduling (Section 4)."""

    core: tuple[str, ...]
    """Core type of each operator."""
    latency_s: Floats
    """ℓ, latency on one core, shape (n,)."""
    latency_all_s: Floats
    """ℓ̂, latency on all cores of the type, shape (n,)."""
    edges: Edges
    """Pairs (i, j): operator j reads the output of operator i."""
    num_tc: int
    num_vc: int
    overlap_communication: bool = False
    """True if network operators may overlap with computation, one at a time; otherwise they run alone
    (Section 7).
    """

    def __post_init__(self) -> None:
        """Raise PhazeError for invalid latencies or core counts."""
        n = len(self.core)
        if self.latency_s.shape != (n,) or self.latency_all_s.shape != (n,):
            raise PhazeError(f"layer of {n} operators: latencies must have shape ({n},)")
        if self.num_tc < 1 or self.num_vc < 1:
            raise PhazeError(f"num_tc and num_vc must be at least 1, got {self.num_tc} and {self.num_vc}")
        for name, latency in (("latency_s", self.latency_s), ("latency_all_s", self.latency_all_s)):
            if not (np.isfinite(latency) & (latency >= 0)).all():
                raise PhazeError(f"{name} must be finite and not negative, got {latency.min()}")

    @cached_property
    def kinds(self) -> Ints:
        """Code of the core type of each operator, shape (n,)."""
        return core_codes(self.core)

    @cached_property
    def graph(self) -> OperatorOrder:
        """Partial order and series components of the operators."""
        return make_graph(self.core, self.edges)

    @cached_property
    def single_s(self) -> Floats:
        """Latency on one core ℓ, infinite for network operators that must run alone, shape (n,)."""
        return single_latencies(self.kinds, self.latency_s, self.overlap_communication)


@dataclass(frozen=True, eq=False)
class LayerSchedule:
    """Start, end and core of each operator of a layer or component."""

    start_s: Floats
    """Start of each operator, shape (n,)."""
    end_s: Floats
    """End of each operator, shape (n,)."""
    core: Ints
    """Core or pair, from 0; ALL_CORES for operators on all cores or without a core, shape (n,)."""

    @property
    def latency_s(self) -> float:
        """End of the last operator."""
        return float(self.end_s.max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Component:
    """Series component of a layer: operators connected by incomparable pairs, in topological order."""

    operators: tuple[int, ...]
    """Indices of the operators in the layer."""
    kinds: Ints = field(repr=False)
    """Codes of the core types, shape (n,)."""
    order: Bools = field(repr=False)
    """order[i, j]: i precedes j, shape (n, n), in positions of `operators`."""

    @cached_property
    def edges(self) -> Edges:
        """Smallest set of pairs whose closure is the order (transitive reduction)."""
        implied = (self.order.astype(np.int64) @ self.order.astype(np.int64)) > 0
        return tuple((int(i), int(j)) for i, j in np.argwhere(self.order & ~implied))

    @cached_property
    def arrays(self) -> OrderArrays:
        """Core types, order, offsets and followers of the operators, as in `ComponentArrays`."""
        counts = np.bincount([i for i, _ in self.edges], minlength=len(self.operators))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return self.kinds, self.order, offsets, np.array([j for _, j in sorted(self.edges)], dtype=np.int64)

    @cached_property
    def rivals(self) -> Edges:
        """Incomparable pairs (i, j) with i < j."""
        apart = ~(self.order | self.order.T)
        return tuple((int(i), int(j)) for i, j in np.argwhere(np.triu(apart, 1)))


OrderArrays = tuple[Ints, Bools, Ints, Ints]
"""Kinds, order, offsets and followers, as in `ComponentArrays`."""


class ComponentArrays(NamedTuple):
    """A component on one architecture, as arrays for compiled code."""

    kinds: Ints
    order: Bools
    offsets: Ints
    """Direct successors of operator i are followers[offsets[i]:offsets[i + 1]]."""
    followers: Ints
    one: Floats
    """Latency on one core ℓ, infinite for operators that must run on all cores, shape (n,)."""
    every: Floats
    """Latency on all cores ℓ̂, shape (n,)."""
    num_tc: int
    num_vc: int


class ComponentDesigns(NamedTuple):
    """Latencies and usable cores of a component on A architectures."""

    one: Floats
    """Latency on one core ℓ, shape (A, n)."""
    every: Floats
    """Latency on all cores ℓ̂, shape (A, n)."""
    num_tc: Ints
    """Usable tensor cores, shape (A,)."""
    num_vc: Ints
    """Usable vector cores, shape (A,)."""


@dataclass(frozen=True, eq=False)
class OperatorOrder:
    """Partial order of the operators of a layer, and its series components."""

    order: Bools
    """order[i, j]: there is a path from i to j, shape (n, n)."""
    topological: tuple[int, ...]
    """All operators in topological order, no-ops included."""
    components: tuple[Component, ...]
    """Series components, first to last, without no-ops."""


def single_latencies(kinds: Ints, latency_s: Floats, overlap_communication: bool) -> Floats:
    """Latencies on one core ℓ; inf for network operators that must run alone, shape (..., n)."""
    alone = (kinds == NETWORK) & (not overlap_communication)
    return np.where(alone, np.inf, latency_s)


def core_codes(core: Sequence[str]) -> Ints:
    """Codes of core types, shape (n,); PhazeError for an unknown type."""
    unknown = sorted(set(core) - set(CORES))
    if unknown:
        raise PhazeError(f"core type must be one of {', '.join(CORES)}, got {', '.join(unknown)}")
    return np.array([CORES.index(c) for c in core], dtype=np.int64)


@lru_cache(maxsize=256)
def make_graph(core: tuple[str, ...], edges: Edges) -> OperatorOrder:
    """Order and series components of a layer; no-ops take part in the order but belong to no component."""
    kinds = core_codes(core)
    topological = sort_topologically(len(core), edges)
    order = transitive_order(len(core), edges)
    working = [i for i in topological if kinds[i] != NONE]
    parts = series_components(order[np.ix_(working, working)])
    components = []
    for part in parts:
        operators = [working[i] for i in part]
        components.append(Component(tuple(operators), kinds[operators], order[np.ix_(operators, operators)]))
    return OperatorOrder(order, topological, tuple(components))


def sort_topologically(n: int, edges: Edges) -> tuple[int, ...]:
    """Operators in topological order, the smallest index first among ready ones."""
    waiting = [set[int]() for _ in range(n)]
    for i, j in edges:
        if not (0 <= i < n and 0 <= j < n):
            raise PhazeError(f"edge ({i}, {j}): operators are numbered from 0 to {n - 1}")
        waiting[j].add(i)
    done: list[int] = []
    remaining = list(range(n))
    while remaining:
        ready = next((j for j in remaining if waiting[j] <= set(done)), None)
        if ready is None:
            raise PhazeError(f"operators {remaining}: the edges between them contain a cycle")
        remaining.remove(ready)
        done.append(ready)
    return tuple(done)


def transitive_order(n: int, edges: Edges) -> Bools:
    """Strict partial order of a graph: order[i, j] if a path leads from i to j, shape (n, n)."""
    order = np.zeros((n, n), dtype=np.bool_)
    parents: list[list[int]] = [[] for _ in range(n)]
    for i, j in edges:
        parents[j].append(i)
    for j in sort_topologically(n, edges):
        for i in parents[j]:
            order[:, j] |= order[:, i]
            order[i, j] = True
    return order


def series_components(order: Bools) -> list[list[int]]:
    """Connected components of the incomparability graph, in series order.

    Positions must be in topological order. An operator comparable with all others is its own component.
    """
    n = len(order)
    apart = ~(order | order.T) & ~np.eye(n, dtype=np.bool_)
    label = np.full(n, -1, dtype=np.int64)
    for start in range(n):
        stack = [start] if label[start] < 0 else []
        while stack:
            i = stack.pop()
            label[i] = start
            stack.extend(int(j) for j in np.flatnonzero(apart[i] & (label < 0)))
    parts = [[int(i) for i in np.flatnonzero(label == start)] for start in np.unique(label)]
    return sorted(parts, key=lambda part: int(order[:, part[0]].sum() - order[np.ix_(part, [part[0]])].sum()))


def downsets(order: Bools, limit: int) -> list[int] | None:
    """All downward-closed sets as bits, smaller ones first; None if there are more than `limit`."""
    before = [sum(1 << int(i) for i in np.flatnonzero(order[:, j])) for j in range(len(order))]
    sets = {0}
    layer = {0}
    while layer:
        layer = {d | 1 << j for d in layer for j, b in enumerate(before) if not d >> j & 1 and b & d == b}
        sets |= layer
        if len(sets) > limit:
            return None
    return sorted(sets, key=lambda d: (d.bit_count(), d))


@dataclass(frozen=True, eq=False, kw_only=True)
class Solution(SolverRun):
    """Shortest known schedule of a component, and the method that found it."""

    status: Status
    schedule: LayerSchedule
    bound_s: float
    """Lower bound on the latency of any schedule."""
    method: Literal["bounds", "program"] = "bounds"
    z_needed: bool = False
    """True if the optimum without core limits needs too many cores, so that the program had to assign cores.
    """
    repeatable: bool = True
    """True if no solver failed: one that was killed or out of memory may succeed next time."""
