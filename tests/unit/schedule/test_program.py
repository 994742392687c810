"""Integer programs compared with each other, between both solvers, and with exhaustive search."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pyomo.environ as pyo
import pytest

from phaze.schedule.bounds import Bounded, ComponentTask, bound_task, tasks_of
from phaze.schedule.graphs import ALL_CORES, LayerSchedule, ScheduledLayer
from phaze.schedule.instance import ProgramData, make_instance
from phaze.schedule.paper import formulate_paper
from phaze.schedule.program import (
    FORMULATIONS,
    allowed_places,
    formulate_sparse,
    overloaded_types,
    schedule_point,
    solve_program,
)
from phaze.schedule.verify import find_faults
from phaze.solver import Limits
from phaze.solver.programs import BACKENDS, SolverAnswer
from tests.unit.schedule.comparing import PATIENT, Proven, known_schedule, patient, prove
from tests.unit.schedule.exhaustive import shortest_latency
from tests.unit.schedule.random_layers import brush_layer, random_layer, transformer_layer

pytestmark = pytest.mark.solver

EXACT = 1e-9
SMALL = range(24)
"""Layers of four or five operators, for all comparisons."""
LARGER = range(50, 74)
"""Layers of five to seven operators, for the sparse formulation with both solvers."""


@dataclass(frozen=True)
class Comparison:
    """Random layer with its shortest latency and the proof of each method."""

    layer: ScheduledLayer
    optimum_s: float
    found: dict[str, Proven]


@cache
def compare(solver: str) -> tuple[Comparison, ...]:
    """Solve all random layers with one solver."""
    found = []
    for seed in (*SMALL, *LARGER):
        layer = make_layer(seed)
        ways: tuple[str, ...] = ("sparse", "paper") if seed in SMALL else ("sparse",)
        proven = {way: prove(layer, way, solver) for way in ways}
        found.append(Comparison(layer, optimum(seed), proven))
    return tuple(found)


def make_layer(seed: int) -> ScheduledLayer:
    """Return a random layer; a quarter has network operators, an eighth lets communication overlap."""
    operators = 4 + (seed % 4 == 3) if seed in SMALL else 5 + seed % 3
    return random_layer(seed, operators, network=seed % 4 == 0, overlap=seed % 8 == 0)


@cache
def optimum(seed: int) -> float:
    """Return the latency that exhaustive search finds."""
    return shortest_latency(make_layer(seed))


@pytest.fixture(params=["highs", "glpk"])
def comparisons(
    request: pytest.FixtureRequest, require_program: Callable[[str], str]
) -> tuple[Comparison, ...]:
    """Return the random layers as solved by one solver."""
    if request.param == "glpk":
        require_program("glpsol")
    return compare(request.param)


@pytest.mark.slow
def test_programs_find_what_exhaustive_search_finds(comparisons: tuple[Comparison, ...]) -> None:
    """Both formulations prove the same optimum, with either solver."""
    for comparison in comparisons:
        for way, proven in comparison.found.items():
            assert {part.status for part in proven.parts} == {"optimal"}, way
            assert proven.schedule.latency_s == pytest.approx(comparison.optimum_s, rel=EXACT), way
            assert sum(part.bound_s for part in proven.parts) == pytest.approx(comparison.optimum_s, rel=1e-8)


def test_schedules_of_programs_can_be_executed(comparisons: tuple[Comparison, ...]) -> None:
    """The verifier accepts every one of them."""
    for comparison in comparisons:
        for proven in comparison.found.values():
            assert find_faults(comparison.layer, proven.schedule) == ()


def test_the_random_layers_are_hard_enough(
    comparisons: tuple[Comparison, ...], record_property: Callable[[str, object], None]
) -> None:
    """Many of them need core assignment, and in most running everything on all cores is not optimal."""
    sparse = [comparison.found["sparse"] for comparison in comparisons]
    z_needed = sum(proven.z_needed for proven in sparse)
    alone = [each.layer.latency_all_s[each.layer.kinds != 4].sum() * (1 - EXACT) for each in comparisons]
    branching = sum(proven.schedule.latency_s < s for proven, s in zip(sparse, alone, strict=True))
    record_property("layers", len(sparse))
    record_property("z needed", z_needed)
    record_property("branching beats all cores", int(branching))
    assert z_needed >= len(sparse) // 5
    assert branching >= len(sparse) // 2


def task_of(layer: ScheduledLayer) -> ComponentTask:
    """Return the largest component of a layer."""
    return max(tasks_of(layer), key=lambda task: len(task.component.operators))


def three_products(num_tc: int, kind: str = "tensor") -> ComponentTask:
    """Return three equal independent operators, 3 s on one core and 2.5 s on all."""
    return task_of(ScheduledLayer((kind,) * 3, np.full(3, 3.0), np.full(3, 2.5), (), num_tc, 2))


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_cores_are_assigned_only_where_they_are_lacking(formulation: str) -> None:
    """Three independent products need no assignment on three cores; on two cores one has to wait."""
    for num_tc, latency, z_needed in ((3, 3.0, False), (2, 5.5, True)):
        task = three_products(num_tc)
        solution = solve_program(task, known_schedule(task), patient(formulation))
        assert solution.schedule.latency_s == pytest.approx(latency, rel=EXACT)
        assert solution.z_needed is z_needed


def pairing_layer() -> ScheduledLayer:
    """Return a layer whose shortest schedule by counts leaves a fused operator without a pair.

    On two pairs, tensor operator 2 inherits the core of one fused operator and vector operator 4 that of the
    other; when operator 5 is ready, a tensor core and a vector core are free, but of different pairs.
    """
    core = ("fused", "fused", "tensor", "vector", "vector", "fused")
    one = np.array([2.0, 3.0, 4.0, 2.0, 3.0, 1.0])
    edges = ((0, 2), (0, 3), (1, 4), (3, 5))
    return ScheduledLayer(core, one, one * 1.0, edges, 2, 2)


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_counts_of_cores_are_not_enough_for_fused_operators(formulation: str) -> None:
    """If the counts suffice but no pair is free, both core types are assigned."""
    layer = pairing_layer()
    task = task_of(layer)
    data = make_instance(task, known_schedule(task))
    latency = layer.latency_s
    start = np.array([0.0, 0.0, 2.0, 2.0, 3.0, 4.0])
    unpaired = LayerSchedule(start, start + latency, np.array([0, 1, 0, 0, 1, -2]))
    assert overloaded_types(data, unpaired) == {"tensor", "vector"}
    solution = solve_program(task, known_schedule(task), patient(formulation))
    assert solution.schedule.latency_s == pytest.approx(shortest_latency(layer), rel=EXACT)
    assert find_faults(layer, solution.schedule) == ()


def test_the_type_of_core_that_is_overloaded_is_named() -> None:
    """Two concurrent tensor operators on one tensor core; the vector cores suffice."""
    task = task_of(ScheduledLayer(("tensor", "tensor", "vector"), np.ones(3), np.ones(3), (), 1, 1))
    data = make_instance(task, known_schedule(task))
    both = LayerSchedule(np.zeros(3), np.ones(3), np.array([0, -2, 0]))
    assert overloaded_types(data, both) == {"tensor"}


def test_the_paper_program_has_every_printed_constraint() -> None:
    """Four operators, two of them comparable: as many constraints as in Figure 3."""
    kinds = ("tensor", "vector", "fused", "tensor")
    layer = ScheduledLayer(kinds, np.full(4, 2.0), np.full(4, 1.0), ((0, 1),), 2, 3)
    task = replace(task_of(layer), num_tc=2, num_vc=3)
    data = replace(make_instance(task, known_schedule(task)), assigned=frozenset({"tensor", "vector"}))
    model = formulate_paper(data)
    sizes = {c.local_name: len(c) for c in model.component_objects(pyo.Constraint)}
    assert sizes == {
        "makespan_covers_operator": 4,
        "latency_follows_choice": 4,
        "order_is_antisymmetric": 12,
        "order_is_transitive": 24,
        "order_holds_precedence": 1,
        "order_never_turns": 1,
        "operator_waits_for_predecessor": 1,
        "rivals_in_order_do_not_overlap": 10,
        "nothing_runs_beside_all_cores": 10,
        "network_holds_accelerator": 0,
        "link_carries_one_at_a_time": 0,
        "operator_has_tensor_core": 3,
        "vector_operator_has_no_tensor_core": 2,
        "fused_operator_stays_on_paired_tensor_cores": 0,
        "tensor_core_runs_one_at_a_time": 10,
        "operator_has_vector_core": 2,
        "tensor_operator_has_no_vector_core": 6,
        "fused_operator_stays_on_paired_vector_cores": 1,
        "vector_core_runs_one_at_a_time": 15,
        "fused_operators_use_one_pair": 2,
    }


def test_the_sparse_program_states_less() -> None:
    """Half the variables and a tenth of the constraints for a component of a transformer layer."""
    task = task_of(transformer_layer(0, 4, 8))
    data = make_instance(task, known_schedule(task))
    paper, sparse = formulate_paper(data), formulate_sparse(data)
    for kind, factor in ((pyo.Var, 2), (pyo.Constraint, 10)):
        parts = (list(m.component_data_objects(kind)) for m in (paper, sparse))
        many, few = (sum(not getattr(part, "fixed", False) for part in every) for every in parts)
        assert few < many / factor


def test_every_constraint_says_in_a_sentence_what_it_states() -> None:
    """Names of constraints read as sentences, and each rule has one as its docstring."""
    for module in (formulate_paper, formulate_sparse):
        every = (f for f in module.__globals__.values() if callable(f))
        own = (f for f in every if getattr(f, "__module__", "") == module.__module__)
        rules = [f for f in own if not f.__name__.startswith("_")]
        assert all(f.__doc__ and f.__doc__.strip().endswith(".") for f in rules)


def test_mirror_images_are_left_out() -> None:
    """Pairs and other cores are counted separately, and a fused operator has no core without a partner."""
    task = task_of(ScheduledLayer(("tensor", "fused", "tensor"), np.full(3, 2.0), np.full(3, 1.0), (), 3, 1))
    data = replace(make_instance(task, known_schedule(task)), assigned=frozenset({"tensor"}))
    assert allowed_places(data) == {
        *(("tensor", 0, c) for c in (0, 1)),
        ("tensor", 1, 0),
        *(("tensor", 2, c) for c in (0, 1, 2)),
    }


def test_choices_that_bounds_decide_are_fixed() -> None:
    """All cores if one core is too slow for the known schedule, one core if all are no faster."""
    latencies = np.array([9.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0])
    task = task_of(ScheduledLayer(("tensor",) * 3, *latencies, (), 2, 1))
    model = formulate_sparse(make_instance(task, known_schedule(task)))
    assert [model.wide[i].value if model.wide[i].fixed else None for i in range(3)] == [1, 0, None]


def instance_and_point(
    layer: ScheduledLayer, before: list[tuple[int, int]]
) -> tuple[ProgramData, ComponentTask, pyo.ConcreteModel]:
    """Return the sparse program of a layer with a point in it: all on one core, ordered as said."""
    task = task_of(layer)
    data = make_instance(task, known_schedule(task))
    model = formulate_sparse(data)
    for i in data.positions:
        model.wide[i].value, model.start[i].value = 0.0, 0.0
    for pair in model.before:
        model.before[pair].value = float(pair in before)
    return data, task, model


def test_times_follow_from_choices_not_from_the_values_of_a_solver() -> None:
    """Start times of the solver's point, all zero here, are only hints."""
    layer = ScheduledLayer(("tensor",) * 3, np.array([1.0, 2.0, 3.0]), np.array([0.9, 1.9, 2.9]), (), 3, 1)
    data, task, model = instance_and_point(layer, [(0, 1), (1, 2)])
    schedule = schedule_point(data, model, task)
    assert schedule is not None
    assert schedule.start_s.tolist() == [0.0, 1.0, 3.0]


