"""Linear programs that grow row by row, with optional integer variables, solved by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import highspy
import numpy as np

from phaze.base.arrays import Bools, Floats, Ints

NODES = 50
"""Branch-and-bound node limit, at which the bound proven so far is returned."""
OPTIONS = {
    "output_flag": False, "threads": 1, "random_seed": 0, "mip_max_nodes": NODES, "mip_heuristic_effort": 0.0,
    "mip_heuristic_run_rins": False, "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False, "mip_heuristic_run_feasibility_jump": False,
}  # fmt: skip
"""Deterministic options: one thread and a node limit; no heuristics, as they cannot raise a bound."""

INSIDE: dict[str, str | float] = {"solver": "ipm", "run_crossover": "off", "ipm_optimality_tolerance": 1e-5}
"""Options of the interior-point method, without crossover, so that it ends at an interior point."""


class QuietHighs(highspy.Highs):
    """HiGHS without output; the constructor of 1.16 enables callbacks, which prints a banner."""

    def enableCallbacks(self) -> None:  # noqa: N802 - HiGHS's name
        """Enable callbacks without the banner."""
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


class SparseRows(NamedTuple):
    """Rows of a constraint matrix, without their zeros.

    Unlike the class of `scipy.sparse`, this one does not take a fifth of a second to import.
    """

    values: Floats
    columns: Ints
    starts: Ints
    """Index of the first value of every row, (R,)."""

    @classmethod
    def of(cls, values: Floats, columns: Ints) -> Self:
        """Rows with these values at these columns, (R, entries) each; the columns of a row are distinct."""
        nonzero = values != 0
        counts = nonzero.sum(axis=1)
        # Of each row HiGHS takes the index of its first entry, which is where the row before ends.
        starts = np.cumsum(counts) - counts
        return cls(values[nonzero], np.broadcast_to(columns, values.shape)[nonzero], starts)


@dataclass(frozen=True)
class LinearAnswer:
    """Result of a linear program: a lower bound, and the best point found."""

    bound: float
    """Lower bound on the objective; infinite if the program is infeasible."""
    point: Floats | None
    """Best point found, if any."""


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """Linear program: minimise `cost` @ x for lower <= x <= upper and all added rows; fields (variables,)."""

    cost: Floats
    lower: Floats
    upper: Floats
    integer: Bools
    """Variables that must be integers in an exact solve."""

    @cached_property
    def _highs(self) -> QuietHighs:
        solver = QuietHighs()  # type: ignore[no-untyped-call]
        for name, value in OPTIONS.items():
            solver.setOptionValue(name, value)
        count = len(self.cost)
        solver.addVars(count, self.lower, self.upper)
        solver.changeColsCost(count, np.arange(count, dtype=np.int32), self.cost)
        return solver

    def add(self, rows: Floats | SparseRows, least: Floats, most: Floats | None = None) -> int:
        """Add the rows least <= rows @ x <= most, and return the index of the first.

        `rows` is (R, variables), `least` and `most` are (R,); without `most` there is no upper limit.
        """
        first: int = self._highs.getNumRow()
        sparse = rows if isinstance(rows, SparseRows) else SparseRows.of(rows, np.arange(rows.shape[1]))
        starts, columns = sparse.starts.astype(np.int32), sparse.columns.astype(np.int32)
        upper = np.full(len(least), np.inf) if most is None else most
        self._highs.addRows(len(least), least, upper, len(columns), starts, columns, sparse.values)
        return first

    def at_least(self, variable: int, value: float) -> None:
        """Raise the lower bound of a variable."""
        self._highs.changeColBounds(variable, value, float(self.upper[variable]))

    def solve(self, *, exact: bool = False, gap: float = 0.0) -> LinearAnswer:
        """Minimise the objective; `exact`: variables in `integer` are integers, optimal to a relative gap."""
        solver, count = self._highs, len(self.cost)
        kinds = np.full(count, highspy.HighsVarType.kContinuous.value, np.uint8)
        if exact:
            kinds[self.integer] = highspy.HighsVarType.kInteger.value
        solver.changeColsIntegrality(count, np.arange(count, dtype=np.int32), kinds)
        solver.setOptionValue("mip_rel_gap", gap)
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return LinearAnswer(np.inf, None)
        is_feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        point = np.array(solver.getSolution().col_value) if is_feasible else None
        if exact:
            return LinearAnswer(float(info.mip_dual_bound), point)
        # A primal value at a limit is no lower bound; only at an optimum both coincide.
        proven = status == highspy.HighsModelStatus.kOptimal
        return LinearAnswer(float(info.objective_function_value) if proven else -np.inf, point)

    def solve_inside(self) -> tuple[Floats, Floats] | None:
        """Nearly optimal interior point, and dual values of all rows; None if none is found.

        Uses an interior-point method.
        """
        solver = self._highs
        for name, value in INSIDE.items():
            solver.setOptionValue(name, value)
        solver.run()
        # HiGHS reports "unknown" within its own tolerance but outside that of other methods.
        if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        solution = solver.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)
