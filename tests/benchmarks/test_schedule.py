"""Speed of bounds and programs; `pytest tests/benchmarks --benchmark-enable` measures it.

Without --benchmark-enable everything runs once and on fewer layers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from phaze.schedule.program import solve_program
from phaze.schedule.proof import Formulation, Proof
from phaze.solver import Limits
from phaze.theory.bounds import EQUAL, SCREENING, Task, bound_task, layer_bounds, tasks_of
from tests.unit.schedule.comparing import known_schedule, prove
from tests.unit.schedule.exhaustive import shortest_latency
from tests.unit.schedule.random_layers import random_layer, transformer_layer

Benchmark = Callable[..., object]
LIMITS = Limits(nodes=2000, wall_s=120.0)


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
    assert gap.mean() < (0.2 if kind == "split" else 1e-3)


@pytest.mark.solver
@pytest.mark.parametrize("solver", ["highs", "glpk"])
@pytest.mark.parametrize("kind", ["forward", "paired"])
@pytest.mark.parametrize("formulation", ["sparse", "paper"])
def test_a_component_of_a_transformer_layer(
    kind: str,
    solver: str,
    formulation: Formulation,
    benchmark: Benchmark,
    require_program: Callable[[str], str],
) -> None:
    """Prove its largest component (12 operators) on 2 tensor and 4 vector cores, without help from bounds."""
    if solver == "glpk":
        require_program("glpsol")
    task = largest(kind, 2, 4)
    solution = benchmark.pedantic(
        solve_program, (task, known_schedule(task), Proof((solver,), formulation, LIMITS)), rounds=1
    )
    benchmark.extra_info.update(variables=solution.variables, constraints=solution.constraints)
    assert solution.status == "optimal"
    assert solution.schedule.latency_s == pytest.approx(bound_task(task).schedule.latency_s, rel=1e-8)


@pytest.mark.solver
def test_weight_gradients_beside_everything(benchmark: Benchmark) -> None:
    """Bound a component of 38 operators after 2,000 nodes (50 without measuring), and tell the gap."""
    nodes = 2000 if benchmark.enabled else 50
    task = largest("split", 2, 4)
    proof = Proof(("highs",), "sparse", Limits(nodes=nodes, wall_s=300.0))
    bounded = bound_task(task)
    solution = benchmark.pedantic(solve_program, (task, bounded, proof), rounds=1)
    latency = solution.schedule.latency_s
    benchmark.extra_info.update(
        gap=1 - solution.bound_s / latency,
        gap_of_bounds=1 - bounded.lower_s / bounded.schedule.latency_s,
        gap_of_screen=1
        - bound_task(task, SCREENING).lower_s / bound_task(task, SCREENING).schedule.latency_s,
    )
    assert bounded.lower_s <= solution.bound_s <= latency <= bounded.schedule.latency_s


@pytest.mark.solver
def test_every_way_of_solving_on_many_random_layers(
    benchmark: Benchmark, require_program: Callable[[str], str]
) -> None:
    """Both formulations and both solvers against exhaustive search on 300 layers (12 without measuring)."""
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


def largest(kind: str, num_tc: int, num_vc: int) -> Task:
    """Return the largest component of a transformer layer."""
    return max(tasks_of(transformer_layer(0, num_tc, num_vc, kind)), key=lambda t: len(t.component.operators))