def test_a_cycle_of_choices_makes_no_schedule() -> None:
    """Such a point is refused, and the next solver is used."""
    layer = ScheduledLayer(("tensor",) * 3, np.full(3, 2.0), np.full(3, 1.9), (), 3, 1)
    data, task, model = instance_and_point(layer, [(0, 1), (1, 2), (2, 0)])
    assert schedule_point(data, model, task) is None


class Script:
    """Solver with a scripted result."""

    capacity = np.inf

    def __init__(self, run: Callable[[pyo.ConcreteModel], SolverAnswer]) -> None:
        self._run = run

    def version(self) -> str:
        """Return some version."""
        return "0.0"

    def run(self, model: pyo.ConcreteModel, limits: Limits) -> SolverAnswer:  # noqa: ARG002 - the interface
        """Return the scripted result."""
        return self._run(model)


def crash(_: pyo.ConcreteModel) -> SolverAnswer:
    """Fail like a solver."""
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("run", "status"),
    [
        (crash, "feasible"),
        (lambda _: SolverAnswer("timed_out"), "timed_out"),
        (lambda _: SolverAnswer("infeasible"), "feasible"),
        (lambda _: SolverAnswer("optimal", 1.0), "feasible"),
        (lambda _: SolverAnswer("bounded", 55.0), "feasible"),
    ],
    ids=["crash", "timeout", "infeasible", "no point", "bound only"],
)
def test_a_failing_solver_leaves_the_known_schedule_with_its_bound(
    run: Callable[[pyo.ConcreteModel], SolverAnswer], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No exception, no worse schedule, and an unchanged or better bound."""
    monkeypatch.setitem(BACKENDS, "highs", Script(run))
    task = task_of(brush_layer(3))
    bounded = bound_task(task)
    solution = solve_program(task, bounded, PATIENT)
    assert solution.status == status
    assert solution.schedule is bounded.schedule
    assert bounded.lower_s <= solution.bound_s <= solution.schedule.latency_s
    assert solution.method == "program"


def test_a_point_that_cheats_within_tolerances_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order variable of almost one shortens the claimed latency, not the schedule derived from it."""

    def cheat(model: pyo.ConcreteModel) -> SolverAnswer:
        for variable in model.component_data_objects(pyo.Var):
            variable.set_value(0.0)
        second = 0.0
        if hasattr(model, "on_core"):
            model.before[0, 1].value, model.before[1, 0].value = 1 - 5e-6, 5e-6
            second = model.data.one[0] - 100 * 5e-6
            for place in model.on_core:
                model.on_core[place].value = 1.0
        model.start[1].value = second
        model.clock.value = second + model.data.one[1]
        return SolverAnswer("optimal", model.clock.value)

    monkeypatch.setitem(BACKENDS, "highs", Script(cheat))
    latency = np.array([3.0, 3.0, 1.0])
    task = task_of(ScheduledLayer(("tensor", "tensor", "network"), latency, latency, (), 1, 1, True))
    known = known_schedule(task)
    solution = solve_program(task, known, PATIENT)
    assert (solution.status, solution.z_needed) == ("feasible", True)
    assert solution.schedule is known.schedule


def test_a_node_limit_leaves_a_gap_that_is_told() -> None:
    """One node is not enough for the weight gradients of a transformer layer on few cores."""
    task = task_of(transformer_layer(1, 2, 2, "split"))
    latency = np.minimum(task.one_s, task.every_s)
    known = known_schedule(task)
    solution = solve_program(task, known, PATIENT.model_copy(update={"node_limit": 1}))
    assert solution.status == "feasible"
    assert 0 < solution.bound_s < solution.schedule.latency_s <= latency.sum()


def test_a_known_schedule_that_is_optimal_is_kept() -> None:
    """The schedule from bounds is not replaced by an equal one of the solver."""
    task = task_of(transformer_layer(2, 2, 4))
    bounded = bound_task(task)
    solution = solve_program(task, Bounded(0.0, bounded.schedule), PATIENT)
    assert solution.status == "optimal"
    assert solution.schedule is bounded.schedule
    assert ALL_CORES in solution.schedule.core
