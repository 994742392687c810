"""Shortest schedule of a component by integer programs (Section 4 and Appendix A).

The program is first solved without the variables that assign operators to cores. If its schedule finds cores
for all operators, it is optimal. Otherwise these variables are added for the overloaded core types, and the
program is solved again (Appendix A). Core counts are not sufficient, as fused operators need both cores of a
pair. If the counts suffice but no pairs are found, both types are added.

Solvers work with tolerances, so only choices are taken from a solver's solution: the operators on all cores,
and the order of operators. Times follow exactly from these, and the bound never exceeds the known schedule.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pyomo.environ as pyo

from phaze.base.arrays import Bools, Floats, Ints
from phaze.schedule.bounds import EQUAL, Bounded, ComponentTask
from phaze.schedule.decomposition import Solution, Status
from phaze.schedule.graphs import ALL_CORES, NETWORK, LayerSchedule
from phaze.schedule.instance import TYPES, ProgramData, make_instance
from phaze.schedule.pairing import UNASSIGNED, assign_cores
from phaze.schedule.paper import formulate_paper
from phaze.schedule.sparse import formulate_sparse
from phaze.solver import Limits
from phaze.solver.programs import POINT, Solve, solve
from phaze.spec.settings import ScheduleSettings

log = logging.getLogger(__name__)

FORMULATIONS: dict[str, Callable[[ProgramData], pyo.ConcreteModel]] = {
    "sparse": formulate_sparse,
    "paper": formulate_paper,
}
DRIFT = 1e-6
"""Largest relative excess of the schedule derived from a solution over the latency that the solution claims.
"""


def solve_program(task: ComponentTask, bounded: Bounded, settings: ScheduleSettings) -> Solution:
    """Best schedule of a component from a program, or else the known one, with the bound."""
    data = make_instance(task, bounded)
    if settings.formulation == "sparse":
        data = data.on_clock()
    best = Solution(status="feasible", schedule=bounded.schedule, bound_s=bounded.lower_s, method="program")
    limits = Limits(settings.node_limit, settings.wall_limit_s)
    while True:
        model = FORMULATIONS[settings.formulation](data)
        result = solve(model, settings.solver, limits, fault=partial(_drift, data, task))
        log.info(
            "%s: %d operators, %s by %s", settings.formulation, len(data.kinds), result.status, result.solver
        )
        schedule = schedule_point(data, model, task) if result.status in POINT else None
        missing = frozenset() if schedule is None else overloaded_types(data, schedule)
        best = _learn(best, result, schedule if not missing else None, data)
        if best.status != "feasible" or not missing - data.assigned:
            return best
        data = replace(data, assigned=data.assigned | missing)


def _learn(best: Solution, result: Solve, schedule: LayerSchedule | None, data: ProgramData) -> Solution:
    """Best solution after a solve, with the schedule of its solution if all operators found cores."""
    found = best.schedule
    if schedule is not None and schedule.latency_s < found.latency_s * (1 - EQUAL):
        found = schedule
    bound = min(max(best.bound_s, result.bound * data.unit_s), found.latency_s)
    proven = result.status == "optimal" and schedule is not None
    status: Status = "timed_out" if result.status == "timed_out" else "feasible"
    if proven or bound >= found.latency_s * (1 - EQUAL):
        status = "optimal"
    return Solution(
        status=status,
        schedule=found,
        bound_s=bound,
        method="program",
        solver=best.solver if result.solver == "none" else result.solver,
        version=best.version if result.solver == "none" else result.version,
        variables=result.variables,
        constraints=result.constraints,
        z_needed=bool(data.assigned),
        repeatable=best.repeatable and not result.failures and result.status != "infeasible",
    )


def _drift(data: ProgramData, task: ComponentTask, model: pyo.ConcreteModel) -> str:
    """Fault message if the schedule derived from a solution is longer than claimed; otherwise empty."""
    schedule = schedule_point(data, model, task)
    claimed = pyo.value(model.shortest) * data.unit_s
    if schedule is None:
        return "its order contains a cycle"
    if schedule.latency_s > claimed * (1 + DRIFT):
        return f"its schedule takes {schedule.latency_s} s instead of {claimed} s"
    return ""


def schedule_point(data: ProgramData, model: pyo.ConcreteModel, task: ComponentTask) -> LayerSchedule | None:
    """Schedule that follows from the choices of a solution, None if its order contains a cycle.

    Every operator begins as soon as all operators that precede or exclude it have ended. Cores are left open
    (ALL_CORES or 0); `overloaded_types` checks them.
    """
    wide = np.array([model.wide[i].value > 0.5 for i in data.positions])
    begin = [model.start[i].value for i in data.positions]
    before = _relation(data, model, wide, begin)
    sequence = _sequence(before, begin)
    if sequence is None:
        return None
    latency = np.where(wide, task.every_s, task.one_s)
    start, end = np.zeros(len(wide)), np.zeros(len(wide))
    for k, j in enumerate(sequence):
        waits = [i for i in sequence[:k] if before[i, j] or _exclusive(data, wide, i, j)]
        start[j] = end[waits].max(initial=0.0)
        end[j] = start[j] + latency[j]
    return LayerSchedule(start, end, _cores(data, wide, start, end))


def _relation(data: ProgramData, model: pyo.ConcreteModel, wide: Bools, begin: list[float]) -> Bools:
    """Order of the operators: the order of the graph, plus the choices between rivals.

    Operators on all cores may be in any order: they take no time on the clock.
    """
    before = data.order.copy()
    for i, j in data.rivals:
        first, second = model.before[i, j].value > 0.5, model.before[j, i].value > 0.5
        if first and second:
            first, second = begin[i] <= begin[j], begin[i] > begin[j]
        if not (wide[i] and wide[j]) or data.overlapping:
            before[i, j], before[j, i] = first, second
    return before


def _sequence(before: Bools, begin: list[float]) -> list[int] | None:
    """Operators in topological order, earlier starts first; None on a cycle."""
    left = sorted(range(len(begin)), key=lambda i: (begin[i], i))
    sequence: list[int] = []
    while left:
        ready = next((j for j in left if not before[left, j].any()), None)
        if ready is None:
            return None
        left.remove(ready)
        sequence.append(ready)
    return sequence


def _exclusive(data: ProgramData, wide: Bools, i: int, j: int) -> bool:
    """True if two operators cannot run concurrently on any cores."""
    link = data.kinds[i] == data.kinds[j] == NETWORK
    return bool(link or (wide[i] and data.excludes(i, j)) or (wide[j] and data.excludes(j, i)))


def _cores(data: ProgramData, wide: Bools, start: Floats, end: Floats) -> Ints:
    """Cores of the operators on single cores; UNASSIGNED if cores are missing."""
    core = np.where(wide, ALL_CORES, 0)
    single = np.flatnonzero(~wide & (data.kinds != NETWORK))
    core[single] = assign_cores(data.kinds[single], start[single], end[single], data.num_tc, data.num_vc)[1]
    return core


def overloaded_types(data: ProgramData, schedule: LayerSchedule) -> frozenset[str]:
    """Core types that a schedule overloads; both if only pairs are missing."""
    if (schedule.core != UNASSIGNED).all():
        return frozenset()
    overloaded = set()
    for core in TYPES:
        users = [i for i in data.users(core) if schedule.core[i] != ALL_CORES]
        start, end = schedule.start_s[users], schedule.end_s[users]
        running = (start[:, None] <= start) & (start < end[:, None])
        if running.sum(axis=0).max(initial=0) > data.count(core):
            overloaded.add(core)
    return frozenset(overloaded or TYPES)
