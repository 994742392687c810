"""Meshes, tori, clusters and matrices: neighbours, routes and transfer times."""

from __future__ import annotations

from itertools import pairwise, permutations

import networkx as nx
import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.delivery import deliver
from phaze.cost.network.device_networks import complete_network
from phaze.cost.network.fabric import Switches, tree
from phaze.cost.network.mesh import PortMemory, TileGrid, Wires, mesh, nearest_memory
from phaze.cost.network.messages import Message
from phaze.cost.network.topology import Link, Topology

MESH = mesh(TileGrid(3, 4), Wires(10.0, 0.5))


def test_xy_routing_goes_along_the_row_first() -> None:
    grid = TileGrid(3, 4)
    assert grid.route(grid.tile(0, 0), grid.tile(2, 2)) == [0, 1, 2, 6, 10]
    assert grid.route(10, 0) == [10, 9, 8, 4, 0]
    assert TileGrid(3, 4, wrap=True).route(0, 11) == [0, 3, 11]


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (2, 2), (3, 4), (5, 2)])
def test_routes_are_shortest_paths_over_links(rows: int, columns: int, wrap: bool) -> None:
    grid = TileGrid(rows, columns, wrap)
    topology = mesh(grid, Wires(1.0))
    graph = nx.DiGraph((link.source, link.target) for link in topology.links)
    graph.add_nodes_from(range(grid.tiles))
    shortest = dict(nx.all_pairs_shortest_path_length(graph))
    for a in range(grid.tiles):
        for b in range(grid.tiles):
            assert topology.hops(a, b) == grid.distance(a, b) == shortest[a][b]


def test_pipelined_transfers_take_equation_2_and_hop_by_hop_ones_equation_3() -> None:
    """From (0, 0) to (2, 3): 5 hops of 0.5 s, and 20 bytes at 10 bytes/s."""
    assert MESH.seconds(0, 11, 20.0) == 5 * 0.5 + 20 / 10
    assert MESH.seconds(0, 11, 20.0, "hop-by-hop") == 5 * (0.5 + 20 / 10)


@pytest.mark.parametrize("switching", ["pipelined", "hop-by-hop"])
def test_one_transfer_alone_takes_the_time_of_an_idle_network(switching: str) -> None:
    delivery = deliver(MESH, [Message(0, 11, 20.0)], switching=switching)  # type: ignore[arg-type]
    assert delivery.time_s == MESH.seconds(0, 11, 20.0, switching)  # type: ignore[arg-type]


def test_the_narrowest_link_of_a_route_sets_its_speed() -> None:
    """Two adjacent blocks of 2 × 2, with slower links between them (PALM, Table VI)."""
    topology = mesh(TileGrid(2, 4), Wires(1024.0, 1.0, (2, 2), 256.0, 5.0))
    assert topology.seconds(0, 1, 1024.0) == 1 + 1
    assert topology.seconds(0, 3, 1024.0) == 1 + 5 + 1 + 4
    assert sum(link.bandwidth_bytes_per_s == 256.0 for link in topology.links) == 2 * 2


def test_an_access_to_memory_takes_equation_5() -> None:
    """Response 3 s, 8 bytes at 4 bytes/s, then three hops at 10 bytes/s; no hops from a tile with a port."""
    grid, memory = TileGrid(3, 4), PortMemory((0,), 4.0, 3.0)
    topology = mesh(grid, Wires(10.0, 0.5), memory)
    assert topology.seconds(12, 3, 8.0) == 3 + 8 / 4 + (3 * 0.5 + 8 / 10)
    assert topology.seconds(3, 12, 8.0) == 3 + 8 / 4 + (3 * 0.5 + 8 / 10)
    assert topology.seconds(12, 0, 8.0) == 3 + 8 / 4
    assert topology.seconds(12, 12, 8.0) == 0


def test_reads_and_writes_share_a_port() -> None:
    topology = mesh(TileGrid(1, 2), Wires(1e9), PortMemory((0,), 4.0))
    both = deliver(topology, [Message(2, 0, 8.0), Message(0, 2, 8.0)])
    assert both.arrived_s.tolist() == [2.0, 4.0]
    assert both.busy_s.max() == both.time_s


def test_tiles_use_the_nearest_memory() -> None:
    grid = TileGrid(2, 5)
    memory = PortMemory(grid.edge(), 1.0)
    assert memory.ports == (0, 4, 5, 9)
    assert [nearest_memory(grid, memory, tile) - grid.tiles for tile in range(5)] == [0, 0, 0, 1, 1]


