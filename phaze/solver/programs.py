"""Integer programs and their solvers; no other module calls these solvers.

A program is a Pyomo model with one objective to minimise. Solvers are tried in the order of a preference
list, and the first installed one solves the program. A solver that crashes, runs out of time, contradicts
itself, or returns a point that breaks a constraint is skipped. Every solve uses one thread and a fixed seed
and ends by counts (branch-and-bound nodes), so the result is the same everywhere. The wall-time limit is a
safeguard that only ever ends a solve as `timed_out`. `glpsol` supports a time limit only. A program that it
has not finished by then is left to the next solver, and programs likely to be too large for it, by the number
of variables, reach it last.
"""

import logging
import math
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import pyomo.environ as pyo
from pyomo.common.errors import ApplicationError
from pyomo.contrib.solver.common.results import TerminationCondition
from pyomo.contrib.solver.solvers.highs import Highs
from pyomo.opt import OptSolver, SolverResults

from phaze.solver import Limits, SolverRun, glpsol_version, highs_version, relative_gap, solver_versions

log = logging.getLogger(__name__)

Status = Literal["optimal", "feasible", "bounded", "timed_out", "infeasible", "failed"]
POINT = ("optimal", "feasible")
"""Statuses for which the model's variables contain a point, a feasible solution."""
VIOLATION = 1e-6
"""Largest constraint violation of a feasible point, relative to the constraint's value."""
FRACTION = 1e-5
"""Largest distance from an integer that solvers accept (the default of glpsol)."""
SEED = 0
KILLED = (signal.SIGKILL, signal.SIGTERM)
"""Signals by which another process ends a solver; other signals are crashes."""


@dataclass(frozen=True)
class SolverAnswer:
    """Answer of one solver; for a status in POINT, the solution is stored in the model's variables."""

    status: Status
    bound: float = -math.inf
    """Lower bound on the objective."""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Solve(SolverRun):
    """Result of solving a program; for a status in POINT, the solution is stored in the model's variables."""

    status: Status
    """`feasible` and `bounded` mean that a limit was reached first, with or without a point."""
    objective: float
    """Objective of the point, infinity without one."""
    bound: float
    """Lower bound on the objective, minus infinity if none is known."""
    failures: int = 0
    """Number of solvers that failed or contradicted the one that answered; a retry may succeed."""

    @property
    def gap(self) -> float:
        """Gap between objective and bound, relative to the objective."""
        return relative_gap(self.objective, self.bound)


class Backend(Protocol):
    """Interface of a solver."""

    capacity: float
    """Number of free variables above which other solvers are tried first."""

    def version(self) -> str | None:
        """Version of the solver, or None if it is not installed."""

    def run(self, model: pyo.ConcreteModel, limits: Limits) -> SolverAnswer:
        """Solve the model; any exception means that the solver failed."""


class HighsBackend:
    """HiGHS through its Python wheel."""

    capacity = math.inf
    version = staticmethod(highs_version)

    def run(self, model: pyo.ConcreteModel, limits: Limits) -> SolverAnswer:
        """Solve with a node limit, one thread and a fixed seed."""
        solver = Highs()
        results = solver.solve(
            model,
            load_solutions=False,
            raise_exception_on_nonoptimal_result=False,
            threads=1,
            time_limit=limits.wall_s,
            rel_gap=limits.gap,
            abs_gap=0.0,
            solver_options={
                "random_seed": SEED,
                "parallel": "off",
                "mip_max_nodes": limits.nodes,
                "primal_feasibility_tolerance": 1e-9,
                "dual_feasibility_tolerance": 1e-9,
                "mip_feasibility_tolerance": 1e-9,
            },
        )
        status = _highs_status(results.termination_condition, results.incumbent_objective is not None)
        if status in POINT:
            results.solution_loader.load_vars()
        bound = results.objective_bound
        return SolverAnswer(status, -math.inf if bound is None else bound, results.termination_condition.name)


def _highs_status(condition: TerminationCondition, has_point: bool) -> Status:
    if condition == TerminationCondition.convergenceCriteriaSatisfied:
        return "optimal"
    if condition == TerminationCondition.iterationLimit:
        return "feasible" if has_point else "bounded"
    if condition == TerminationCondition.maxTimeLimit:
        return "timed_out"
    if condition in (TerminationCondition.provenInfeasible, TerminationCondition.infeasibleOrUnbounded):
        return "infeasible"
    return "failed"


class GlpkBackend:
    """GLPK through the program glpsol.

    It typically proves programs of a hundred variables in a tenth of a second, but some of three hundred not
    in a minute.
    """

    capacity = 200.0
    version = staticmethod(glpsol_version)

    def run(self, model: pyo.ConcreteModel, limits: Limits) -> SolverAnswer:
        """Solve with cuts and a time limit, the only limit that glpsol supports."""
        solver = pyo.SolverFactory("glpk", executable=shutil.which("glpsol"))
        solver._version_timeout = 60  # the default of two seconds is too short on a busy machine
        solver.options.update({"cuts": "", "mipgap": limits.gap})
        try:
            results = self._run_glpsol(solver, model, limits)
        except subprocess.TimeoutExpired:
            return SolverAnswer("timed_out")
        condition = str(results.solver.termination_condition)
        if condition in ("maxTimeLimit", "feasible"):
            return SolverAnswer("timed_out", message=condition)
        if condition == "optimal" and len(results.solution):
            model.solutions.load_from(results)
            return SolverAnswer("optimal", results.problem.lower_bound, condition)
        return SolverAnswer("infeasible" if condition == "infeasible" else "failed", message=condition)

    def _run_glpsol(self, solver: OptSolver, model: pyo.ConcreteModel, limits: Limits) -> SolverResults:
        """Run glpsol; run it again if another process killed it, since the program may still be solvable."""
        for last in (False, True):
            try:
                return solver.solve(model, load_solutions=False, timelimit=math.ceil(limits.wall_s))
            except ApplicationError:
                if last or -solver._rc not in KILLED:
                    raise
                log.warning("glpsol was killed (signal %d) and is run again", -solver._rc)
        raise AssertionError("unreachable")


