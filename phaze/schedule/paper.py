"""Integer program of Section 4 as published in Figure 3, with all its constraints: formulation `paper`.

Variables: start t_i, latency p_i, makespan T; wide y_i, one if operator i runs on all cores; before x_ij, one
if i ends before j begins; on_tensor_core z^tc_ic and on_vector_core z^vc_ic. The z variables and their
constraints are omitted for core types that need no assignment (Appendix A). ≺ is the order of the operators,
∥ means incomparable.

    min T
    T ≥ t_i + p_i                                    ∀ i                             (1)
    p_i = y_i ℓ̂_i + (1 − y_i) ℓ_i                    ∀ i                             (2)
    x_ij + x_ji ≤ 1                                  ∀ i ≠ j                         (3)
    x_ik ≥ x_ij + x_jk − 1                           ∀ i, j, k different             (4)
    x_ij = 1                                         ∀ i ≺ j                         (5)
    x_ji = 0                                         ∀ i ≺ j                         (6)
    t_i + p_i ≤ t_j                                  ∀ i ≺ j                         (7)
    t_i + p_i − H (1 − x_ij) ≤ t_j                   ∀ i ∥ j                         (8)
    x_ij + x_ji ≥ y_i                                ∀ i ∥ j                         (9)
    y_i + Σ_(c ≤ num_tc) z^tc_ic = 1                 ∀ i on tensor or fused cores    (10)
    y_i + Σ_(c ≤ num_vc) z^vc_ic = 1                 ∀ i on vector or fused cores    (11)
    z^vc_ic = 0                                      ∀ i on tensor cores, c ≤ num_vc (12)
    z^tc_ic = 0                                      ∀ i on vector cores, c ≤ num_tc (13)
    z^tc_ic = z^vc_ic                                ∀ i fused, c ≤ min(num_tc, num_vc)  (14)
    x_ij + x_ji ≥ z^tc_ic + z^tc_jc − 1              ∀ i ∥ j, c ≤ num_tc             (15)
    x_ij + x_ji ≥ z^vc_ic + z^vc_jc − 1              ∀ i ∥ j, c ≤ num_vc             (16)

H is the sum of all latencies (Appendix A). Network operators are not part of the paper's figure. They occupy
the link: y_i = 1. If they may overlap with computation, (9) exempts them, and two of them never run
concurrently.
"""

import pyomo.environ as pyo

from phaze.schedule.graphs import FUSED, NETWORK, TENSOR, VECTOR
from phaze.schedule.instance import ProgramData


def formulate_paper(data: ProgramData) -> pyo.ConcreteModel:
    """Build the integer program of Figure 3, with z variables for the assigned core types."""
    m = pyo.ConcreteModel()
    m.data = data
    m.operators = pyo.Set(initialize=data.positions)
    m.pairs = pyo.Set(initialize=[(i, j) for i in data.positions for j in data.positions if i != j])
    m.ordered = pyo.Set(initialize=[(i, j) for i, j in m.pairs if data.order[i, j]])
    m.rivals = pyo.Set(initialize=[(a, b) for i, j in data.rivals for a, b in ((i, j), (j, i))])
    m.start = pyo.Var(m.operators, domain=pyo.NonNegativeReals)
    m.latency = pyo.Var(m.operators, domain=pyo.NonNegativeReals)
    m.makespan = pyo.Var(domain=pyo.NonNegativeReals)
    m.wide = pyo.Var(m.operators, domain=pyo.Binary)
    m.before = pyo.Var(m.pairs, domain=pyo.Binary)
    m.shortest = pyo.Objective(expr=m.makespan)
    _order_operators(m)
    if "tensor" in data.assigned:
        _assign_tensor_cores(m)
    if "vector" in data.assigned:
        _assign_vector_cores(m)
    if set(data.assigned) == {"tensor", "vector"}:
        m.fused_pairs = pyo.Set(initialize=_places(data, FUSED, data.pairs))
        m.fused_operators_use_one_pair = pyo.Constraint(m.fused_pairs, rule=fused_operators_use_one_pair)
    return m


