"""A system of tiles as input of the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import nearest_memory
from phaze.tiles.chip import TiledMachine, load_tiled_machine
from tests.oracles.chips import wafer

TILE = {"clock_hz": 1e9, "pe_x": 16, "pe_y": 16, "sram_bytes": 1e6}
LINK = {"bandwidth_bytes_per_s": 1e12, "latency_s": 1e-9}


def machine(folder: Path, chip: dict[str, object], changes: dict[str, object]) -> TiledMachine:
    """Return a system of chips of tiles, read from files."""
    device, path = folder / "chip.yaml", folder / "mine.yaml"
    device.write_text(yaml.safe_dump({"rows": 4, "columns": 6, "tile": TILE, "link": LINK, **chip}))
    dram = {"bandwidth_bytes_per_s": 1e9}
    path.write_text(yaml.safe_dump({"device": str(device), "dram": dram, **changes}))
    return load_tiled_machine(str(path))


def test_the_wafer_has_the_network_of_table_vi() -> None:
    grid, topology, memory = wafer()
    found = load_tiled_machine("wafer")
    assert found.grid == grid
    assert found.memory.ports == memory.ports
    between = [link for link in topology.links if max(link.source, link.target) < grid.tiles]
    assert [
        link for link in found.chip.topology.links if max(link.source, link.target) < grid.tiles
    ] == between


def test_every_edge_block_of_the_wafer_has_256_gb_per_s() -> None:
    """PALM, Table VI, for the ten blocks of 4 × 4 cores at the two edges."""
    memory = load_tiled_machine("wafer").memory
    assert len(memory.ports) * memory.bandwidth_bytes_per_s == pytest.approx(10 * 256e9)


def test_a_tile_of_the_wafer_is_a_sixteenth_of_table_vi() -> None:
    chip = load_tiled_machine("wafer").chip
    assert chip.tile.flops == 16e12
    assert chip.tile.sram_bytes == 60e6 / 16
    assert chip.peak_flops_per_s == 20 * 256e12


def test_every_tile_uses_the_nearest_port() -> None:
    chip = load_tiled_machine("wafer").chip
    assert chip.memory is not None
    for tile in range(chip.grid.tiles):
        port = chip.memory.ports[chip.port(tile) - chip.grid.tiles]
        assert chip.grid.distance(tile, port) == min(
            chip.grid.distance(tile, other) for other in chip.memory.ports
        )
    with pytest.raises(PhazeError, match="chip wafer: has no memory"):
        replace(chip, memory=None).port(0)


@pytest.mark.parametrize("name", ["wafer", "grayskull"])
def test_hops_to_memory_are_those_of_the_routes(name: str) -> None:
    """The largest distance of a tile from its nearest memory, by the routes of the network."""
    found = load_tiled_machine(name)
    away = [
        len(found.chip.topology.router(tile, nearest_memory(found.grid, found.memory, tile))) - 2
        for tile in found.tiles
    ]
    assert found.hops_to_memory == max(away)


def test_rows_and_columns_without_tiles_are_those_of_every_chip(tmp_path: Path) -> None:
    """Two chips of 4 × 6 places next to each other, without their rows 0 and their columns 5."""
    without = {"rows_without_tiles": [0], "columns_without_tiles": [5]}
    found = machine(tmp_path, without, {"columns": 2, "link": LINK})
    assert found.tiles[:6] == (12, 13, 14, 15, 16, 18)
    assert len(found.tiles) == 2 * found.device.tiles == 2 * 3 * 5


def test_memories_at_edges_are_spread_evenly(tmp_path: Path) -> None:
    """Two memories at each of four edges of two adjacent chips, counted by hand."""
    edges = {"bandwidth_bytes_per_s": 1e9, "ports_per_edge": 2, "edges": ["north", "west"]}
    found = machine(tmp_path, {}, {"columns": 2, "link": LINK, "dram": edges})
    assert found.memory.ports == (1, 4, 7, 10, 12, 36)


def test_memories_around_every_chip(tmp_path: Path) -> None:
    """Memories at the west edge of each of two chips, not only of the first."""
    dram = {"bandwidth_bytes_per_s": 1e9, "edges": ["west"], "around": "chip"}
    found = machine(tmp_path, {}, {"columns": 2, "link": LINK, "dram": dram})
    assert found.memory.ports == (0, 6, 12, 18, 24, 30, 36, 42)


def test_links_between_chips_are_others(tmp_path: Path) -> None:
    slower = {"bandwidth_bytes_per_s": 1e11, "latency_s": 1e-8}
    found = machine(tmp_path, {}, {"columns": 2, "link": slower})
    links = {(link.source, link.target): link for link in found.chip.topology.links}
    assert (links[5, 6].bandwidth_bytes_per_s, links[5, 6].latency_s) == (1e11, 1e-8)
    assert (links[4, 5].bandwidth_bytes_per_s, links[4, 5].latency_s) == (1e12, 1e-9)


def test_a_torus_is_shorter(tmp_path: Path) -> None:
    one = {"bandwidth_bytes_per_s": 1e9, "tiles": [[0, 0]]}
    assert machine(tmp_path, {}, {"dram": one}).hops_to_memory == 3 + 5
    assert machine(tmp_path, {"torus": True}, {"dram": one}).hops_to_memory == 2 + 3


@pytest.mark.parametrize(
    ("chip", "changes", "message"),
    [
        ({"torus": True}, {"rows": 2, "link": LINK}, "whose tiles form a torus must be alone"),
        (
            {},
            {"dram": {"bandwidth_bytes_per_s": 1e9, "ports_per_edge": 5}},
            "ports_per_edge must be at most the 4 of a side, got 5",
        ),
        ({}, {"dram": {"bandwidth_bytes_per_s": 1e9, "tiles": [[4, 0]]}}, r"\(4, 0\) must be within 4 rows"),
    ],
)
def test_what_files_cannot_see_alone_is_refused(
    tmp_path: Path, chip: dict[str, object], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(PhazeError, match=message):
        assert machine(tmp_path, chip, changes).memory


def test_a_network_that_is_too_large_to_simulate_each_link_is_refused() -> None:
    chip = load_tiled_machine("wse2").chip
    with pytest.raises(PhazeError, match=r"system wse2: at most 50,000 tiles .* got 753,972"):
        assert chip.topology
