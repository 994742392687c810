"""Linear programs that grow row by row, with some whole variables where told; HiGHS solves them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import highspy
import numpy as np
from scipy.sparse import csr_array

from phaze.base.arrays import Bools, Floats

NODES = 50
"""Branch-and-bound nodes after which the bound counts that is proven by then."""
OPTIONS = {
    "output_flag": False, "threads": 1, "random_seed": 0, "mip_max_nodes": NODES, "mip_heuristic_effort": 0.0,
}  # fmt: skip
"""Answers do not depend on the machine: they end by counts, on one thread."""

INSIDE: dict[str, str | float] = {"solver": "ipm", "run_crossover": "off", "ipm_optimality_tolerance": 1e-5}
"""Options of the interior-point method, which ends at a point inside."""


class QuietHighs(highspy.Highs):
    """HiGHS that prints nothing; 1.16 prints its banner as its constructor enables callbacks."""

    def enableCallbacks(self) -> None:  # noqa: N802 - HiGHS's name
        """Enable callbacks without the banner."""
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class LinearAnswer:
    """Least objective of a linear program."""

    bound: float
    """No point has less; infinite where no point keeps the constraints."""
    point: Floats | None
    """Best point found, if any."""


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """Least `cost` @ x with lower <= x <= upper and all rows that are added, (variables,) each."""

    cost: Floats
    lower: Floats
    upper: Floats
    whole: Bools
    """Variables that are integers where an exact answer is asked for."""

    @cached_property
    def _highs(self) -> QuietHighs:
        solver = QuietHighs()  # type: ignore[no-untyped-call]
        for name, value in OPTIONS.items():
            solver.setOptionValue(name, value)
        count = len(self.cost)
        solver.addVars(count, self.lower, self.upper)
        solver.changeColsCost(count, np.arange(count, dtype=np.int32), self.cost)
        return solver

    def add(self, rows: Floats | csr_array, least: Floats, most: Floats | None = None) -> int:
        """Add least <= rows @ x <= most; rows (R, variables), the others (R,), no upper end unless given; the
        number of the first row.
        """
        first: int = self._highs.getNumRow()
        sparse = csr_array(rows)
        starts, columns = sparse.indptr[:-1].astype(np.int32), sparse.indices.astype(np.int32)
        upper = np.full(len(least), np.inf) if most is None else most
        self._highs.addRows(len(least), least, upper, sparse.nnz, starts, columns, sparse.data)
        return first

    def at_least(self, variable: int, value: float) -> None:
        """Raise the lower bound of a variable."""
        self._highs.changeColBounds(variable, value, float(self.upper[variable]))

    def solve(self, *, exact: bool = False, gap: float = 0.0) -> LinearAnswer:
        """The least objective: of any point, or, to a relative gap, of those whose whole variables are."""
        solver, count = self._highs, len(self.cost)
        kind = highspy.HighsVarType
        kinds = np.array([(kind.kInteger if exact and one else kind.kContinuous).value for one in self.whole])
        solver.changeColsIntegrality(count, np.arange(count, dtype=np.int32), kinds.astype(np.uint8))
        solver.setOptionValue("mip_rel_gap", gap)
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            return LinearAnswer(np.inf, None)
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        point = np.array(solver.getSolution().col_value) if found else None
        if exact:
            return LinearAnswer(float(info.mip_dual_bound), point)
        proven = status == highspy.HighsModelStatus.kOptimal
        return LinearAnswer(float(info.objective_function_value) if proven else -np.inf, point)

    def solve_inside(self) -> tuple[Floats, Floats] | None:
        """Point with almost the least objective, and dual values of all rows; None where there is none.

        By an interior-point method.
        """
        solver = self._highs
        for name, value in INSIDE.items():
            solver.setOptionValue(name, value)
        solver.run()
        # What is within its own tolerance but not within that of other methods is called unknown.
        if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        found = solver.getSolution()
        return np.array(found.col_value), np.array(found.row_dual)