def _order_operators(m: pyo.ConcreteModel) -> None:
    data: ProgramData = m.data
    triples = [(i, j, k) for i, j in m.pairs for k in data.positions if k not in (i, j)]
    links = [(i, j) for i, j in data.rivals if data.kinds[i] == data.kinds[j] == NETWORK]
    m.makespan_covers_operator = pyo.Constraint(m.operators, rule=makespan_covers_operator)
    m.latency_follows_choice = pyo.Constraint(m.operators, rule=latency_follows_choice)
    m.order_is_antisymmetric = pyo.Constraint(m.pairs, rule=order_is_antisymmetric)
    m.order_is_transitive = pyo.Constraint(triples, rule=order_is_transitive)
    m.order_holds_precedence = pyo.Constraint(m.ordered, rule=order_holds_precedence)
    m.order_never_turns = pyo.Constraint(m.ordered, rule=order_never_turns)
    m.operator_waits_for_predecessor = pyo.Constraint(m.ordered, rule=operator_waits_for_predecessor)
    m.rivals_in_order_do_not_overlap = pyo.Constraint(m.rivals, rule=rivals_in_order_do_not_overlap)
    m.nothing_runs_beside_all_cores = pyo.Constraint(m.rivals, rule=nothing_runs_beside_all_cores)
    m.network_holds_accelerator = pyo.Constraint(m.operators, rule=network_holds_accelerator)
    m.link_carries_one_at_a_time = pyo.Constraint(links, rule=link_carries_one_at_a_time)


def _assign_tensor_cores(m: pyo.ConcreteModel) -> None:
    data: ProgramData = m.data
    places = [(i, c) for i in data.positions if data.kinds[i] != NETWORK for c in range(data.num_tc)]
    m.on_tensor_core = pyo.Var(places, domain=pyo.Binary)
    m.operator_has_tensor_core = pyo.Constraint(data.users("tensor"), rule=operator_has_tensor_core)
    m.vector_operator_has_no_tensor_core = pyo.Constraint(
        _places(data, VECTOR, data.num_tc), rule=vector_operator_has_no_tensor_core
    )
    m.fused_operator_stays_on_paired_tensor_cores = pyo.Constraint(
        [place for place in _places(data, FUSED, data.num_tc) if place[1] >= data.pairs],
        rule=vector_operator_has_no_tensor_core,
    )
    rivals = [(i, j, c) for i, j in _computing(data) for c in range(data.num_tc)]
    m.tensor_core_runs_one_at_a_time = pyo.Constraint(rivals, rule=tensor_core_runs_one_at_a_time)


def _assign_vector_cores(m: pyo.ConcreteModel) -> None:
    data: ProgramData = m.data
    places = [(i, c) for i in data.positions if data.kinds[i] != NETWORK for c in range(data.num_vc)]
    m.on_vector_core = pyo.Var(places, domain=pyo.Binary)
    m.operator_has_vector_core = pyo.Constraint(data.users("vector"), rule=operator_has_vector_core)
    m.tensor_operator_has_no_vector_core = pyo.Constraint(
        _places(data, TENSOR, data.num_vc), rule=tensor_operator_has_no_vector_core
    )
    m.fused_operator_stays_on_paired_vector_cores = pyo.Constraint(
        [place for place in _places(data, FUSED, data.num_vc) if place[1] >= data.pairs],
        rule=tensor_operator_has_no_vector_core,
    )
    rivals = [(i, j, c) for i, j in _computing(data) for c in range(data.num_vc)]
    m.vector_core_runs_one_at_a_time = pyo.Constraint(rivals, rule=vector_core_runs_one_at_a_time)


def _computing(data: ProgramData) -> list[tuple[int, int]]:
    """Incomparable pairs without a network operator, which occupies no core."""
    return [(i, j) for i, j in data.rivals if NETWORK not in (data.kinds[i], data.kinds[j])]


def _places(data: ProgramData, kind: int, cores: int) -> list[tuple[int, int]]:
    return [(i, c) for i in data.positions if data.kinds[i] == kind for c in range(cores)]


