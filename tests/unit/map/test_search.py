"""The search finds the smallest longest stage time, as brute force and a constraint program do."""

import numpy as np
import pyomo.environ as pyo
import pytest

from phaze.cost.network.device_networks import DeviceNetwork
from phaze.map.heuristics import random_map
from phaze.map.objective import INSTANTIATIONS, MappingProblem, lower_bound_s
from phaze.map.search import SearchLimits, search
from phaze.solver import Limits as SolverLimits
from phaze.solver.programs import solve
from phaze.spec.names import Instantiation
from tests.unit.map.cases import KINDS, drawn_network, drawn_stages, least_by_trying_all

SHAPES = ((2, 2), (3, 2), (2, 3), (4, 1), (1, 5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instantiation", INSTANTIATIONS)
def test_it_finds_what_trying_every_mapping_finds(kind: str, instantiation: Instantiation) -> None:
    for shape in SHAPES:
        slots = shape[0] * shape[1]
        seed = slots + KINDS.index(kind)
        devices = slots + (1 if slots < 6 and kind != "nodes" else 0)
        network = drawn_network(seed, devices, kind, latency=kind == "directed")
        problem = MappingProblem(drawn_stages(seed, *shape), network, instantiation)
        found = search(problem, SearchLimits(), seed, (random_map(*shape, devices, seed),))
        least = least_by_trying_all(problem)
        assert found.value_s == pytest.approx(least, rel=1e-9)
        assert found.proven
        assert lower_bound_s(problem) <= least * (1 + 1e-12)
        assert problem.value_s(found.mapping) == found.value_s


class AssignmentProgram:
    """Mapping of as many stages and replicas as devices, as a mixed-integer program.

    The positions of two of them define a flow between their devices (Adams and Johnson's form of quadratic
    assignment), which shares no code with the search.
    """

    def __init__(self, problem: MappingProblem) -> None:
        """State the possible positions, and the time of every stage there."""
        (stages, replicas), self.problem = problem.shape, problem
        self.model = model = pyo.ConcreteModel()
        self.devices = range(problem.network.devices)
        slots = [(s, r) for s in range(stages) for r in range(replicas)]
        model.lies = pyo.Var(slots, self.devices, within=pyo.Binary)
        model.rows = pyo.ConstraintList()
        for slot in slots:
            model.rows.add(sum(model.lies[slot, d] for d in self.devices) == 1)
        for d in self.devices:
            model.rows.add(sum(model.lies[slot, d] for slot in slots) == 1)
        model.longest = pyo.Var(within=pyo.NonNegativeReals)
        model.least = pyo.Objective(expr=model.longest)
        rings = [self._ring(s) for s in range(stages)]
        for r in range(replicas):
            times = [problem.stages.compute_s[s] + rings[s] for s in range(stages)]
            for (s, t), size in zip(problem.edges.tolist(), problem.edge_bytes, strict=True):
                passed = self._cost(size * problem.network.both_ways[0], (s, r), (t, r))
                times[s], times[t] = times[s] + passed, times[t] + passed
            for time in times:
                model.rows.add(model.longest >= time)

    def _ring(self, s: int) -> pyo.Expression:
        replicas = self.problem.shape[1]
        if not self.problem.counts_rings or replicas == 1:
            return 0.0
        slowest = self._variable(())
        for r in range(replicas):
            table = self.problem.ring_bytes[s] * self.problem.network.seconds_per_byte
            self.model.rows.add(slowest >= self._cost(table, (s, r), (s, (r + 1) % replicas)))
        return slowest

    def _cost(self, table: np.ndarray, a: tuple[int, int], b: tuple[int, int]) -> pyo.Expression:
        both = self._variable((self.devices, self.devices))
        for d in self.devices:
            self.model.rows.add(sum(both[d, e] for e in self.devices) == self.model.lies[a, d])
            self.model.rows.add(sum(both[e, d] for e in self.devices) == self.model.lies[b, d])
            both[d, d].fix(0)
        return sum(table[d, e] * both[d, e] for d in self.devices for e in self.devices if d != e)

    def _variable(self, index: tuple[range, ...]) -> pyo.Var:
        name = f"variable_{len(list(self.model.component_objects(pyo.Var)))}"
        self.model.add_component(name, pyo.Var(*index, within=pyo.NonNegativeReals))
        return self.model.component(name)

    def solve(self) -> float:
        """Return the proven minimum time of the slowest stage."""
        found = solve(self.model, ("highs",), SolverLimits(nodes=10**6, wall_s=300))
        assert found.status == "optimal"
        return found.objective


@pytest.mark.slow
@pytest.mark.solver
@pytest.mark.parametrize("shape", [(4, 2), (2, 3)])
@pytest.mark.parametrize("instantiation", INSTANTIATIONS)
def test_it_finds_what_a_program_proves(shape: tuple[int, int], instantiation: Instantiation) -> None:
    seed, slots = sum(shape), shape[0] * shape[1]
    problem = MappingProblem(
        drawn_stages(seed, *shape), drawn_network(seed, slots, "directed"), instantiation
    )
    found = search(problem, SearchLimits(), 1)
    assert found.proven
    assert found.value_s == pytest.approx(AssignmentProgram(problem).solve(), rel=1e-6)


def hard_problem() -> MappingProblem:
    return MappingProblem(drawn_stages(3, 8, 4), drawn_network(3, 32, "directed"), "exact")


def test_what_is_given_up_is_told_and_the_bound_stays_below() -> None:
    found = search(hard_problem(), SearchLimits(tries=2000), 1)
    assert found.stopped
    assert not found.proven
    assert not found.timed_out
    assert lower_bound_s(hard_problem()) <= found.bound_s < found.value_s


def test_an_end_by_time_is_told() -> None:
    found = search(hard_problem(), SearchLimits(tries=10**9, time_s=0.0), 1)
    assert found.timed_out
    assert found.tries == 0


def test_the_same_seed_finds_the_same_mapping() -> None:
    twice = [search(hard_problem(), SearchLimits(tries=5000), 7) for _ in range(2)]
    assert (twice[0].mapping == twice[1].mapping).all()
    assert twice[0].tries == twice[1].tries


def test_more_tries_find_nothing_worse() -> None:
    few, many = (search(hard_problem(), SearchLimits(tries=tries), 1) for tries in (500, 50_000))
    assert many.value_s <= few.value_s
    assert many.bound_s >= few.bound_s - 1e-12


def test_equal_devices_and_nodes_are_tried_once() -> None:
    """Three nodes of four equal devices: far fewer tries than orders of twelve devices."""
    stages = drawn_stages(1, 4, 3)
    node = np.arange(12) // 4
    network = DeviceNetwork(np.where(node[:, None] == node, 9.0, 1.0), np.zeros((12, 12)))
    found = search(MappingProblem(stages, network, "exact"), SearchLimits(), 1)
    assert found.proven
    assert found.tries < 50_000
