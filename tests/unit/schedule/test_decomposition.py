"""Layers from their components: latencies add up, equal components are solved once, all schedules are
verified.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phaze.base.store import Store
from phaze.schedule import decomposition, program
from phaze.schedule.bounds import EQUAL, Bounded, ComponentTask, tasks_of
from phaze.schedule.decomposition import LayerSolution, solve_layer
from phaze.schedule.graphs import LayerSchedule, ScheduledLayer, Solution
from phaze.schedule.verify import find_faults
from phaze.spec.settings import ScheduleSettings
from tests.unit.schedule.comparing import known_schedule
from tests.unit.schedule.exhaustive import shortest_latency
from tests.unit.schedule.random_layers import brush_layer, random_layer, transformer_layer

PROOF = ScheduleSettings(solver=("highs",), node_limit=500)


@pytest.fixture
def solves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Withhold the bounds, so that programs are needed, and return the sizes of the solved ones."""
    sizes: list[int] = []
    solve = program.solve

    def count(model: object, *args: object, **options: object) -> object:
        sizes.append(len(model.operators))
        return solve(model, *args, **options)

    def withhold(task: ComponentTask) -> Bounded:
        return known_schedule(task)

    monkeypatch.setattr(program, "solve", count)
    monkeypatch.setattr(decomposition, "bound_task", withhold)
    return sizes


def two_diamonds(second: float) -> ScheduledLayer:
    """Return two pairs of parallel products in series, with a factor on the latencies of the second."""
    one = np.array([1.0, 2.0, 2.0, 1.0, 2.0 * second, 2.0 * second])
    edges = ((0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5))
    return ScheduledLayer(("vector", "tensor", "tensor") * 2, one, one * 0.9, edges, 2, 1)


def test_operators_without_latency_run_on_cores_that_exist() -> None:
    """Shortest schedules of the last three begin operators with and without latency together."""
    for seed in (*range(1, 40, 4), 109, 2417, 2525):
        rng = np.random.default_rng(seed)
        layer = random_layer(seed, int(rng.integers(2, 9)), network=seed % 3 == 0, overlap=True)
        some = np.where(rng.random(len(layer.core)) < 0.5, 0.0, 1.0)
        layer = replace(layer, latency_s=layer.latency_s * some, latency_all_s=layer.latency_all_s * some)
        solution = solve_layer(layer, PROOF, Store())
        assert not find_faults(layer, solution.schedule)
        if len(layer.core) < 6:
            assert solution.objective_s == pytest.approx(shortest_latency(layer), rel=1e-9)


def test_a_layer_takes_the_sum_of_its_components() -> None:
    """Single operators take the shorter of their latencies; pairs of products run concurrently."""
    solution = solve_layer(two_diamonds(3.0), PROOF, Store())
    assert solution.objective_s == pytest.approx(0.9 + 2.0 + 0.9 + 6.0)
    assert solution.status == "optimal"
    assert solution.gap == pytest.approx(0.0, abs=EQUAL)
    assert [len(part.schedule.core) for part in solution.parts] == [1, 2, 1, 2]


def test_layers_whose_bounds_meet_need_no_program() -> None:
    """The status says so."""
    solution = solve_layer(transformer_layer(0, 2, 4), PROOF, Store())
    assert solution.programs == []
    assert {part.method for part in solution.parts} == {"bounds"}
    assert {part.solver for part in solution.parts} == {"none"}


WITHOUT_PROGRAMS = """
import sys
from phaze.base.store import Store
from phaze.schedule.decomposition import solve_layer
from phaze.spec.settings import ScheduleSettings
from tests.unit.schedule.random_layers import transformer_layer
assert solve_layer(transformer_layer(0, 2, 4), ScheduleSettings(), Store()).status == "optimal"
print(*(name for name in ("pyomo", "highspy", "ortools", "scipy.stats") if name in sys.modules))
"""


