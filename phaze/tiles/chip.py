"""Chips of tiles on a mesh with memories (PALM, II.C, IV.C), from user-defined systems.

A tile is the smallest part with a router. PALM's wafer (Table VI) calls it a core, and 4 × 4 cores a tile.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_cdt

from phaze.base.errors import PhazeError
from phaze.base.units import GIB, MIB
from phaze.cost.network.fabric import Fabric, fabric
from phaze.cost.network.mesh import PortMemory, TileGrid, Wires, mesh, nearest_memory, with_memory
from phaze.cost.network.topology import Topology
from phaze.spec.files import FOLDER, read_mapping, system_path
from phaze.spec.system import Cluster, Device
from phaze.spec.systems import load_cluster, load_tiled
from phaze.spec.tiled import Tile, TiledDevice, TiledSystem

MOST_TILES = 50_000
"""Largest number of tiles that is simulated link by link; larger networks would need gigabytes."""


@dataclass(frozen=True)
class Chip:
    """Identical tiles on a mesh or torus; some tiles have a port to memory."""

    name: str
    grid: TileGrid
    tile: Tile
    wires: Wires
    """Links between neighbours; the bandwidth of each is per direction."""
    memory: PortMemory | None = None
    """DRAM that all tiles reach through the network; None if the chip has no DRAM."""
    lines: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Rows and columns of the grid with tiles; None: all."""
    network: Fabric | None = None
    """Network between devices that takes the place of the mesh; every device has a memory of its own."""
    fetched_once: bool = False
    """True if a GEMM fetches operands that exceed SRAM only once, not again for every part that fits SRAM."""
    dram_bytes: float = inf
    """Capacity of all memory ports together."""

    @cached_property
    def topology(self) -> Topology:
        """Network of the chip: tiles as nodes, followed by one node per memory port, and the links.

        Raises `PhazeError` if there are too many links to simulate each.
        """
        if self.grid.tiles > MOST_TILES:
            raise PhazeError(
                f"system {self.name}: at most {MOST_TILES:,} tiles can be simulated link by link, "
                f"got {self.grid.tiles:,}",
                "simulate the links between groups (links: groups), or describe a part of the system",
            )
        if self.network is not None:
            return with_memory(self.network.topology, self.memory)
        return mesh(self.grid, self.wires, self.memory)

    def port(self, tile: int) -> int:
        """Node of the memory port nearest to a tile; ties go to the first port.

        Raises `PhazeError` if the chip has no memory.
        """
        if self.memory is None:
            raise PhazeError(f"chip {self.name}: has no memory")
        return self._nearest[tile] if self.network is None else self.network.topology.nodes + tile

    @cached_property
    def _nearest(self) -> list[int]:
        assert self.memory is not None
        return [nearest_memory(self.grid, self.memory, tile) for tile in range(self.grid.tiles)]

    def users(self, tiles: Iterable[int]) -> dict[int, list[int]]:
        """The given tiles, grouped by the memory port that they use."""
        tiles_of_port: dict[int, list[int]] = {}
        for tile in tiles:
            tiles_of_port.setdefault(self.port(tile), []).append(tile)
        return tiles_of_port

    @cached_property
    def sites(self) -> TileGrid:
        """Tiles in rows and columns, without the rows and columns that only forward messages."""
        if self.lines is None:
            return self.grid
        rows, columns = self.lines
        return TileGrid(len(rows), len(columns), self.grid.wrap)

    def located(self, tiles: Iterable[int]) -> tuple[int, ...]:
        """Positions on the grid of tiles that are numbered by their `sites`."""
        if self.lines is None:
            return tuple(tiles)
        rows, columns = self.lines
        places = map(self.sites.place, tiles)
        return tuple(self.grid.tile(rows[row], columns[column]) for row, column in places)

    @property
    def part_bytes(self) -> float:
        """Bytes of an operand that stay in SRAM while the other streams; inf if each is fetched only once."""
        return inf if self.fetched_once else self.tile.sram_bytes

    @property
    def peak_flops_per_s(self) -> float:
        """Peak FLOP/s of all tiles together."""
        return self.sites.tiles * self.tile.flops


