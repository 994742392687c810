"""Speed of bounds and programs; measured with `pytest tests/benchmarks --benchmark-enable`.

Without --benchmark-enable everything runs once and on fewer layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

from phaze.base.store import Store
from phaze.schedule.bounds import EQUAL, ComponentTask, bound_task, layer_bounds, tasks_of
from phaze.schedule.decomposition import LayerSolution, solve_layer
from phaze.schedule.graphs import ScheduledLayer
from phaze.schedule.program import solve_program
from phaze.spec.settings import ScheduleSettings
from tests.benchmarks.study_layers import draw_layers
from tests.unit.schedule.comparing import known_schedule, prove
from tests.unit.schedule.exhaustive import shortest_latency
from tests.unit.schedule.random_layers import random_layer, transformer_layer

Benchmark = Callable[..., object]
SETTINGS = ScheduleSettings(node_limit=2000, wall_limit_s=120.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forward", "paired", "split"])
def test_bounds_of_many_architectures(kind: str, benchmark: Benchmark) -> None:
    """Bound a layer of about 35 operators on 1,000 architectures (100 without measuring)."""
    count = 1000 if benchmark.enabled else 100
    rng = np.random.default_rng(0)
    num_tc, num_vc = rng.choice([1, 2, 4, 8], count), rng.choice([1, 2, 4, 8, 64], count)
    layers = [transformer_layer(a, int(num_tc[a]), int(num_vc[a]), kind) for a in range(count)]
    one, every = (
        np.array([getattr(layer, name) for layer in layers]) for name in ("latency_s", "latency_all_s")
    )
    layer_bounds(layers[0].core, layers[0].edges, one[:1], every[:1], num_tc[:1], num_vc[:1])
    lower, feasible = benchmark(layer_bounds, layers[0].core, layers[0].edges, one, every, num_tc, num_vc)
    gap = (feasible - lower) / feasible
    serial = every.sum(axis=1)
    benchmark.extra_info.update(
        open=float((gap > EQUAL).mean()),
        gap=float(gap.mean()),
        branching=float((feasible < serial * (1 - EQUAL)).mean()),
    )
    assert (lower <= feasible).all()
    assert gap.mean() < (0.05 if kind == "split" else 1e-3)


@pytest.mark.slow
@pytest.mark.solver
@pytest.mark.parametrize("solver", ["highs", "glpk"])
@pytest.mark.parametrize("kind", ["forward", "paired"])
@pytest.mark.parametrize("formulation", ["sparse", "paper"])
def test_a_component_of_a_transformer_layer(
    kind: str, solver: str, formulation: str, benchmark: Benchmark, require_program: Callable[[str], str]
) -> None:
    """Prove the largest component (12 operators) on 2 tensor and 4 vector cores, without bounds."""
    if solver == "glpk":
        require_program("glpsol")
    task = largest(kind, 2, 4)
    settings = SETTINGS.model_copy(update={"solver": (solver,), "formulation": formulation})
    solution = benchmark.pedantic(solve_program, (task, known_schedule(task), settings), rounds=1)
    benchmark.extra_info.update(variables=solution.variables, constraints=solution.constraints)
    assert solution.status == "optimal"
    assert solution.schedule.latency_s == pytest.approx(bound_task(task).schedule.latency_s, rel=1e-8)


@pytest.mark.slow
@pytest.mark.solver
@pytest.mark.parametrize("programs", ["open", "all"])
@pytest.mark.parametrize("backward", ["paired", "split"])
def test_layers_of_the_default_study(
    backward: str, programs: Literal["open", "all"], benchmark: Benchmark
) -> None:
    """All passes of all models on randomly drawn architectures: by bounds, or by programs of up to 18
    operators without a lower bound. A few layers without measuring.
    """
    points, architectures = (68, 20 if programs == "open" else 1) if benchmark.enabled else (4, 1)
    layers = draw_layers(backward, points, architectures)
    if programs == "all":
        layers = [layer for layer in layers if 1 < largest_component(layer) <= 18]
    settings = ScheduleSettings(solver=("highs",), programs=programs)
    solved = benchmark.pedantic(lambda: [time_layer(layer, settings) for layer in layers], rounds=1)
    seconds, gaps = np.array([s for s, _ in solved]), np.array([solution.gap for _, solution in solved])
    benchmark.extra_info.update(
        layers=len(layers),
        proven=float((gaps <= EQUAL).mean()),
        within_2_percent=float((gaps <= 0.02).mean()),
        largest_gap=float(gaps.max()),
        without_a_program=float(np.mean([not solution.programs for _, solution in solved])),
        within_2_s=float((seconds <= 2).mean()),
        within_10_s=float((seconds <= 10).mean()),
        seconds={f"p{q}": float(np.percentile(seconds, q)) for q in (50, 90, 95, 99, 100)},
        seconds_by_operators=medians([largest_component(layer) for layer in layers], seconds),
    )
    assert all(solution.bound_s <= solution.objective_s for _, solution in solved)
    assert (gaps <= 0.02).mean() >= 0.8


def time_layer(layer: ScheduledLayer, settings: ScheduleSettings) -> tuple[float, LayerSolution]:
    """Return the time to solve a layer from scratch, and its solution."""
    begin = time.perf_counter()
    solution = solve_layer(layer, settings, Store())
    return time.perf_counter() - begin, solution


def largest_component(layer: ScheduledLayer) -> int:
    """Return the operators of the largest component of a layer."""
    return max((len(component.operators) for component in layer.graph.components), default=0)


def medians(sizes: list[int], seconds: np.ndarray) -> dict[int, float]:
    """Return the median of the seconds for every size."""
    return {size: float(np.median(seconds[np.array(sizes) == size])) for size in sorted(set(sizes))}


@pytest.mark.parametrize("layers", [1, 2, 4, 8])
def test_schedule_against_operators(layers: int, benchmark: Benchmark) -> None:
    """Transformer layers of 31 operators in series, with separate weight gradients."""
    chain = in_series(transformer_layer(0, 2, 4, "split"), layers)
    benchmark.extra_info.update(curve="schedule, operators", size=len(chain.core), bound=3)
    solution = benchmark(solve_layer, chain, ScheduleSettings(), Store())
    assert solution.status == "optimal"


def in_series(layer: ScheduledLayer, times: int) -> ScheduledLayer:
    """Return copies of a layer, everything of one before everything of the next."""
    n = len(layer.core)
    inside = [(k * n + i, k * n + j) for k in range(times) for i, j in layer.edges]
    between = [(k * n + i, (k + 1) * n + j) for k in range(times - 1) for i in range(n) for j in range(n)]
    one, every = np.tile(layer.latency_s, times), np.tile(layer.latency_all_s, times)
    return ScheduledLayer(
        layer.core * times, one, every, tuple(sorted(inside + between)), layer.num_tc, layer.num_vc
    )


@pytest.mark.slow
@pytest.mark.solver
def test_every_way_of_solving_on_many_random_layers(
    benchmark: Benchmark, require_program: Callable[[str], str]
) -> None:
    """Both formulations and both solvers, compared with exhaustive search on 300 layers (12 without
    measuring).
    """
    require_program("glpsol")
    layers = [
        random_layer(1000 + seed, 4 + seed % 3, network=seed % 4 == 0, overlap=seed % 8 == 0)
        for seed in range(300 if benchmark.enabled else 12)
    ]
    needed, branching = benchmark.pedantic(lambda: compare_all(layers), rounds=1)
    benchmark.extra_info.update(layers=len(layers), z_needed=needed, branching=branching)
    assert needed > 0
    assert branching > 0


def compare_all(layers: list) -> tuple[int, int]:
    """Return in how many layers z was needed, and in how many branching beats running all on all cores."""
    needed = branching = 0
    for layer in layers:
        optimum = shortest_latency(layer)
        found = [prove(layer, way, solver) for way in ("sparse", "paper") for solver in ("highs", "glpk")]
        for proven in found:
            assert proven.schedule.latency_s == pytest.approx(optimum, rel=1e-9)
        needed += found[0].z_needed
        branching += optimum < layer.latency_all_s[layer.kinds != 4].sum() * (1 - EQUAL)
    return needed, int(branching)


def largest(kind: str, num_tc: int, num_vc: int) -> ComponentTask:
    """Return the largest component of a transformer layer."""
    return max(tasks_of(transformer_layer(0, num_tc, num_vc, kind)), key=lambda t: len(t.component.operators))
