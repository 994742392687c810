"""The ensemble takes the shortest step of all methods, reproducibly; devices may be left unused."""

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.device_networks import DeviceNetwork, flat_network
from phaze.cost.network.topologies import hops_of_grid
from phaze.map.ensemble import MapSettings, map_stages, stored_mapping
from phaze.map.heuristics import compact_maps, consecutive_map, device_order, grid_order, p2p_map
from phaze.map.objective import MappingProblem, choose_instantiation
from phaze.map.search import SearchLimits
from phaze.pipeline.gpipe import step_time_s
from phaze.workload.operator_graphs import StageGraph
from tests.unit.map.cases import drawn_network, drawn_stages

FAST = SearchLimits(tries=20_000)


def test_without_heuristics_the_answer_is_never_worse_than_they_are() -> None:
    stages, network = drawn_stages(5, 4, 4), drawn_network(5, 16, "undirected")
    mapped = map_stages(stages, network, MapSettings(heuristics=False, limits=FAST, steps=20_000))
    assert {one.method for one in mapped.candidates} == {"p2p", "allreduce", "exact", "local-search"}
    assert mapped.best.step_s < min(one.step_s for one in mapped.heuristics)
    assert mapped.best.step_s == step_time_s(stages, mapped.best.mapping, network)


def test_the_same_seed_gives_the_same_file() -> None:
    stages, network = drawn_stages(6, 3, 3), drawn_network(6, 11, "directed", latency=True)
    texts = set()
    for _ in range(2):
        settings = MapSettings(seed=3, limits=FAST, steps=5000)
        stored = stored_mapping(map_stages(stages, network, settings), "m", "t", settings)
        texts.add(stored.model_dump_json())
    assert len(texts) == 1
    devices = {device for row in stored.mapping for device in row}
    assert len(devices) == 9
    assert stored.bound_s <= stored.objective_s


def test_the_best_devices_of_many_are_taken() -> None:
    """Three of six devices have links a hundred times faster; the stages need three."""
    bandwidth = np.ones((6, 6))
    for a, b in [(1, 3), (3, 5), (1, 5)]:
        bandwidth[a, b] = bandwidth[b, a] = 100.0
    network = DeviceNetwork(bandwidth, np.zeros((6, 6)))
    mapped = map_stages(drawn_stages(1, 3, 1), network, MapSettings(limits=FAST, steps=2000))
    assert set(mapped.best.mapping.reshape(-1).tolist()) == {1, 3, 5}


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(PhazeError, match="needs at least 6 devices for 3 stages x 2 replicas, got 5"):
        map_stages(drawn_stages(1, 3, 2), flat_network(5, 1.0), MapSettings())


def test_what_is_exchanged_more_is_counted() -> None:
    """An edge sends its bytes there and back for every microbatch, a ring 2 (R - 1) / R of the gradients."""
    edges, times = np.array([[0, 1]]), np.ones(2)
    for parameters, chosen in ((8.1, "allreduce"), (7.9, "p2p")):
        stages = StageGraph(
            times, times, np.array([parameters, 0.0]), 2, 4, edges=edges, edge_bytes=np.ones(1)
        )
        assert choose_instantiation(stages) == chosen


def test_stage_times_count_messages_both_ways_and_the_slowest_link() -> None:
    """c_u 2; 6 bytes at 2 and 3 bytes/s: 5 s; a ring of 4 bytes, 2 (R - 1)/R = 1, at 1: 4 s."""
    bandwidth = np.full((4, 4), 2.0)
    bandwidth[2:, :2] = 3.0
    bandwidth[0, 1] = 1.0
    network = DeviceNetwork(bandwidth, np.zeros((4, 4)))
    one, edges = np.ones(2), np.array([[0, 1]])
    stages = StageGraph(one, one, np.array([4.0, 2.0]), 2, 4, edges=edges, edge_bytes=np.array([6.0]))
    mapping = np.array([[0, 1], [2, 3]])
    assert MappingProblem(stages, network, "p2p").stage_times_s(mapping).tolist() == [7.0, 7.0]
    assert MappingProblem(stages, network, "allreduce").stage_times_s(mapping).tolist() == [6.0, 3.0]
    assert MappingProblem(stages, network, "exact").stage_times_s(mapping).tolist() == [11.0, 8.0]


def test_devices_in_order_lie_close() -> None:
    """On a grid of 4 x 4 the order follows neighbours, and groups of four are squares."""
    hops = hops_of_grid((4, 4), torus=False).astype(float)
    path = device_order(hops, 1)
    assert sorted(path) == list(range(16))
    assert hops[path[:-1], path[1:]].mean() < 1.5
    groups = device_order(hops, 4).reshape(4, 4)
    assert hops[groups[0][:, None], groups[0]].max() == 2


def test_rings_of_compact_maps_close_nearby() -> None:
    """On a line of eight devices a closed ring has links of at most two hops."""
    hops = hops_of_grid((8,), torus=False)
    network = DeviceNetwork(1.0 / np.maximum(hops, 1), np.zeros((8, 8)))
    problem = MappingProblem(drawn_stages(1, 1, 8), network, "exact")
    longest = min(hops[ring[0], np.roll(ring[0], -1)].max() for ring in compact_maps(problem))
    assert longest == 2


@pytest.mark.parametrize("torus", [False, True])
def test_a_grid_is_found_row_by_row(torus: bool) -> None:
    """Groups of four are the rows of 3 x 4 devices, with neighbours in adjacent rows; 12 are a plane."""
    for sides, widths in (((3, 4), (4,)), ((5, 3, 4), (4, 12))):
        hops = hops_of_grid(sides, torus=torus).astype(float)
        assert grid_order(hops, widths).tolist() == list(range(len(hops)))


def test_compact_maps_are_as_good_as_those_by_hand_on_a_grid() -> None:
    hops = hops_of_grid((4, 4, 4), torus=True)
    network = DeviceNetwork(1.0 / np.maximum(hops, 1), np.zeros(hops.shape))
    for stages, replicas in ((8, 8), (16, 4), (4, 16)):
        problem = MappingProblem(drawn_stages(1, stages, replicas), network, "exact")
        best = min(problem.value_s(mapping) for mapping in compact_maps(problem))
        assert best <= min(
            problem.value_s(by_hand(stages, replicas)) for by_hand in (consecutive_map, p2p_map)
        )