def test_layers_whose_bounds_meet_load_no_solver(project_root: Path) -> None:
    """Importing Pyomo and the solvers takes longer than scheduling such a layer."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PROGRAMS], cwd=project_root, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@pytest.mark.solver
def test_equal_components_are_solved_once(solves: list[int]) -> None:
    """The second diamond costs no solve if it equals the first."""
    solve_layer(two_diamonds(1.0), PROOF, Store())
    assert solves == [2]
    solve_layer(two_diamonds(3.0), PROOF, Store())
    assert solves == [2, 2, 2]


@pytest.mark.solver
def test_solved_components_are_not_solved_again_in_another_run(solves: list[int], tmp_path: Path) -> None:
    """Solutions are cached in the folder, unchanged."""
    first = solve_layer(two_diamonds(3.0), PROOF, Store(tmp_path))
    assert len(solves) == 2
    again = solve_layer(two_diamonds(3.0), PROOF, Store(tmp_path))
    assert len(solves) == 2
    assert again.schedule.start_s.tolist() == first.schedule.start_s.tolist()
    assert again.schedule.core.tolist() == first.schedule.core.tolist()
    assert (again.objective_s, again.bound_s, again.gap) == (first.objective_s, first.bound_s, first.gap)
    assert [part.variables for part in again.parts] == [part.variables for part in first.parts]


@pytest.mark.solver
def test_the_paper_formulation_is_solved_for_the_layer_as_a_whole(solves: list[int]) -> None:
    """The printed formulation has no components; the optimum is the same."""
    layer = two_diamonds(3.0)
    sparse = solve_layer(layer, PROOF, Store())
    assert solves == [2, 2]
    paper = solve_layer(layer, PROOF.model_copy(update={"formulation": "paper"}), Store())
    assert solves == [2, 2, 6]
    assert len(paper.parts) == 1
    assert paper.objective_s == pytest.approx(sparse.objective_s, rel=EQUAL)
    assert paper.parts[0].variables > sum(part.variables for part in sparse.parts)


@pytest.mark.solver
@pytest.mark.parametrize("seed", range(6))
def test_both_formulations_solve_whole_layers_alike(seed: int, solves: list[int]) -> None:
    """With collectives, no-ops and operators whose choice does not matter."""
    layer = random_layer(seed, 6, network=True, overlap=seed % 3 == 2)
    same = np.where(np.arange(6) % 2 == 0, layer.latency_s, layer.latency_all_s)
    layer = replace(layer, latency_all_s=same)
    ways = (PROOF.model_copy(update={"formulation": way}) for way in ("sparse", "paper"))
    found = [solve_layer(layer, way, Store()) for way in ways]
    assert [solution.status for solution in found] == ["optimal", "optimal"]
    for solution in found:
        assert solution.objective_s == pytest.approx(shortest_latency(layer), rel=EQUAL)
    assert solves


@pytest.mark.parametrize("seed", range(15))
def test_solved_layers_match_exhaustive_search(seed: int) -> None:
    """Whole layers with no-ops and collectives, by bounds, and by programs if these leave a gap."""
    layer = random_layer(seed, 6, network=True, overlap=seed % 3 == 0)
    solution = solve_layer(layer, PROOF, Store())
    assert solution.status == "optimal"
    assert solution.objective_s == pytest.approx(shortest_latency(layer), rel=EQUAL)
    assert solution.bound_s == pytest.approx(solution.objective_s, rel=1e-8)
    assert find_faults(layer, solution.schedule) == ()


def test_z_is_needed_where_more_cores_would_help() -> None:
    """Three products of 3 s, 2.5 s on all cores: on two cores one has to wait, on three none."""
    for num_tc, z_needed in ((2, True), (3, False)):
        layer = ScheduledLayer(("tensor",) * 3, np.full(3, 3.0), np.full(3, 2.5), (), num_tc, 1)
        solution = solve_layer(layer, PROOF, Store())
        assert any(part.z_needed for part in solution.parts) is z_needed


@pytest.mark.solver
def test_a_component_that_bounds_leave_open_takes_a_program() -> None:
    """All operators are independent: too wide for the search over barriers."""
    solution = solve_layer(brush_layer(0), PROOF, Store())
    assert len(solution.programs) == 1
    assert solution.programs[0].solver == "highs"
    assert solution.bound_s <= solution.objective_s
    assert solution.gap < 0.1


@pytest.mark.solver
@pytest.mark.parametrize("seed", range(4))
def test_programs_check_what_bounds_prove(seed: int) -> None:
    """On request, every component of two operators or more is also solved by a program, with the same
    result.
    """
    layer = transformer_layer(seed, 2, 4)
    ways = (PROOF.model_copy(update={"programs": where, "node_limit": 5000}) for where in ("open", "all"))
    by_bounds, by_programs = (solve_layer(layer, way, Store()) for way in ways)
    assert by_bounds.programs == []
    assert len(by_programs.programs) == sum(len(task.component.operators) > 1 for task in tasks_of(layer))
    assert by_programs.status == "optimal"
    assert by_programs.objective_s == pytest.approx(by_bounds.objective_s, rel=EQUAL)


@pytest.mark.solver
def test_a_program_that_beats_a_bound_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """If two proofs contradict each other, neither is stored."""
    monkeypatch.setattr(decomposition, "bound_task", lambda task: replace(known_schedule(task), lower_s=9.0))
    with pytest.raises(RuntimeError, match=r"beats the bound 9\.0"):
        solve_layer(two_diamonds(1.0), PROOF.model_copy(update={"programs": "all"}), Store())


def corrupt(
    make: Callable[[LayerSchedule], LayerSchedule],
) -> Callable[[ComponentTask, Bounded, ScheduleSettings], Solution]:
    """Return a replacement of the solver that claims an optimum with a corrupted schedule."""

    def solve_program(_task: ComponentTask, bounded: Bounded, _settings: ScheduleSettings) -> Solution:
        return Solution(
            "highs", "1.0", 1, 1,
            status="optimal", schedule=make(bounded.schedule), bound_s=0.0, method="program",
        )  # fmt: skip

    return solve_program


@pytest.mark.parametrize(
    "make",
    [
        lambda schedule: replace(
            schedule, start_s=schedule.start_s * 0, end_s=schedule.end_s - schedule.start_s
        ),
        lambda schedule: replace(schedule, core=schedule.core + 7),
        lambda schedule: replace(schedule, end_s=schedule.end_s / 2),
    ],
    ids=["all at once", "cores that do not exist", "too fast"],
)
def test_an_unverified_schedule_is_rejected(
    make: Callable[[LayerSchedule], LayerSchedule],
    solves: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The known schedule replaces it, even if it claims to be optimal."""
    monkeypatch.setattr(program, "solve_program", corrupt(make))
    layer = two_diamonds(3.0)
    solution = solve_layer(layer, PROOF, Store(tmp_path))
    assert solution.status == "feasible"
    assert find_faults(layer, solution.schedule) == ()
    assert solution.objective_s == pytest.approx(np.minimum(layer.latency_s, layer.latency_all_s).sum())
    assert "rejected a schedule" in caplog.text
    assert solves == []


def test_the_worst_part_decides_the_status() -> None:
    """A layer is proven if all its components are."""
    schedule = LayerSchedule(np.zeros(1), np.ones(1), np.zeros(1, dtype=np.int64))

    def status(*parts: str) -> str:
        solutions = tuple(Solution(status=part, schedule=schedule, bound_s=1.0) for part in parts)
        return LayerSolution(schedule, solutions).status

    assert status("optimal", "optimal") == "optimal"
    assert status("optimal", "feasible") == "feasible"
    assert status("timed_out", "feasible", "optimal") == "timed_out"
