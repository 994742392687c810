"""Solvers behind one function: each proves what it can, and all failures are handled."""

import math
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyomo.environ as pyo
import pytest

from phaze.base.errors import PhazeError
from phaze.solver import VERSIONS, Limits, relative_gap, solver_versions
from phaze.solver.programs import BACKENDS, Backend, SolverAnswer, count_model, point_fault, solve

LIMITS = Limits(nodes=1000, wall_s=20.0)
BEST = 15.0
Script = Callable[[pyo.ConcreteModel], SolverAnswer]


def knapsack() -> pyo.ConcreteModel:
    """Return a program whose optimum is 15: weigh at least 7 with items of (weight, price)."""
    items = {"a": (3, 7.0), "b": (4, 8.0), "c": (5, 11.0), "d": (2, 9.0)}
    model = pyo.ConcreteModel()
    model.taken = pyo.Var(list(items), domain=pyo.Binary)
    model.heavy_enough = pyo.Constraint(expr=sum(items[i][0] * model.taken[i] for i in items) >= 7)
    model.cheapest = pyo.Objective(expr=sum(items[i][1] * model.taken[i] for i in items))
    return model


def hard_program() -> pyo.ConcreteModel:
    """Return a market split program: tiny, and far beyond a few seconds or nodes."""
    rows, columns = 4, 30
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(columns), domain=pyo.Binary)
    model.over = pyo.Var(range(rows), bounds=(0, None))
    model.under = pyo.Var(range(rows), bounds=(0, None))
    i, j = np.indices((rows, columns))
    weights = ((37 * i * i + 91 * j * j + 53 * i * j + 17 * j) % 100).tolist()

    def halves(m: pyo.ConcreteModel, i: int) -> object:
        half = sum(weight * m.x[j] for j, weight in enumerate(weights[i]))
        return half - m.over[i] + m.under[i] == sum(weights[i]) // 2

    model.halves = pyo.Constraint(range(rows), rule=halves)
    model.miss = pyo.Objective(expr=sum(model.over[i] + model.under[i] for i in range(rows)))
    return model


class Scripted:
    """Solver with a scripted result."""

    def __init__(self, run: Script, version: str | None = "1.0", capacity: float = math.inf) -> None:
        self._run, self._version, self.capacity = run, version, capacity
        self.calls = 0

    def version(self) -> str | None:
        """Return the scripted version."""
        return self._version

    def run(self, model: pyo.ConcreteModel, limits: Limits) -> SolverAnswer:  # noqa: ARG002 - the interface
        """Return the scripted result."""
        self.calls += 1
        return self._run(model)


def put(model: pyo.ConcreteModel, *taken: str) -> None:
    """Write a point into the model."""
    for item in model.taken:
        model.taken[item].value = float(item in taken)


def crash(model: pyo.ConcreteModel) -> SolverAnswer:
    """Fail like a solver."""
    raise RuntimeError(f"segmentation fault on {len(model.taken)} variables")


def infeasible_point(model: pyo.ConcreteModel) -> SolverAnswer:
    """Claim an optimum at a point that is too light."""
    put(model, "a")
    return SolverAnswer("optimal", 7.0)


def fractional_point(model: pyo.ConcreteModel) -> SolverAnswer:
    """Claim an optimum at a fractional point."""
    put(model, "a", "b")
    model.taken["a"].value = 0.999
    return SolverAnswer("optimal", BEST)


def no_point(model: pyo.ConcreteModel) -> SolverAnswer:
    """Claim an optimum without a point."""
    for item in model.taken:
        model.taken[item].value = None
    return SolverAnswer("optimal", BEST)


def impossible_bound(model: pyo.ConcreteModel) -> SolverAnswer:
    """Claim a bound worse than the returned point."""
    put(model, "a", "b")
    return SolverAnswer("optimal", 16.0)


def right(model: pyo.ConcreteModel) -> SolverAnswer:
    """Return the optimum."""
    put(model, "a", "b")
    return SolverAnswer("optimal", BEST)


def backends(**scripts: Script) -> dict[str, Backend]:
    """Return scripted solvers by name."""
    return {name: Scripted(script) for name, script in scripts.items()}