def test_half_duplex_links_carry_one_direction_at_a_time() -> None:
    there_and_back = [Message(0, 1, 10.0), Message(1, 0, 10.0)]
    assert deliver(mesh(TileGrid(1, 2), Wires(10.0)), there_and_back).time_s == 1
    assert deliver(mesh(TileGrid(1, 2), Wires(10.0, half_duplex=True)), there_and_back).time_s == 2


def test_a_cluster_has_two_levels() -> None:
    """Four nodes of 8 GPUs with 8 adapters each: between nodes the adapter is the narrowest link."""
    cluster = tree([Switches(8, 300e9, 2e-6), Switches(4, 25e9, 5e-6, uplinks=8)])
    assert cluster.devices == 32
    assert cluster.seconds(0, 7, 3e9) == pytest.approx(2e-6 + 0.01)
    assert cluster.seconds(0, 31, 3e9) == pytest.approx(2e-6 + 5e-6 + 0.12)


@pytest.mark.parametrize(("adapters", "times"), [(8, 1), (4, 2), (1, 8)])
def test_devices_of_a_node_share_its_adapters(adapters: int, times: int) -> None:
    """Every GPU of a node sends to its peer in another node, and transfers queue at the adapters."""
    cluster = tree([Switches(8, 300e9), Switches(2, 25e9, uplinks=adapters)])
    delivery = deliver(cluster, [Message(k, 8 + k, 25e9) for k in range(8)])
    assert delivery.time_s == pytest.approx(times)


def test_a_fat_tree_with_full_width_carries_any_permutation_of_switches() -> None:
    """Two uplinks for two devices: a shift by one switch has no contention; with one uplink it takes twice as
    long.
    """
    for uplinks, times in ((2, 1), (1, 2)):
        fat = tree([Switches(2, 1.0), Switches(2, 1.0, uplinks=uplinks), Switches(2, 1.0, uplinks=uplinks)])
        assert fat.devices == 8
        plan = [Message(k, (k + 2) % 8, 1.0) for k in range(8)]
        assert deliver(fat, plan).time_s == times


@pytest.mark.parametrize("seed", range(20))
def test_absent_edges_go_by_the_widest_path_with_the_fewest_hops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.integers(1, 4, (5, 5)) * (rng.random((5, 5)) < 0.6).astype(np.float64)
    np.fill_diagonal(matrix, 0.0)
    best = {}
    for a, b in permutations(range(5), 2):
        paths = [
            (a, *middle, b)
            for length in range(4)
            for middle in permutations(set(range(5)) - {a, b}, length)
            if all(matrix[u, v] > 0 for u, v in pairwise((a, *middle, b)))
        ]
        figures = [(min(matrix[u, v] for u, v in pairwise(path)), 1 - len(path)) for path in paths]
        best[a, b] = (matrix[a, b], -1) if matrix[a, b] > 0 else max(figures, default=None)
    if None in best.values():
        with pytest.raises(PhazeError, match="is not connected: there is no path from"):
            complete_network(matrix, np.ones_like(matrix), "widest", "test")
        return
    network = complete_network(matrix, np.ones_like(matrix), "widest", "test")
    for (a, b), expected in best.items():
        assert (network.bandwidth_bytes_per_s[a, b], -network.latency_s[a, b]) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TileGrid(0, 3), "rows and columns must be ≥ 1"),
        (lambda: TileGrid(2, 3).tile(2, 0), "must be within 2 rows"),
        (lambda: mesh(TileGrid(2, 3), Wires(0.0)), "bandwidth_bytes_per_s must be > 0"),
        (lambda: mesh(TileGrid(2, 3), Wires(1.0, -1.0)), "latency_s must be ≥ 0"),
        (lambda: mesh(TileGrid(2, 3), Wires(1.0), PortMemory((6,), 1.0)), "ports must be tiles from 0 to 5"),
        (lambda: mesh(TileGrid(2, 3), Wires(1.0), PortMemory((), 1.0)), "at least one tile"),
        (lambda: MESH.route(0, 12), "a node must be from 0 to 11"),
        (lambda: MESH.legs(0, 1, "cut-through"), "switching must be one of"),  # type: ignore[arg-type]
        (lambda: Topology("x", 2, 2, (Link(0, 2, 1.0),), lambda a, b: [a, b]), "ends must be two of 2 nodes"),
        (lambda: tree([]), "there must be one"),
    ],
)
def test_what_cannot_be_a_network_is_refused(make: object, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        make()  # type: ignore[operator]
