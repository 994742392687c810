"""Reduced integer program of Section 4: the formulation `sparse`.

It has the same optimum as Figure 3 (the formulation `paper`, whose equation numbers are at the right), but
fewer variables and constraints:

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

import pyomo.environ as pyo

from phaze.schedule.graphs import FUSED, NETWORK
from phaze.schedule.instance import ROUNDING, TYPES, ProgramData
from phaze.schedule.paper import link_carries_one_at_a_time, nothing_runs_beside_all_cores


def formulate_sparse(data: ProgramData) -> pyo.ConcreteModel:
    """Reduced program of an instance, with z variables for the assigned core types."""
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
    """Allowed (type, operator, core) without symmetric equivalents.

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
    """H, an upper bound on U of all schedules of interest."""
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
    """(15), (16) Two incomparable operators on one core run one after the other."""
    return m.before[i, j] + m.before[j, i] >= m.on_core[core, i, c] + m.on_core[core, j, c] - 1


def fused_operator_uses_one_pair(m: pyo.ConcreteModel, i: int, c: int) -> pyo.Expression:
    """(14) The tensor core and the vector core of a fused operator are a pair."""
    return m.on_core["tensor", i, c] == m.on_core["vector", i, c]