@pytest.mark.solver
@pytest.mark.parametrize("name", ["highs", "glpk"])
def test_a_small_program_is_proven(name: str, require_program: Callable[[str], str]) -> None:
    """Objective and bound meet, and the point is in the model."""
    if name == "glpk":
        require_program("glpsol")
    model = knapsack()
    result = solve(model, [name], LIMITS)
    assert (result.status, result.solver) == ("optimal", name)
    assert result.objective == pytest.approx(BEST, rel=1e-9)
    assert result.bound == pytest.approx(BEST, rel=1e-9)
    assert result.gap == pytest.approx(0.0, abs=1e-9)
    assert {item for item in model.taken if model.taken[item].value > 0.5} == {"a", "b"}
    assert (result.variables, result.constraints) == (4, 1)


@pytest.mark.solver
def test_a_node_limit_ends_a_solve_with_point_and_bound() -> None:
    """The limit is a count: reproducible everywhere, with an honest gap."""
    results = [solve(hard_program(), ["highs"], Limits(nodes=50, wall_s=60.0)) for _ in range(2)]
    assert results[0] == results[1]
    assert results[0].status == "feasible"
    assert results[0].bound < results[0].objective
    assert results[0].gap > 0


@pytest.mark.solver
def test_a_wall_limit_ends_a_solve_as_timed_out() -> None:
    """Intermediate results depend on the machine and are dropped."""
    result = solve(hard_program(), ["highs"], Limits(nodes=10**9, wall_s=1.0))
    assert (result.status, result.objective, result.bound) == ("timed_out", math.inf, -math.inf)
    assert result.solver == "none"


@pytest.mark.solver
def test_glpsol_out_of_time_leaves_the_program_to_the_next(require_program: Callable[[str], str]) -> None:
    """Its only limit is time, so HiGHS with its node limit gives the result."""
    require_program("glpsol")
    assert len(hard_program().x) < BACKENDS["glpk"].capacity
    result = solve(hard_program(), ["glpk", "highs"], Limits(nodes=20, wall_s=1.0))
    assert (result.status, result.solver) == ("feasible", "highs")


@pytest.mark.solver
@pytest.mark.parametrize("name", ["highs", "glpk"])
def test_a_program_without_a_point_is_infeasible(name: str, require_program: Callable[[str], str]) -> None:
    """Seven cannot be reached without any item."""
    if name == "glpk":
        require_program("glpsol")
    model = knapsack()
    model.none_is_taken = pyo.Constraint(expr=sum(model.taken[i] for i in model.taken) <= 0.5)
    assert solve(model, [name], LIMITS).status == "infeasible"


@pytest.mark.parametrize(
    "failure",
    [crash, infeasible_point, fractional_point, no_point, impossible_bound],
    ids=lambda f: f.__name__,
)
def test_a_failing_solver_is_passed_over(failure: Script) -> None:
    """For any failure, the next solver of the list is used."""
    result = solve(knapsack(), ["bad", "good"], LIMITS, backends=backends(bad=failure, good=right))
    assert (result.status, result.solver, result.objective) == ("optimal", "good", BEST)


@pytest.mark.parametrize("status", ["timed_out", "infeasible", "failed"])
def test_an_answer_without_a_result_leads_to_the_next_solver(status: str) -> None:
    """A claim of infeasibility is also checked with another solver."""
    scripts = backends(bad=lambda _: SolverAnswer(status), good=right)
    result = solve(knapsack(), ["bad", "good"], LIMITS, backends=scripts)
    assert (result.status, result.solver) == ("optimal", "good")


def test_a_missing_solver_is_passed_over() -> None:
    """A preference list may name missing solvers."""
    absent = Scripted(right, version=None)
    scripts = {"absent": absent, "good": Scripted(right)}
    result = solve(knapsack(), ["absent", "good"], LIMITS, backends=scripts)
    assert result.solver == "good"
    assert absent.calls == 0


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        (["failed", "failed"], "failed"),
        (["failed", "timed_out"], "timed_out"),
        (["infeasible", "infeasible"], "infeasible"),
        (["infeasible", "failed"], "failed"),
    ],
)
def test_without_any_result_the_status_says_why(answers: list[str], status: str) -> None:
    """The function never raises."""
    scripts = {str(k): Scripted(lambda _, a=answer: SolverAnswer(a)) for k, answer in enumerate(answers)}
    result = solve(knapsack(), list(scripts), LIMITS, backends=scripts)
    assert (result.status, result.solver, result.version) == (status, "none", "none")


def test_no_solver_at_all_is_a_failed_solve() -> None:
    """A machine without solvers does not raise either."""
    result = solve(knapsack(), ["absent"], LIMITS, backends={"absent": Scripted(right, version=None)})
    assert result.status == "failed"


