"""Solvers of integer programs: which there are, how far they may go, and what they answer.

What a job needs that may end without a program is here; `programs` holds the solvers themselves and takes
half a second or more to import, so it is imported with the first program.
"""

from phaze.solver.limits import Limits, relative_gap
from phaze.solver.versions import solver_versions

__all__ = ["Limits", "relative_gap", "solver_versions"]
