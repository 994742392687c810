"""The local search tracks the exact time of its mapping, and reaches optima of small cases."""

import numpy as np
import pytest

from phaze.map.annealing import Cooling, anneal, new_state, stage_task, step_task
from phaze.map.objective import INSTANTIATIONS, MappingProblem
from phaze.map.schemes import near_devices
from phaze.pipeline.gpipe import step_time_s
from phaze.spec.names import Instantiation
from tests.unit.map.cases import drawn_network, drawn_stages, least_by_trying_all


@pytest.mark.parametrize(("shape", "devices"), [((4, 5), 20), ((3, 2), 9), ((6, 1), 7), ((1, 6), 6)])
def test_steps_known_by_differences_are_those_simulated(shape: tuple[int, int], devices: int) -> None:
    stages, network = drawn_stages(2, *shape), drawn_network(2, devices, "directed", latency=True)
    task, near = step_task(stages, network, 50.0), near_devices(MappingProblem(stages, network, "exact"), 0)
    start = np.arange(devices)
    found, value = anneal(
        task, new_state(task, start), near, np.random.default_rng(1), Cooling(3000, 0.05, 1e-4)
    )
    mapping = found[: shape[0] * shape[1]].reshape(shape)
    assert sorted(found) == start.tolist()
    assert value == pytest.approx(step_time_s(stages, mapping, network, 50.0), rel=1e-12)
    assert value < step_time_s(stages, start[: mapping.size].reshape(shape), network, 50.0)


@pytest.mark.parametrize("instantiation", INSTANTIATIONS)
def test_small_cases_reach_the_least_stage_time(instantiation: Instantiation) -> None:
    for seed in range(3):
        problem = MappingProblem(drawn_stages(seed, 3, 2), drawn_network(seed, 6, "directed"), instantiation)
        task, rng = stage_task(problem), np.random.default_rng(seed)
        devices, value = anneal(
            task, new_state(task, np.arange(6)), near_devices(problem, 0), rng, Cooling(20_000, 1.0, 1e-2)
        )
        assert value == pytest.approx(problem.value_s(devices.reshape(3, 2)), rel=1e-12)
        assert value == pytest.approx(least_by_trying_all(problem), rel=1e-9)