BACKENDS: dict[str, Backend] = {"glpk": GlpkBackend(), "highs": HighsBackend()}
"""Solvers that a study can name."""


def solve(
    model: pyo.ConcreteModel,
    preference: Sequence[str],
    limits: Limits,
    *,
    fault: Callable[[pyo.ConcreteModel], str] = lambda _: "",
    backends: Mapping[str, Backend] = BACKENDS,
) -> Solve:
    """Minimise a model with the first solver of the preference list that gives a usable answer.

    A program beyond a solver's capacity goes to the others first. A point is accepted if it satisfies all
    constraints and `fault`, which checks anything else, returns an empty text. Without an answer the status
    is `timed_out` if a solver ran out of time, `infeasible` if all reported so, else `failed`. No solver
    causes an exception.
    """
    size = count_model(model)
    refused: list[Status] = []
    installed = solver_versions(preference, {name: backend.version for name, backend in backends.items()})
    for name in sorted(installed, key=lambda backend: size[0] > backends[backend].capacity):
        answer = _run_backend(model, backends[name], limits, fault)
        if answer.status in (*POINT, "bounded"):
            objective = pyo.value(_objective(model)) if answer.status in POINT else math.inf
            # Within the tolerances of a solver its bound may lie just above its point.
            bound = min(answer.bound, objective)
            version, failures = installed[name], len(refused) - refused.count("timed_out")
            return Solve(
                name,
                version,
                *size,
                status=answer.status,
                objective=objective,
                bound=bound,
                failures=failures,
            )
        log.warning("solver %s gave no answer: %s %s", name, answer.status, answer.message)
        refused.append(answer.status)
    status: Status = "failed"
    if "timed_out" in refused:
        status = "timed_out"
    elif refused and set(refused) == {"infeasible"}:
        status = "infeasible"
    failures = refused.count("failed")
    return Solve("none", "none", *size, status=status, objective=math.inf, bound=-math.inf, failures=failures)


def _run_backend(
    model: pyo.ConcreteModel, backend: Backend, limits: Limits, fault: Callable[[pyo.ConcreteModel], str]
) -> SolverAnswer:
    """Run a solver and check its answer; status `failed`, with the reason, if the answer is unusable."""
    # Without values of an earlier solver, so that a solver which leaves none is noticed.
    for variable in _variables(model):
        variable.set_value(None)
    try:
        answer = backend.run(model, limits)
    except Exception as error:  # noqa: BLE001 - whatever a solver does, the next one may answer
        return SolverAnswer("failed", message=f"{type(error).__name__}: {error}")
    if answer.status not in POINT:
        return answer
    mistake = _complete_point(model) or point_fault(model) or fault(model)
    objective = math.inf if mistake else pyo.value(_objective(model))
    if answer.bound > objective + VIOLATION * max(1.0, abs(objective)):
        mistake = f"its bound {answer.bound} is above its point {objective}"
    return SolverAnswer("failed", message=f"it claims {answer.status}, but {mistake}") if mistake else answer


def _complete_point(model: pyo.ConcreteModel) -> str:
    """Set the variables that a solver left unset; return an error message if all of them are unset."""
    missing = [variable for variable in _variables(model) if variable.value is None]
    if missing and len(missing) == len(_variables(model)):
        return "it left no point"
    for variable in missing:
        above = 0.0 if variable.lb is None else max(0.0, variable.lb)
        variable.set_value(above if variable.ub is None else min(above, variable.ub))
    return ""


def point_fault(model: pyo.ConcreteModel) -> str:
    """Description of the first constraint, bound or integrality that the point violates; empty if none."""
    for variable in _variables(model):
        value = variable.value
        if value is None:
            return f"{variable.name} has no value"
        if variable.is_integer() and abs(value - round(value)) > FRACTION:
            return f"{variable.name} = {value} is not an integer"
        if not _between(value, variable.lb, variable.ub):
            return f"{variable.name} = {value} is outside its bounds {variable.lb} to {variable.ub}"
    for constraint in model.component_data_objects(pyo.Constraint, active=True):
        body = pyo.value(constraint.body)
        if not _between(body, pyo.value(constraint.lower), pyo.value(constraint.upper)):
            return f"{constraint.name} is broken: {body}"
    return ""


def _between(value: float, lower: float | None, upper: float | None) -> bool:
    slack = VIOLATION * max(1.0, abs(value))
    return (lower is None or value >= lower - slack) and (upper is None or value <= upper + slack)


def count_model(model: pyo.ConcreteModel) -> tuple[int, int]:
    """Numbers of free variables and of constraints of a model."""
    constraints = sum(1 for _ in model.component_data_objects(pyo.Constraint, active=True))
    return len(_variables(model)), constraints


def _variables(model: pyo.ConcreteModel) -> list[pyo.Var]:
    return [v for v in model.component_data_objects(pyo.Var, active=True) if not v.fixed]


def _objective(model: pyo.ConcreteModel) -> pyo.Objective:
    return next(model.component_data_objects(pyo.Objective, active=True))