def makespan_covers_operator(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
    """(1) The makespan is no earlier than the end of any operator."""
    return m.makespan >= m.start[i] + m.latency[i]


def latency_follows_choice(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
    """(2) An operator takes ℓ̂ on all cores and ℓ on one."""
    return m.latency[i] == m.wide[i] * m.data.every[i] + (1 - m.wide[i]) * m.data.one[i]


def order_is_antisymmetric(m: pyo.ConcreteModel, i: int, j: int) -> pyo.Expression:
    """(3) At most one of two operators precedes the other."""
    return m.before[i, j] + m.before[j, i] <= 1


def order_is_transitive(m: pyo.ConcreteModel, i: int, j: int, k: int) -> pyo.Expression:
    """(4) If i precedes j and j precedes k, then i precedes k."""
    return m.before[i, k] >= m.before[i, j] + m.before[j, k] - 1


def order_holds_precedence(m: pyo.ConcreteModel, i: int, j: int) -> pyo.Expression:
    """(5) A predecessor in the graph precedes its successor."""
    return m.before[i, j] == 1


def order_never_turns(m: pyo.ConcreteModel, i: int, j: int) -> pyo.Expression:
    """(6) A successor in the graph never precedes its predecessor."""
    return m.before[j, i] == 0


def operator_waits_for_predecessor(m: pyo.ConcreteModel, i: int, j: int) -> pyo.Expression:
    """(7) An operator begins after its predecessors in the graph have ended."""
    return m.start[i] + m.latency[i] <= m.start[j]


def rivals_in_order_do_not_overlap(m: pyo.ConcreteModel, i: int, j: int) -> pyo.Expression:
    """(8) If i comes before an incomparable j, then j begins after i has ended."""
    big = sum(max(single, every) for single, every in zip(m.data.one, m.data.every, strict=True))
    return m.start[i] + m.latency[i] - big * (1 - m.before[i, j]) <= m.start[j]


def nothing_runs_beside_all_cores(m: pyo.ConcreteModel, i: int, j: int) -> pyo.Expression:
    """(9) An operator that uses all cores never overlaps with an incomparable operator."""
    if not m.data.excludes(i, j):
        return pyo.Constraint.Skip
    return m.before[i, j] + m.before[j, i] >= m.wide[i]


def network_holds_accelerator(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
    """(Section 7) A network operator never overlaps with others, like an operator on all cores."""
    return m.wide[i] == 1 if m.data.must[i] else pyo.Constraint.Skip


def link_carries_one_at_a_time(m: pyo.ConcreteModel, i: int, j: int) -> pyo.Expression:
    """Two network operators never overlap, even if they may overlap with computation."""
    return m.before[i, j] + m.before[j, i] >= 1


def operator_has_tensor_core(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
    """(10) A tensor or fused operator runs on all cores or on one tensor core."""
    return m.wide[i] + sum(m.on_tensor_core[i, c] for c in range(m.data.num_tc)) == 1


def operator_has_vector_core(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
    """(11) A vector or fused operator runs on all cores or on one vector core."""
    return m.wide[i] + sum(m.on_vector_core[i, c] for c in range(m.data.num_vc)) == 1


def tensor_operator_has_no_vector_core(m: pyo.ConcreteModel, i: int, c: int) -> pyo.Expression:
    """(12) A tensor operator occupies no vector core, and a fused one no unpaired vector core."""
    return m.on_vector_core[i, c] == 0


def vector_operator_has_no_tensor_core(m: pyo.ConcreteModel, i: int, c: int) -> pyo.Expression:
    """(13) A vector operator occupies no tensor core, and a fused one no unpaired tensor core."""
    return m.on_tensor_core[i, c] == 0


def fused_operators_use_one_pair(m: pyo.ConcreteModel, i: int, c: int) -> pyo.Expression:
    """(14) The tensor core and the vector core of a fused operator are a pair."""
    return m.on_tensor_core[i, c] == m.on_vector_core[i, c]


def tensor_core_runs_one_at_a_time(m: pyo.ConcreteModel, i: int, j: int, c: int) -> pyo.Expression:
    """(15) Two incomparable operators on one tensor core never overlap."""
    return m.before[i, j] + m.before[j, i] >= m.on_tensor_core[i, c] + m.on_tensor_core[j, c] - 1


def vector_core_runs_one_at_a_time(m: pyo.ConcreteModel, i: int, j: int, c: int) -> pyo.Expression:
    """(16) Two incomparable operators on one vector core never overlap."""
    return m.before[i, j] + m.before[j, i] >= m.on_vector_core[i, c] + m.on_vector_core[j, c] - 1
