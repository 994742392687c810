"""Devices of several speeds: the search against all mappings, the simulators, and topologies."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from phaze.base.deadline import Deadline
from phaze.base.errors import PhazeError
from phaze.map.annealing import new_state, replica_times, stage_task, step_task
from phaze.map.networks import read_topology, units_of
from phaze.map.objective import MappingProblem, lower_bound_s
from phaze.map.search import SearchLimits, search
from phaze.map.symmetry import device_symmetry
from phaze.pipeline.gpipe import held_step_s, shared_step_s, simulate_step, step_time_s
from phaze.spec.names import Instantiation
from tests.unit.map.cases import KINDS, drawn_network, drawn_stages, least_by_trying_all


@pytest.mark.parametrize("instantiation", get_args(Instantiation))
def test_the_search_finds_what_trying_every_mapping_finds(instantiation: Instantiation) -> None:
    for seed in range(20):
        stages, replicas = ((2, 2), (3, 1), (2, 3), (4, 1))[seed % 4]
        network = drawn_network(seed, min(6, stages * replicas + 1), KINDS[seed % 5], latency=seed % 2 == 0)
        speeds = np.random.default_rng(seed).choice([0.5, 1.0, 3.0], network.devices)
        problem = MappingProblem(
            drawn_stages(seed, stages, replicas), replace(network, speeds=speeds), instantiation
        )
        least = least_by_trying_all(problem)
        assert lower_bound_s(problem) <= least * (1 + 1e-12)
        outcome = search(problem, SearchLimits(), seed)
        assert outcome.value_s == pytest.approx(least, rel=1e-8), seed
        assert outcome.bound_s <= least * (1 + 1e-8)


def test_all_devices_at_one_speed_divide_the_time_of_compute() -> None:
    stages, network = drawn_stages(1, 3, 2), drawn_network(1, 6, "directed", latency=True)
    mapping = np.random.default_rng(0).permutation(6).reshape(3, 2)
    halves = replace(stages, forward_s=stages.forward_s / 2, backward_s=stages.backward_s / 2)
    twice = replace(network, speeds=np.full(6, 2.0))
    assert step_time_s(stages, mapping, twice) == step_time_s(halves, mapping, network)
    assert held_step_s(stages, mapping, twice) == held_step_s(halves, mapping, network)
    assert shared_step_s(stages, mapping, twice, 2) == shared_step_s(halves, mapping, network, 2)
    assert (
        simulate_step(stages, mapping, twice).compute_s == simulate_step(halves, mapping, network).compute_s
    )


def test_the_local_search_times_passes_by_the_speed_of_their_device() -> None:
    stages = drawn_stages(3, 3, 1)
    network = replace(drawn_network(3, 3, "directed"), speeds=np.array([1.0, 2.0, 4.0]))
    devices, times, problem = np.array([2, 0, 1]), np.empty(3), MappingProblem(stages, network, "exact")
    for task, expected in (
        (step_task(stages, network, np.inf), simulate_step(stages, devices[:, None], network).ended_s[:, 0]),
        (stage_task(problem), problem.stage_times_s(devices[:, None])),
    ):
        replica_times(task, devices, times, new_state(task, devices).scratch)
        assert times == pytest.approx(expected)


def test_devices_of_different_speeds_are_not_interchangeable() -> None:
    network = drawn_network(0, 4, "nodes")
    problem = MappingProblem(drawn_stages(0, 2, 1), network, "exact")
    mixed = replace(problem, network=replace(network, speeds=np.array([1.0, 2.0, 1.0, 1.0])))
    assert device_symmetry(problem, Deadline()).before.tolist() == [-1, 0, -1, 2]
    assert device_symmetry(mixed, Deadline()).before.tolist() == [-1, -1, -1, 2]


def test_a_unit_is_as_fast_as_its_slowest_device() -> None:
    network = replace(drawn_network(0, 5, "directed"), speeds=np.array([1.0, 0.5, 2.0, 3.0, 9.0]))
    assert units_of(network, 2).slowness.tolist() == [2.0, 0.5]


def topology(folder: Path, speeds: str) -> Path:
    path = folder / "fast.yaml"
    levels = "levels:\n- {devices: 2, bandwidth_gib_per_s: 1}\n"
    path.write_text(f"kind: levels\n{levels}speeds: {speeds}\n")
    return path


def test_a_topology_has_the_speed_of_every_device(tmp_path: Path) -> None:
    assert read_topology(topology(tmp_path, "[1, 2.5]")).slowness.tolist() == [1.0, 0.4]
    with pytest.raises(PhazeError, match=r"fast\.yaml: speeds: must have 2 numbers, one per device, got 3"):
        read_topology(topology(tmp_path, "[1, 2, 3]"))
    with pytest.raises(PhazeError, match=r"fast\.yaml: .*speeds\.1: should be greater than 0, got -1"):
        read_topology(topology(tmp_path, "[1, -1]"))
