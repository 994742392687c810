"""The search finds the least longest stage time: as trying everything, and as a constraint program, does."""

import numpy as np
import pytest
from ortools.sat.python import cp_model

from phaze.map.heuristics import random_map
from phaze.map.objective import INSTANTIATIONS, Instantiation, Problem, lower_bound_s
from phaze.map.search import Limits, search
from phaze.theory.device_networks import DeviceNetwork
from phaze.theory.operator_graphs import StageGraph
from tests.unit.map.cases import KINDS, drawn_network, drawn_stages, least_by_trying_all

SHAPES = ((2, 2), (3, 2), (2, 3), (4, 1), (1, 4), (6, 1), (1, 5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("instantiation", INSTANTIATIONS)
def test_it_finds_what_trying_every_mapping_finds(
    shape: tuple[int, int], kind: str, instantiation: Instantiation
) -> None:
    slots = shape[0] * shape[1]
    seed = slots + KINDS.index(kind)
    devices = slots + (1 if slots < 6 and kind != "nodes" else 0)
    network = drawn_network(seed, devices, kind, latency=kind == "directed")
    problem = Problem(drawn_stages(seed, *shape), network, instantiation)
    found = search(problem, Limits(), seed, (random_map(*shape, devices, seed),))
    least = least_by_trying_all(problem)
    assert found.value_s == pytest.approx(least, rel=1e-9)
    assert found.proven
    assert lower_bound_s(problem) <= least * (1 + 1e-12)
    assert problem.value_s(found.mapping) == found.value_s


def whole_case(seed: int, shape: tuple[int, int]) -> tuple[StageGraph, DeviceNetwork]:
    """Return a case whose times are whole numbers: for a solver that knows no others."""
    rng = np.random.default_rng(seed)
    stages, replicas = shape
    edges = np.array([(s, s + 1) for s in range(stages - 1)] + [(0, stages - 1)], np.int64)
    edges = np.unique(edges[edges[:, 0] < edges[:, 1]], axis=0)
    sizes = rng.integers(1, 9, len(edges)).astype(float)
    parameters = rng.integers(0, 9, stages) * replicas * 1.0
    times = rng.integers(1, 20, (2, stages)).astype(float)
    inverse = rng.integers(1, 9, (stages * replicas,) * 2)
    inverse = np.triu(inverse, 1) + np.triu(inverse, 1).T + np.eye(len(inverse))
    graph = StageGraph(times[0], times[1], parameters, edges, sizes, replicas, 4)
    return graph, DeviceNetwork(1.0 / inverse, np.zeros_like(inverse))


def least_by_constraint_program(problem: Problem) -> float:
    model, (stages, replicas) = cp_model.CpModel(), problem.shape
    devices = problem.network.devices
    at = {(s, r): model.new_int_var(0, devices - 1, "") for s in range(stages) for r in range(replicas)}
    model.add_all_different(at.values())
    longest = model.new_int_var(0, 10**6, "")
    both = np.rint(problem.both_ways[0]).astype(int)
    one = np.rint(problem.network.seconds_per_byte).astype(int)

    def cost(table: np.ndarray, a: tuple[int, int], b: tuple[int, int]) -> cp_model.IntVar:
        pair, value = model.new_int_var(0, devices**2 - 1, ""), model.new_int_var(0, 10**6, "")
        model.add(pair == devices * at[a] + at[b])
        model.add_element(pair, table.reshape(-1).tolist(), value)
        return value

    rings = [model.new_int_var(0, 10**6, "") for _ in range(stages)]
    for s, r in at if problem.counts_rings else ():
        table = np.rint(problem.ring_bytes[s] * one).astype(int)
        model.add(rings[s] >= cost(table, (s, r), (s, (r + 1) % replicas)))
    for r in range(replicas):
        sums = [int(problem.stages.compute_s[s]) + rings[s] for s in range(stages)]
        for (s, t), size in zip(problem.edges.tolist(), problem.edge_bytes, strict=True):
            value = cost(np.rint(size * both).astype(int), (s, r), (t, r))
            sums[s], sums[t] = sums[s] + value, sums[t] + value
        for total in sums:
            model.add(longest >= total)
    model.minimize(longest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value


@pytest.mark.solver
@pytest.mark.parametrize("shape", [(3, 3), (5, 2), (2, 5), (12, 1)])
@pytest.mark.parametrize("instantiation", INSTANTIATIONS)
def test_it_finds_what_a_constraint_program_proves(
    shape: tuple[int, int], instantiation: Instantiation
) -> None:
    problem = Problem(*whole_case(sum(shape), shape), instantiation)
    found = search(problem, Limits(), 1)
    assert found.proven
    assert found.value_s == pytest.approx(least_by_constraint_program(problem), rel=1e-9)


def hard_problem() -> Problem:
    return Problem(drawn_stages(3, 8, 4), drawn_network(3, 32, "directed"), "exact")


def test_what_is_given_up_is_told_and_the_bound_stays_below() -> None:
    found = search(hard_problem(), Limits(tries=2000), 1)
    assert found.stopped
    assert not found.proven
    assert not found.timed_out
    assert lower_bound_s(hard_problem()) <= found.bound_s < found.value_s


def test_an_end_by_time_is_told() -> None:
    found = search(hard_problem(), Limits(tries=10**9, time_s=0.0), 1)
    assert found.timed_out
    assert found.tries == 0


def test_the_same_seed_finds_the_same_mapping() -> None:
    twice = [search(hard_problem(), Limits(tries=5000), 7) for _ in range(2)]
    assert (twice[0].mapping == twice[1].mapping).all()
    assert twice[0].tries == twice[1].tries


def test_more_tries_find_nothing_worse() -> None:
    few, many = (search(hard_problem(), Limits(tries=tries), 1) for tries in (500, 50_000))
    assert many.value_s <= few.value_s
    assert many.bound_s >= few.bound_s - 1e-12


def test_equal_devices_and_nodes_are_tried_once() -> None:
    """Three nodes of four equal devices: far fewer tries than there are orders of twelve devices."""
    stages = drawn_stages(1, 4, 3)
    node = np.arange(12) // 4
    network = DeviceNetwork(np.where(node[:, None] == node, 9.0, 1.0), np.zeros((12, 12)))
    found = search(Problem(stages, network, "exact"), Limits(), 1)
    assert found.proven
    assert found.tries < 50_000
