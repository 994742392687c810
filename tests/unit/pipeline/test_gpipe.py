"""Step times equal closed forms, discrete events and the pipeline simulation."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork, flat_network
from phaze.map.heuristics import consecutive_map, p2p_map
from phaze.pipeline.gpipe import flat_step_time_s, shared_step_s, simulate_step, step_time_s, step_times_s
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.workload.graphs import edge_arrays
from phaze.workload.operator_graphs import StageGraph
from tests.unit.map.cases import drawn_network as drawn_nodes
from tests.unit.map.cases import drawn_stages


def graph(
    forward: Sequence[float],
    backward: Sequence[float],
    parameters: Sequence[float],
    edges: Sequence[tuple[int, int]],
    sizes: Sequence[float],
    replicas: int = 1,
    microbatches: int = 4,
) -> StageGraph:
    return StageGraph(
        np.array(forward, float),
        np.array(backward, float),
        np.array(parameters, float),
        replicas,
        microbatches,
        edges=np.array(edges, np.int64).reshape(-1, 2),
        edge_bytes=np.array(sizes, float),
    )


def drawn_graph(
    seed: int, stages: int, replicas: int, microbatches: int, *, chain: bool = False
) -> StageGraph:
    rng = np.random.default_rng(seed)
    pairs = [(s, t) for s in range(stages) for t in range(s + 1, stages) if t == s + 1 or rng.random() < 0.3]
    pairs = [(s, s + 1) for s in range(stages - 1)] if chain else pairs
    draw = rng.uniform
    return graph(
        draw(1, 5, stages), draw(1, 9, stages), draw(0, 9, stages), pairs, draw(0, 4, len(pairs)), replicas,
        microbatches,
    )  # fmt: skip


def drawn_network(seed: int, devices: int) -> DeviceNetwork:
    rng = np.random.default_rng(seed)
    return DeviceNetwork(rng.uniform(0.2, 5, (devices, devices)), rng.uniform(0, 2, (devices, devices)))


def drawn_mapping(seed: int, stages: int, replicas: int, devices: int) -> Ints:
    return np.random.default_rng(seed).permutation(devices)[: stages * replicas].reshape(stages, replicas)


def test_two_equal_stages_without_messages_take_the_bubble_and_the_work() -> None:
    stages = graph([1, 1], [2, 2], [0, 0], [(0, 1)], [0])
    assert step_time_s(stages, np.array([[0], [1]]), flat_network(2, 1.0)) == 4 * 3 + 3


def test_a_ring_takes_as_long_as_its_slowest_link() -> None:
    stages = graph([1], [2], [12.0], [], [], replicas=3, microbatches=1)
    bandwidth = np.full((3, 3), 4.0)
    bandwidth[2, 0] = 2.0
    network = DeviceNetwork(bandwidth, np.zeros((3, 3)))
    step = simulate_step(stages, np.array([[0, 1, 2]]), network, memory_bytes_per_s=36.0)
    assert step.all_reduce_s[0] == 2 * 2 / 3 * 12.0 / 2.0
    assert step.step_s == 3 + 8 + 1
    assert step.step_s - step.compute_s == 8
    assert (step.pipeline_s, step.critical_stage) == (3, 0)
    turned = step_time_s(stages, np.array([[2, 1, 0]]), network)
    assert turned == 3 + 4


class Events:
    """One replica as events: tasks start when their resource is free and their inputs have arrived."""

    def __init__(self, stages: StageGraph, devices: Ints, network: DeviceNetwork) -> None:
        self.stages, self.devices, self.network = stages, devices, network
        self.pairs = list(zip(stages.edges.tolist(), stages.edge_bytes.tolist(), strict=True))
        count, batch = len(devices), range(stages.microbatches)
        self.order = [[(kind, m) for kind in "fb" for m in batch] for _ in range(count)]
        needs = {"f": stages.edges[:, 1].tolist().count, "b": stages.edges[:, 0].tolist().count}
        self.missing = {(k, m, s): needs[k](s) for k in "fb" for m in batch for s in range(count)}
        self.busy, self.ended = [False] * count, np.zeros(count)
        self.lines: dict[tuple[int, int], list[tuple[str, int, int, float]]] = {}
        self.held: set[tuple[int, int]] = set()
        self.queue: list[tuple[float, int, tuple[str, tuple[object, ...]]]] = []
        self.clock, self.number = 0.0, 0

    def run(self) -> Floats:
        for s in range(len(self.busy)):
            self.try_device(s)
        while self.queue:
            self.clock, _, (what, about) = heapq.heappop(self.queue)
            getattr(self, what)(*about)
        return self.ended

    def push(self, seconds: float, what: str, *about: object) -> None:
        self.number += 1
        heapq.heappush(self.queue, (self.clock + seconds, self.number, (what, about)))

    def try_device(self, s: int) -> None:
        if not self.busy[s] and self.order[s] and self.missing[*self.order[s][0], s] == 0:
            kind, m = self.order[s].pop(0)
            self.busy[s] = True
            seconds = self.stages.forward_s if kind == "f" else self.stages.backward_s
            self.push(seconds[s], "done", kind, m, s)

    def done(self, kind: str, m: int, s: int) -> None:
        self.busy[s], self.ended[s] = False, self.clock
        for (source, target), size in self.pairs:
            sender, receiver = (source, target) if kind == "f" else (target, source)
            if sender == s:
                line = self.devices[sender], self.devices[receiver]
                self.lines.setdefault(line, []).append((kind, m, receiver, size))
                self.try_line(line)
        self.try_device(s)

    def try_line(self, line: tuple[int, int]) -> None:
        if line not in self.held and self.lines[line]:
            kind, m, target, size = self.lines[line].pop(0)
            self.held.add(line)
            seconds = size / self.network.bandwidth_bytes_per_s[line]
            self.push(seconds, "free", line)
            self.push(seconds + self.network.latency_s[line], "arrive", kind, m, target)

    def free(self, line: tuple[int, int]) -> None:
        self.held.discard(line)
        self.try_line(line)

    def arrive(self, kind: str, m: int, s: int) -> None:
        self.missing[kind, m, s] -= 1
        self.try_device(s)


def events_step(stages: StageGraph, mapping: Ints, network: DeviceNetwork) -> float:
    count, replicas = mapping.shape
    ended = np.array([Events(stages, mapping[:, r], network).run() for r in range(replicas)]).max(axis=0)
    for s in range(count):
        links = [(mapping[s, r], mapping[s, (r + 1) % replicas]) for r in range(replicas)]
        piece = stages.parameter_bytes[s] / replicas
        slowest = max(network.latency_s[p] + piece / network.bandwidth_bytes_per_s[p] for p in links)
        ended[s] += 2 * (replicas - 1) * slowest if replicas > 1 else 0.0
    return float(ended.max())


@given(
    seed=st.integers(0, 10_000), stages=st.integers(1, 5), replicas=st.integers(1, 3), batch=st.integers(1, 5)
)
def test_times_are_those_of_discrete_events(seed: int, stages: int, replicas: int, batch: int) -> None:
    work, network = drawn_graph(seed, stages, replicas, batch), drawn_network(seed, stages * replicas + 1)
    mapping = drawn_mapping(seed, stages, replicas, network.devices)
    expected = events_step(work, mapping, network)
    assert step_time_s(work, mapping, network) == pytest.approx(expected, rel=1e-12)


@given(
    seed=st.integers(0, 10_000), stages=st.integers(1, 6), replicas=st.integers(1, 3), batch=st.integers(1, 6)
)
def test_chains_take_the_time_that_the_simulation_of_pipelines_finds(
    seed: int, stages: int, replicas: int, batch: int
) -> None:
    """A serial link binds only if a message takes longer than the adjacent stages."""
    work = drawn_graph(seed, stages, replicas, batch, chain=True)
    time = min(work.forward_s.min(), work.backward_s.min())
    network = flat_network(stages * replicas, work.edge_bytes.max(initial=1.0) / time, 0.5)
    bandwidth = network.bandwidth_bytes_per_s[0, -1]
    reduced = 2 * (replicas - 1) * (0.5 + work.parameter_bytes / replicas / bandwidth)
    sent = [*(work.edge_bytes / bandwidth + 0.5), 0.0]
    passes = zip(work.forward_s, work.backward_s, sent, (0.0, *sent), reduced, strict=False)
    costs = tuple(StageCost(f, b, 0.0, there, back, sync_s=sync) for f, b, there, back, sync in passes)
    pipeline = Pipeline(costs, batch * replicas, "gpipe", data=(replicas,) * stages)
    expected = simulate(pipeline).time_s
    assert flat_step_time_s(work, bandwidth, 0.5) == pytest.approx(expected, rel=1e-12)
    mapping = drawn_mapping(seed, stages, replicas, network.devices)
    assert step_time_s(work, mapping, network) == pytest.approx(expected, rel=1e-12)


def test_many_mappings_take_what_each_takes_alone() -> None:
    work, network = drawn_graph(3, 4, 3, 4), drawn_network(3, 14)
    mappings = np.array([drawn_mapping(seed, 4, 3, 14) for seed in range(5)])
    alone = [simulate_step(work, mapping, network, 10.0).step_s for mapping in mappings]
    assert step_times_s(work, mappings, network, 10.0) == pytest.approx(alone, rel=1e-15)


def test_faster_links_never_make_a_step_longer() -> None:
    work, network = drawn_graph(5, 4, 2, 4), drawn_network(5, 8)
    faster = DeviceNetwork(network.bandwidth_bytes_per_s * 1.5, network.latency_s)
    mapping = drawn_mapping(5, 4, 2, 8)
    step = simulate_step(work, mapping, network)
    assert step.compute_s < step_time_s(work, mapping, faster) < step.step_s


@pytest.mark.parametrize("mapping", [[[0, 1]], [[0], [0]], [[0], [2]], [[-1], [0]]])
def test_a_mapping_that_is_none_is_refused(mapping: list[list[int]]) -> None:
    stages = graph([1, 1], [1, 1], [0, 0], [(0, 1)], [1])
    with pytest.raises(PhazeError, match="mapping: must"):
        step_time_s(stages, np.array(mapping), flat_network(2, 1.0))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_bandwidths_that_carry_nothing_are_refused(value: float) -> None:
    bandwidth = np.ones((3, 3))
    bandwidth[1, 2] = value
    with pytest.raises(PhazeError, match=f"must be > 0 between all devices, got {value:g} from 1 to 2"):
        DeviceNetwork(bandwidth, np.zeros((3, 3)))


def chain(replicas: int, *, compute_s: float = 0.0, parameters: float = 0.0) -> StageGraph:
    """Return two stages that pass on 1 byte a microbatch, of four."""
    times, edges = np.full(2, compute_s), edge_arrays([(0, 1, 1.0)])
    return StageGraph(times, times, np.full(2, parameters), replicas, microbatches=4, **edges)


def test_inside_one_node_it_is_the_step_of_gpipe() -> None:
    for seed in range(6):
        stages, network = drawn_stages(seed, 4, 3), drawn_nodes(seed, 12, "directed", latency=True)
        mapping = np.random.default_rng(seed).permutation(12).reshape(4, 3)
        alone = step_time_s(stages, mapping, network, 1e9)
        assert shared_step_s(stages, mapping, network, 12, 1e9) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("node", [1, 2, 4])
def test_sharing_never_makes_a_step_shorter(node: int) -> None:
    for seed in range(6):
        stages, network = drawn_stages(seed, 3, 4), drawn_nodes(seed, 12, "undirected")
        for mapping in (consecutive_map(3, 4), p2p_map(3, 4)):
            step = simulate_step(stages, mapping, network)
            assert shared_step_s(stages, mapping, network, node) >= step.step_s * (1 - 1e-12)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_replicas_of_a_stage_on_one_node_take_turns(replicas: int) -> None:
    """CS map: all messages of all replicas pass one port, forward and then back.

    The first replica has its last message R - 1 messages before the others, and begins to send back.
    """
    stages, network = chain(replicas), flat_network(2 * replicas, 1.0)
    shared = shared_step_s(stages, consecutive_map(2, replicas), network, replicas)
    assert shared == pytest.approx(2 * 4 * replicas - (replicas - 1))
    assert step_time_s(stages, consecutive_map(2, replicas), network) == pytest.approx(2 * 4)


def test_rings_across_nodes_share_their_ports_as_well() -> None:
    """P2p map of two replicas: both stages exchange 2 (R - 1)/R of their gradients through the same ports."""
    stages = replace(chain(2, parameters=8.0), edge_bytes=np.zeros(1))
    network = flat_network(4, 1.0)
    assert step_time_s(stages, p2p_map(2, 2), network) == pytest.approx(8.0)
    assert shared_step_s(stages, p2p_map(2, 2), network, 2) == pytest.approx(16.0)
    assert shared_step_s(stages, consecutive_map(2, 2), network, 2) == pytest.approx(8.0)


def test_a_port_in_is_shared_by_nodes_that_send_to_it() -> None:
    """Stages 0 and 1 are on separate nodes, and both send 1 byte to stage 2."""
    edges = np.array([[0, 2], [1, 2]])
    zero = np.zeros(3)
    stages = StageGraph(zero, zero, zero, 1, microbatches=1, edges=edges, edge_bytes=np.ones(2))
    network = DeviceNetwork(np.ones((6, 6)), np.zeros((6, 6)))
    assert step_time_s(stages, np.array([[0], [2], [4]]), network) == pytest.approx(2.0)
    assert shared_step_s(stages, np.array([[0], [2], [4]]), network, 2) == pytest.approx(4.0)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(PhazeError, match="must name 4 different devices"):
        shared_step_s(chain(2), np.zeros((2, 2), np.int64), flat_network(4, 1.0), 2)
