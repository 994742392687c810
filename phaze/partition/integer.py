"""Partitions by an integer program, for boundaries with too many fronted subgraphs to enumerate.

    minimise T
    x[v, b] ≥ x[v, b - 1]                    node sets of the first stages are nested
    x[v, b] ≤ x[u, b]                        for every edge (u, v): sets are closed under ancestors
    y[v, s] = x[v, s + 1] - x[v, s]          1 if v is in stage s
    z[u, v, s] ≥ |y[u, s] - y[v, s]|         1 if a message enters or leaves the stage
    Σ_v y c_u + Σ_(u, v) z c_m ≤ T           the time (3) of every stage
    Σ_v y m + Σ_(u, v) z M ≤ DM              its memory (14)
    Σ_v y ≥ 1                                no stage is empty

x[v, b] is 1 if node v is in the first b of S stages; the windows of a limit on T fix many of them. The
relaxation bounds messages poorly: programs of a few hundred open nodes are solved in seconds, others are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo

from phaze.base.arrays import Floats, Ints
from phaze.partition.fronted import Windows, windows_within
from phaze.partition.program import Cut, cut_of
from phaze.partition.weights import Weights, fits, quotient
from phaze.solver import Limits
from phaze.solver.programs import BACKENDS, POINT

MOST_TERMS = 1_500
"""Largest product of edges and stages for which an integer program is solved in seconds."""
LIMITS = Limits(gap=1e-6, nodes=300, wall_s=120.0)
"""Solver limits. A solve that reaches the wall time is discarded, so that results are reproducible."""
BETTER = 1e-6
"""Relative improvement that a new partition must have."""


@dataclass(frozen=True, eq=False)
class Solved:
    """Result of the integer program."""

    cut: Cut | None
    """Better partition than the known one; None if none was found."""
    bound_s: float
    """Lower bound on the slowest stage time of any partition; inf if no partition exists."""


def cut_by_program(weights: Weights, stages: int, known_s: float = np.inf) -> Solved | None:
    """Find a partition faster than `known_s`, and a lower bound; None if the program is too large.

    Without a known partition the result is any one that fits in memory, or a proof that there is none.
    """
    groups = windows_within(weights, stages, known_s).groups
    smaller, group = quotient(weights, groups)
    windows = windows_within(smaller, stages, known_s)
    if len(smaller.edges) * stages > MOST_TERMS or windows.contradictory:
        return None
    limit_s = min(known_s * (1 - BETTER), _longest_s(weights))
    program = _Program(smaller, windows, limit_s)
    answer = BACKENDS["highs"].run(program.model, LIMITS)
    if answer.status == "infeasible":
        return Solved(None, limit_s if np.isfinite(known_s) else np.inf)
    bound_s = max(answer.bound, 0.0) * limit_s
    if answer.status not in POINT:
        return Solved(None, bound_s)
    return Solved(_checked(weights, program.stage_of()[group], stages, known_s), bound_s)


def _longest_s(weights: Weights) -> float:
    """Upper bound on the stage time of any partition."""
    return 2.0 * (weights.total_s + weights.seconds_per_byte * float(weights.edge_bytes.sum()))


def _checked(weights: Weights, stage_of: Ints, stages: int, known_s: float) -> Cut | None:
    """The solver's partition if it is valid, fits in memory, and is faster than the known one."""
    pairs = stage_of[weights.edges]
    if (pairs[:, 0] > pairs[:, 1]).any() or len(np.unique(stage_of)) < stages:
        return None
    cut = cut_of(weights, stage_of)
    return cut if cut.time_s < known_s and fits(weights, stage_of) else None


