"""Solvers of integer programs: availability, limits and answers.

This module has everything that a job needs if it ends without solving a program. `programs` has the solvers
themselves. It takes half a second or more to import, so it is imported with the first program.
"""

import math
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from phaze.base.errors import PhazeError
from phaze.base.provenance import library_version


@dataclass(frozen=True)
class SolverRun:
    """Solver that solved an integer program, and the size of the program."""

    solver: str = "none"
    """Name of the solver, `none` if none answered."""
    version: str = "none"
    variables: int = 0
    constraints: int = 0


@dataclass(frozen=True)
class Limits:
    """Limits at which a solve ends without a proof."""

    nodes: int = 20000
    """Maximum number of branch-and-bound nodes; the result does not depend on the machine."""
    wall_s: float = 60.0
    """Maximum wall time in seconds; ends a solve as `timed_out`."""
    gap: float = 1e-9
    """Relative gap between objective and bound at which a solve counts as proven."""


def relative_gap(objective: float, bound: float) -> float:
    """Optimality gap, (objective − bound) / objective; 0 if the bound is reached, inf if nothing is known."""
    if objective <= bound:
        return 0.0
    return (objective - bound) / objective if math.isfinite(objective) and objective > 0 else math.inf


def highs_version() -> str | None:
    """Version of HiGHS, equal to its wheel's version; None if it is not installed."""
    version = library_version("highspy")
    return None if version == "absent" else version


def glpsol_version() -> str | None:
    """Version of the program glpsol; None if no working glpsol is installed."""
    return _printed_version(shutil.which("glpsol"))


@cache
def _printed_version(program: str | None) -> str | None:
    if program is None:
        return None
    try:
        text = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = text.splitlines()[0].split() if text else []
    return words[-1] if words else None


VERSIONS: dict[str, Callable[[], str | None]] = {"glpk": glpsol_version, "highs": highs_version}
"""Functions that return a solver's version (None if absent), for all solvers that a study can name."""


def solver_versions(
    preference: Sequence[str], versions: Mapping[str, Callable[[], str | None]] = VERSIONS
) -> dict[str, str]:
    """Installed solvers in a preference list with their versions, in order of preference."""
    unknown = [name for name in preference if name not in versions]
    if unknown:
        raise PhazeError(f"schedule.solver: {unknown[0]!r} is not one of {', '.join(versions)}")
    installed = {name: versions[name]() for name in preference}
    return {name: version for name, version in installed.items() if version is not None}
