"""Shortest schedule of a component by integer programs (Section 4 and Appendix A).

The program is first solved without the variables that assign operators to cores. If its schedule finds cores
for all operators, it is optimal. Otherwise these variables are added for the overloaded core types, and the
program is solved again (Appendix A). Core counts are not sufficient, as fused operators need both cores of a
pair. If the counts suffice but no pairs are found, both types are added.

Solvers work with tolerances, so only choices are taken from a solver's solution: the operators on all cores,
and the order of operators. Times follow exactly from these, and the bound never exceeds the known schedule.

The formulation `sparse` is a reduced integer program of Section 4. It has the same optimum as Figure 3 (the
formulation `paper`, whose equation numbers are at the right), but fewer variables and constraints:

- Order variables exist only for incomparable pairs i ∥ j, and implied constraints are omitted: (3), (4) and
  (6) follow from the times, (12) and (13) from omitted variables.
- Times are on a clock that stops while an operator runs on all cores. Nothing else runs then, so such an
  operator takes no time on this clock. The latency is the time U on the clock plus the latencies of the
  operators on all cores:

      min  T = U + Σ_i y_i ℓ̂_i
      q_i = (1 − y_i) ℓ_i                                                                 (2)
      t_i + q_i ≤ U                                                                       (1)
      t_i + q_i ≤ t_j                          i ≺ j, no operator between                 (7)
      t_i + q_i − H (1 − x_ij) ≤ t_j           i ∥ j                                      (8)
      x_ij + x_ji ≥ y_i                        i ∥ j                                      (9)
      y_i + Σ_c z_ic = 1                       i uses cores of the type             (10), (11)
      z^tc_ic = z^vc_ic                        i fused, c ≤ min(num_tc, num_vc)          (14)
      x_ij + x_ji ≥ z_ic + z_jc − 1            i ∥ j                                (15), (16)
      Σ_i q_i ≤ num U                          i uses cores of the type, num of them
      lower ≤ T ≤ feasible                     proven bounds

  If network operators may overlap with computation, the clock never stops: q_i = (1 − y_i) ℓ_i + y_i ℓ̂_i,
  T = U.
- H = feasible − Σ ℓ̂_i over the operators that run on all cores in every schedule of interest: no such
  schedule has a larger U.
- y_i is fixed where bounds decide: 0 if all cores are no faster than one, 1 if the path through i on one core
  is longer than the feasible latency.
- Symmetric solutions are excluded: the r-th operator of a component uses only the first r cores.

The z variables exist only for core types that a solution without them overloads (Appendix A).
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pyomo.environ as pyo

from phaze.base.arrays import Bools, Floats, Ints
from phaze.schedule.bounds import EQUAL, Bounded, ComponentTask
from phaze.schedule.graphs import ALL_CORES, FUSED, NETWORK, LayerSchedule, Solution, Status
from phaze.schedule.instance import ROUNDING, TYPES, ProgramData, make_instance
from phaze.schedule.pairing import UNASSIGNED, assign_cores
from phaze.schedule.paper import formulate_paper, link_carries_one_at_a_time, nothing_runs_beside_all_cores
from phaze.solver import Limits
from phaze.solver.programs import POINT, Solve, solve
from phaze.spec.settings import ScheduleSettings

log = logging.getLogger(__name__)

DRIFT = 1e-6
"""Largest relative excess of a derived schedule's latency over the latency that the solution claims.
"""


def solve_program(task: ComponentTask, bounded: Bounded, settings: ScheduleSettings) -> Solution:
    """Best schedule of a component from an integer program, or else the known one, with the bound."""
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
    """Update the best solution with a solve's bound, and with its schedule if all operators found cores."""
    incumbent = best.schedule
    if schedule is not None and schedule.latency_s < incumbent.latency_s * (1 - EQUAL):
        incumbent = schedule
    bound = min(max(best.bound_s, result.bound * data.unit_s), incumbent.latency_s)
    proven = result.status == "optimal" and schedule is not None
    status: Status = "timed_out" if result.status == "timed_out" else "feasible"
    if proven or bound >= incumbent.latency_s * (1 - EQUAL):
        status = "optimal"
    return Solution(
        status=status,
        schedule=incumbent,
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
    """Order of the operators: the order of the graph, plus the solver's choices for incomparable pairs.

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
    remaining = sorted(range(len(begin)), key=lambda i: (begin[i], i))
    sequence: list[int] = []
    while remaining:
        ready = next((j for j in remaining if not before[remaining, j].any()), None)
        if ready is None:
            return None
        remaining.remove(ready)
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


def formulate_sparse(data: ProgramData) -> pyo.ConcreteModel:
    """Build the reduced integer program, with z variables for the assigned core types."""
    m = pyo.ConcreteModel()
    m.data = data
    m.operators = pyo.Set(initialize=data.positions)
    m.rivals = pyo.Set(initialize=[(a, b) for i, j in data.rivals for a, b in ((i, j), (j, i))])
    longest = longest_clock(data)
    m.start = pyo.Var(m.operators, bounds=(0, longest))
    m.clock = pyo.Var(bounds=(0, longest))
    m.wide = pyo.Var(m.operators, domain=pyo.Binary)
    m.before = pyo.Var(m.rivals, domain=pyo.Binary)
    _fix_choices(m)
    m.time = pyo.Expression(m.operators, rule=time_on_clock)
    stopped = 0 if data.overlapping else sum(data.every[i] * m.wide[i] for i in m.operators)
    m.latency = pyo.Expression(expr=m.clock + stopped)
    m.shortest = pyo.Objective(expr=m.latency)
    _order_operators(m)
    m.cores = pyo.Set(initialize=[core for core in TYPES if core in data.assigned])
    if m.cores:
        _assign_cores(m)
    return m


def _order_operators(m: pyo.ConcreteModel) -> None:
    data: ProgramData = m.data
    links = [(i, j) for i, j in data.rivals if data.kinds[i] == data.kinds[j] == NETWORK]
    busy = [core for core in TYPES if data.users(core) and not data.overlapping]
    m.latency_is_between_bounds = pyo.Constraint(rule=latency_is_between_bounds)
    m.clock_covers_operator = pyo.Constraint(m.operators, rule=clock_covers_operator)
    m.operator_waits_for_predecessor = pyo.Constraint(data.edges, rule=operator_waits_for_predecessor)
    m.rivals_in_order_do_not_overlap = pyo.Constraint(m.rivals, rule=rivals_in_order_do_not_overlap)
    m.nothing_runs_beside_all_cores = pyo.Constraint(m.rivals, rule=nothing_runs_beside_all_cores)
    m.link_carries_one_at_a_time = pyo.Constraint(links, rule=link_carries_one_at_a_time)
    m.work_fits_cores = pyo.Constraint(busy, rule=work_fits_cores)


def _assign_cores(m: pyo.ConcreteModel) -> None:
    data: ProgramData = m.data
    places = allowed_places(data)
    rivals = [
        (core, i, j, c)
        for core in m.cores
        for i, j in data.rivals
        for c in range(data.count(core))
        if (core, i, c) in places and (core, j, c) in places
    ]
    users = [(core, i) for core in m.cores for i in data.users(core)]
    m.on_core = pyo.Var(sorted(places), domain=pyo.Binary)
    m.operator_has_core = pyo.Constraint(users, rule=operator_has_core)
    m.core_runs_one_at_a_time = pyo.Constraint(rivals, rule=core_runs_one_at_a_time)
    if len(m.cores) == len(TYPES):
        pairs = [(i, c) for core, i, c in sorted(places) if core == "tensor" and data.kinds[i] == FUSED]
        m.fused_operator_uses_one_pair = pyo.Constraint(pairs, rule=fused_operator_uses_one_pair)


def _fix_choices(m: pyo.ConcreteModel) -> None:
    """Fix y if bounds decide it: all cores are no faster, or the path through one core is too long."""
    data: ProgramData = m.data
    for i in data.positions:
        if data.wide[i]:
            m.wide[i].fix(1)
        elif data.one[i] <= data.every[i]:
            m.wide[i].fix(0)


def allowed_places(data: ProgramData) -> set[tuple[str, int, int]]:
    """Allowed triples (core type, operator, core), without symmetric equivalents.

    Core pairs are interchangeable, and so are cores without a partner. With cores numbered in the order of
    their first operator, the r-th operator finds its core among the first r. Without fused operators no core
    needs its partner, and the types are numbered separately.
    """
    pairs = data.pairs if (data.kinds == FUSED).any() else 0
    assigned = [core for core in TYPES if core in data.assigned]
    sharing = sorted({i for core in assigned for i in data.users(core)})
    places = set()
    for core in assigned:
        for rank, i in enumerate(data.users(core)):
            cores = pairs if data.kinds[i] == FUSED else data.count(core)
            for c in range(cores):
                if c <= sharing.index(i) if c < pairs else c - pairs <= rank:
                    places.add((core, i, c))
    return places


def longest_clock(data: ProgramData) -> float:
    """H, an upper bound on the clock time U of schedules as short as the known one."""
    return data.feasible * (1 + ROUNDING) - data.stopped


def time_on_clock(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
    """(2) An operator takes ℓ on one core; on all cores it takes no clock time, or ℓ̂ if the clock runs on."""
    running = m.data.every[i] * m.wide[i] if m.data.overlapping else 0
    return (1 - m.wide[i]) * m.data.one[i] + running


def latency_is_between_bounds(m: pyo.ConcreteModel) -> pyo.Expression:
    """The latency lies between the proven bound and the latency of the known schedule."""
    return (m.data.lower * (1 - ROUNDING), m.latency, m.data.feasible * (1 + ROUNDING))


def clock_covers_operator(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
    """(1) The clock runs until every operator has ended."""
    return m.start[i] + m.time[i] <= m.clock


def operator_waits_for_predecessor(m: pyo.ConcreteModel, i: int, j: int) -> pyo.Expression:
    """(7) An operator begins after its predecessors in the graph have ended."""
    return m.start[i] + m.time[i] <= m.start[j]


def rivals_in_order_do_not_overlap(m: pyo.ConcreteModel, i: int, j: int) -> pyo.Expression:
    """(8) If i comes before an incomparable j, then j begins after i has ended."""
    big = longest_clock(m.data)
    return m.start[i] + m.time[i] - big * (1 - m.before[i, j]) <= m.start[j]


def work_fits_cores(m: pyo.ConcreteModel, core: str) -> pyo.Expression:
    """The work on single cores of a type fits into the time of these cores on the clock."""
    return sum(m.time[i] for i in m.data.users(core)) <= m.data.count(core) * m.clock


def operator_has_core(m: pyo.ConcreteModel, core: str, i: int) -> pyo.Expression:
    """(10), (11) An operator runs on all cores or on one core of each type that it uses."""
    cores = [c for c in range(m.data.count(core)) if (core, i, c) in m.on_core]
    return m.wide[i] + sum(m.on_core[core, i, c] for c in cores) == 1


def core_runs_one_at_a_time(m: pyo.ConcreteModel, core: str, i: int, j: int, c: int) -> pyo.Expression:
    """(15), (16) Two incomparable operators on one core never overlap."""
    return m.before[i, j] + m.before[j, i] >= m.on_core[core, i, c] + m.on_core[core, j, c] - 1


def fused_operator_uses_one_pair(m: pyo.ConcreteModel, i: int, c: int) -> pyo.Expression:
    """(14) The tensor core and the vector core of a fused operator are a pair."""
    return m.on_core["tensor", i, c] == m.on_core["vector", i, c]


FORMULATIONS: dict[str, Callable[[ProgramData], pyo.ConcreteModel]] = {
    "sparse": formulate_sparse,
    "paper": formulate_paper,
}