class _Program:
    """Integer program that partitions a graph; times are in units of `limit_s`, which no stage exceeds."""

    def __init__(self, weights: Weights, windows: Windows, limit_s: float) -> None:
        self.weights, self.windows = weights, windows
        self.stages = len(windows.least_s) + 1
        self.ends: list[list[int]] = weights.edges.tolist()
        model = self.model = pyo.ConcreteModel()
        model.slowest = pyo.Var(bounds=(0.0, 1.0))
        model.first = pyo.Var(range(len(weights)), range(1, self.stages), domain=pyo.Binary)
        model.crosses = pyo.Var(range(len(self.ends)), range(self.stages), bounds=(0.0, 1.0))
        model.kept = pyo.ConstraintList()
        self._fix()
        self._order()
        for stage in range(self.stages):
            self._cross(stage)
            self._limit(stage, limit_s)
        model.least_time = pyo.Objective(expr=model.slowest)

    def stage_of(self) -> Ints:
        """Stage of each node (n,) in the solver's solution."""
        borders = range(1, self.stages)
        stages = [
            sum(1 - round(pyo.value(self.model.first[v, b])) for b in borders)
            for v in range(len(self.weights))
        ]
        return np.array(stages, dtype=np.int64)

    def _first(self, v: int, border: int) -> pyo.Expression | float:
        """Variable, or constant, that is 1 if a node is in the first `border` stages."""
        return float(border > 0) if border in (0, self.stages) else self.model.first[v, border]

    def _within(self, v: int, stage: int) -> pyo.Expression | float:
        return self._first(v, stage + 1) - self._first(v, stage)

    def _fix(self) -> None:
        """Fix the variables that each node's range of stages determines."""
        for v, border in self.model.first:
            if self.windows.latest[v] < border or self.windows.earliest[v] >= border:
                self.model.first[v, border].fix(int(self.windows.latest[v] < border))

    def _order(self) -> None:
        """Require nested node sets, each closed under ancestors."""
        first, constraints = self.model.first, self.model.kept
        for v, border in first:
            if border > 1 and not (first[v, border].fixed and first[v, border - 1].fixed):
                constraints.add(first[v, border - 1] <= first[v, border])
        for u, v in self.ends:
            for border in range(1, self.stages):
                if not (first[u, border].fixed and first[v, border].fixed):
                    constraints.add(first[v, border] <= first[u, border])

    def _cross(self, stage: int) -> None:
        """Require that the `crosses` variables count every message that enters or leaves a stage."""
        for e, (u, v) in enumerate(self.ends):
            crosses = self.model.crosses[e, stage]
            if not self._may_hold(u, stage) and not self._may_hold(v, stage):
                crosses.fix(0)
                continue
            self.model.kept.add(crosses >= self._within(u, stage) - self._within(v, stage))
            self.model.kept.add(crosses >= self._within(v, stage) - self._within(u, stage))

    def _may_hold(self, v: int, stage: int) -> bool:
        return bool(self.windows.earliest[v] <= stage <= self.windows.latest[v])

    def _limit(self, stage: int, limit_s: float) -> None:
        """Limit the time and memory of a stage, and require at least one node."""
        weights, model = self.weights, self.model
        times = weights.compute_s / limit_s, weights.seconds_per_byte * weights.edge_bytes / limit_s
        model.kept.add(self._sum(stage, *times) <= model.slowest)
        if np.isfinite(weights.limit_bytes):
            shares = weights.memory_bytes / weights.limit_bytes, weights.edge_bytes / weights.limit_bytes
            model.kept.add(self._sum(stage, *shares) <= 1.0)
        count = np.ones(len(weights)), np.zeros(len(self.ends))
        model.kept.add(self._sum(stage, *count) >= 1.0)

    def _sum(self, stage: int, of_node: Floats, of_message: Floats) -> pyo.Expression:
        """Sum over the nodes of a stage and over the messages that enter or leave it."""
        nodes = [v for v in range(len(self.weights)) if self._may_hold(v, stage)]
        crosses = self.model.crosses
        return (
            0.0 * self.model.slowest
            + sum(float(of_node[v]) * self._within(v, stage) for v in nodes)
            + sum(size * crosses[e, stage] for e, size in enumerate(of_message.tolist()) if size)
        )