@dataclass(frozen=True)
class TiledMachine:
    """Grid, links and memories of a user-defined system of tiles."""

    name: str
    system: TiledSystem
    device: TiledDevice

    def __post_init__(self) -> None:
        if self.device.torus and self.system.chips > 1:
            raise PhazeError(f"system {self.name}: a chip whose tiles form a torus must be alone")

    @cached_property
    def grid(self) -> TileGrid:
        """Positions of all chips joined into one grid; some positions may be routers without a tile."""
        rows, columns = self.system.rows * self.device.rows, self.system.columns * self.device.columns
        return TileGrid(rows, columns, self.device.torus)

    @cached_property
    def tiles(self) -> tuple[int, ...]:
        """Grid positions that have a tile, in row-major order."""
        return tuple(np.flatnonzero(self._has_tile).tolist())

    @property
    def _has_tile(self) -> NDArray[np.bool_]:
        """Mask of the grid positions that have a tile, (rows, columns)."""
        mask = np.zeros((self.grid.rows, self.grid.columns), np.bool_)
        mask[np.ix_(*self._lines)] = True
        return mask

    @property
    def _lines(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows and columns of the grid with tiles."""
        device, grid = self.device, self.grid
        rows = (row for row in range(grid.rows) if row % device.rows not in device.rows_without_tiles)
        columns = (
            column
            for column in range(grid.columns)
            if column % device.columns not in device.columns_without_tiles
        )
        return tuple(rows), tuple(columns)

    @property
    def wires(self) -> Wires:
        """Links inside chips, and separate links between chips if the system defines them."""
        inside, between = self.device.link, self.system.link
        if between is None:
            return Wires(inside.bandwidth_bytes_per_s, inside.latency_s)
        return Wires(
            inside.bandwidth_bytes_per_s,
            inside.latency_s,
            (self.device.rows, self.device.columns),
            between.bandwidth_bytes_per_s,
            between.latency_s,
        )

    @cached_property
    def memory(self) -> PortMemory:
        """Memory ports at the listed tiles, or along the edges if no tiles are listed."""
        dram = self.system.dram
        named = (self.grid.tile(row, column) for row, column in dram.tiles or ())
        ports = tuple(sorted(named)) if dram.tiles else self._ports_at_edges()
        return PortMemory(ports, dram.bandwidth_bytes_per_s, dram.response_s)

    @cached_property
    def chip(self) -> Chip:
        """All chips joined into one."""
        lines = self._lines if len(self.tiles) < self.grid.tiles else None
        return Chip(
            self.name, self.grid, self.device.tile, self.wires, self.memory, lines,
            fetched_once=self.system.fetched_once, dram_bytes=(self.system.dram.gib or inf) * GIB,
        )  # fmt: skip

    @property
    def hops_to_memory(self) -> int:
        """Largest distance from a tile to its nearest memory port, in hops."""
        grid = self.grid
        away: NDArray[np.bool_] = np.ones((grid.rows, grid.columns), bool)
        away.flat[list(self.memory.ports)] = False
        around = np.tile(away, (3, 3)) if grid.wrap else away
        hops = distance_transform_cdt(around, metric="taxicab")
        if grid.wrap:
            hops = hops[grid.rows : 2 * grid.rows, grid.columns : 2 * grid.columns]
        return int(np.max(hops[self._has_tile]))

    def _ports_at_edges(self) -> tuple[int, ...]:
        """Positions of the ports along the edges of each chip or of the whole system."""
        system, device, dram = self.system, self.device, self.system.dram
        places = np.arange(self.grid.tiles)
        chips = places.reshape(system.rows, device.rows, system.columns, device.columns).swapaxes(1, 2)
        sides = {
            "north": chips[:, :, 0], "south": chips[:, :, -1], "west": chips[..., 0], "east": chips[..., -1],
        }  # fmt: skip
        outer = {"north": (0, 0), "south": (-1, 0), "west": (0, 1), "east": (-1, 1)}  # index, axis of chips
        ports: set[int] = set()
        for edge in dram.edges:
            place, axis = outer[edge]
            side = sides[edge] if dram.around == "chip" else sides[edge].take([place], axis)
            ports.update(side[..., self._spread(side.shape[-1])].ravel().tolist())
        return tuple(sorted(ports))

    def _spread(self, side: int) -> list[int]:
        """Evenly spaced positions of the ports along a side."""
        ports = self.system.dram.ports_per_edge or side
        if ports > side:
            raise PhazeError(
                f"system {self.name}: dram.ports_per_edge must be at most the {side} of a side, got {ports}"
            )
        return [(2 * k + 1) * side // (2 * ports) for k in range(ports)]


def load_tiled_machine(name: str, folder: Path = FOLDER) -> TiledMachine:
    """Load a tiled system by name from config/systems, or from the path of a YAML file."""
    return TiledMachine(Path(name).stem, *load_tiled(name, folder))


def load_chip(name: str, devices: int | None = None, folder: Path = FOLDER) -> Chip:
    """Load a system of tiles, or the first `devices` devices of a cluster as tiles on its network.

    Raises `PhazeError` if a cluster has fewer devices, or a system of tiles is given a number of devices.
    """
    if "dram" in read_mapping(system_path(name, folder)):
        if devices is not None:
            raise PhazeError(
                f"system {name}: devices: applies to clusters; a system of tiles has all of its own"
            )
        return load_tiled_machine(name, folder).chip
    cluster, device = load_cluster(name, folder)
    return cluster_chip(Path(name).stem, cluster, device, devices or cluster.devices)


def cluster_chip(name: str, cluster: Cluster, device: Device, devices: int) -> Chip:
    """Devices of a cluster as tiles: all arrays of a device as one, its buffers as SRAM, its HBM as DRAM.

    A node is a row of the grid. Groups of devices communicate inside nodes first.
    """
    network = fabric(cluster, devices)
    columns = network.node if devices % network.node == 0 else 1
    tile = Tile(
        clock_hz=device.clock_hz * device.sustained_clock, pe_x=device.num_tc * device.pe_x, pe_y=device.pe_y,
        lanes=device.num_vc * (device.pe_vc or device.pe_x), sram_bytes=device.glb_mib * MIB,
    )  # fmt: skip
    memory = PortMemory(tuple(range(devices)), device.hbm_bandwidth_bytes_per_s * device.sustained_hbm)
    wires = Wires(cluster.levels[0].bandwidth_bytes_per_s)
    return Chip(
        name, TileGrid(devices // columns, columns), tile, wires, memory, network=network,
        dram_bytes=devices * device.hbm_gib * GIB,
    )  # fmt: skip