@pytest.mark.parametrize(("capacity", "solver"), [(4, "small"), (3, "large")])
def test_a_program_beyond_its_capacity_comes_to_a_solver_last(capacity: float, solver: str) -> None:
    """The preference applies to solvers designed for programs of this size."""
    scripts = {"small": Scripted(right, capacity=capacity), "large": Scripted(right)}
    assert solve(knapsack(), ["small", "large"], LIMITS, backends=scripts).solver == solver


def test_a_program_beyond_all_capacities_is_tried_all_the_same() -> None:
    """A small solver is better than none."""
    assert solve(knapsack(), ["a"], LIMITS, backends={"a": Scripted(right, capacity=1)}).status == "optimal"


def test_the_caller_may_refuse_a_point() -> None:
    """The caller may have conditions beyond the constraints."""

    def other(model: pyo.ConcreteModel) -> SolverAnswer:
        put(model, "c", "d")
        return SolverAnswer("feasible", 12.0)

    def fault(model: pyo.ConcreteModel) -> str:
        return "" if model.taken["d"].value > 0.5 else "no d"

    scripts = backends(first=right, second=other)
    result = solve(knapsack(), list(scripts), LIMITS, fault=fault, backends=scripts)
    assert (result.status, result.solver) == ("feasible", "second")
    assert (result.objective, result.bound) == (20.0, 12.0)


def test_a_glpsol_that_crashes_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed program may be broken."""
    program = tmp_path / "glpsol"
    program.write_text("#!/bin/sh\ncase $1 in --version) echo 'GLPSOL 5.0';; *) exit 3;; esac\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    result = solve(knapsack(), ["glpk", "highs"], LIMITS)
    assert (result.status, result.solver, result.objective) == ("optimal", "highs", BEST)


def test_without_glpsol_the_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then only HiGHS is listed, with its version."""
    monkeypatch.setenv("PATH", "")
    versions = solver_versions(["glpk", "highs"])
    assert list(versions) == ["highs"]
    assert versions["highs"][0].isdigit()


def test_an_unknown_solver_is_an_error_that_lists_the_known_ones() -> None:
    """A misspelt name would otherwise count as missing."""
    with pytest.raises(PhazeError, match=r"'gurobi' is not one of glpk, highs"):
        solver_versions(["gurobi"])


def test_faults_of_a_point_are_named() -> None:
    """A violated constraint, bound or integrality is named."""
    model = knapsack()
    assert point_fault(model) == "taken[a] has no value"
    put(model, "a")
    assert point_fault(model).startswith("heavy_enough is broken")
    put(model, "a", "b")
    assert point_fault(model) == ""
    model.taken["a"].value = 2.0
    assert point_fault(model) == "taken[a] = 2.0 is outside its bounds 0 to 1"


def test_what_nothing_depends_on_gets_some_value() -> None:
    """Solvers omit such variables."""
    model = knapsack()
    model.idle = pyo.Var(bounds=(2, 3))
    result = solve(model, ["good"], LIMITS, backends=backends(good=right))
    assert result.status == "optimal"
    assert model.idle.value == 2


def test_no_point_is_left_over_from_another_solver() -> None:
    """A solver without a point does not inherit the previous solver's point."""
    scripts = backends(first=infeasible_point, second=lambda _: SolverAnswer("optimal", 7.0))
    model = knapsack()
    assert solve(model, ["first", "second"], LIMITS, backends=scripts).status == "failed"


def test_fixed_variables_do_not_count() -> None:
    """The size of a program counts what a solver sees."""
    model = knapsack()
    model.taken["a"].fix(1)
    assert count_model(model) == (3, 1)


@pytest.mark.parametrize(
    ("objective", "bound", "gap"),
    [(10.0, 9.0, 0.1), (10.0, 10.0, 0.0), (10.0, 11.0, 0.0), (0.0, 0.0, 0.0), (math.inf, 1.0, math.inf)],
)
def test_the_gap_is_relative_to_the_objective(objective: float, bound: float, gap: float) -> None:
    """Zero if both meet, and infinite without any value."""
    assert relative_gap(objective, bound) == pytest.approx(gap)


def test_every_solver_of_a_study_has_a_backend() -> None:
    """All names allowed in the settings have a backend."""
    assert set(BACKENDS) == set(VERSIONS) == {"glpk", "highs"}
