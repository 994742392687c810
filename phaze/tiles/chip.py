"""Tiled accelerators: one tile, how tiles and memories lie on a chip (PALM, II.C, IV.C), systems of chips."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_cdt

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.cost.mapper.arrays import INPUT, OUTPUT, WEIGHT
from phaze.cost.network.mesh import Grid, Memory, Wires, mesh, nearest_memory
from phaze.cost.network.topology import Topology
from phaze.cost.utilisation import peak_flops_per_s
from phaze.spec.files import FOLDER
from phaze.spec.systems import load_tiled
from phaze.spec.tiled import TiledDevice, TiledSystem

Dataflow = Literal["weight", "input", "output"]
"""What stays in an array (PALM, Table II: WS, IS)."""

DATAFLOWS: Mapping[Dataflow, int] = MappingProxyType({"weight": WEIGHT, "input": INPUT, "output": OUTPUT})
"""The numbers by which `cost.mapper.arrays` knows dataflows."""


@dataclass(frozen=True)
class Tile:
    """What has a router and a memory of its own: arrays of processing elements, vector lanes, SRAM.

    It is the smallest part with a router: what PALM's wafer (Table VI) calls a core, with 4 × 4 in a tile.
    """

    rows: int
    """Processing elements of an array from top to bottom; each multiplies and adds once in a cycle."""
    columns: int
    clock_hz: float
    sram_bytes: float
    sram_bandwidth_bytes_per_s: float
    """Between SRAM and arrays, reads and writes together; inf: it never binds, as in PALM."""
    arrays: int = 1
    lanes: int = 0
    """Vector operations in a cycle; 0: they are not counted, as in PALM."""
    dataflows: tuple[Dataflow, ...] = ("weight", "input")
    """Those that an array knows; of a product the fastest is taken."""
    fetched_once: bool = False
    """Whether operands that SRAM cannot hold pass once for a product, and not for each part that fits."""

    def __post_init__(self) -> None:
        positive = "rows", "columns", "clock_hz", "sram_bytes", "sram_bandwidth_bytes_per_s", "arrays"
        for name in positive:
            if not getattr(self, name) > 0:
                raise PhazeError(f"tile: {name} must be > 0, got {getattr(self, name)}")
        if self.lanes < 0:
            raise PhazeError(f"tile: lanes must be ≥ 0, got {self.lanes}")
        if not self.dataflows or set(self.dataflows) - set(get_args(Dataflow)):
            raise PhazeError(
                f"tile: dataflows must be some of {', '.join(DATAFLOWS)}, got {', '.join(self.dataflows)}"
            )

    @property
    def part_bytes(self) -> float:
        """Return how much of an operand can stay while the other passes."""
        return inf if self.fetched_once else self.sram_bytes

    @property
    def peak_flops_per_s(self) -> float:
        """Two FLOPs for every processing element and cycle."""
        return peak_flops_per_s(self.arrays, self.rows, self.columns, self.clock_hz)


@dataclass(frozen=True)
class Chip:
    """Equal tiles on a mesh or torus, and the memories at tiles that have a port."""

    name: str
    grid: Grid
    tile: Tile
    wires: Wires
    """Links between neighbours, each with its bandwidth in every direction."""
    memory: Memory | None = None
    """DRAM that all tiles reach through the network; None: there is none."""
    dram_bytes: float = inf
    """Of all ports together."""
    _ports: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.dram_bytes > 0:
            raise PhazeError(f"chip {self.name}: dram_bytes must be > 0, got {self.dram_bytes}")

    @cached_property
    def topology(self) -> Topology:
        """Tiles, then one node for every port, and the links."""
        return mesh(self.grid, self.wires, self.memory)

    def port(self, tile: int) -> int:
        """Return the node of the memory that a tile uses: the nearest one, the first of several.

        Raises `PhazeError` where there is none.
        """
        if self.memory is None:
            raise PhazeError(f"chip {self.name}: has no memory")
        if tile not in self._ports:
            self._ports[tile] = nearest_memory(self.grid, self.memory, tile)
        return self._ports[tile]

    def users(self, tiles: Iterable[int]) -> dict[int, list[int]]:
        """Return the ports that tiles use, each with those that do."""
        found: dict[int, list[int]] = {}
        for tile in tiles:
            found.setdefault(self.port(tile), []).append(tile)
        return found

    @property
    def peak_flops_per_s(self) -> float:
        """Of all tiles."""
        return self.grid.tiles * self.tile.peak_flops_per_s


MOST_TILES = 50_000
"""Tiles of a network that is held link by link; a larger one takes gigabytes."""


@dataclass(frozen=True)
class TiledMachine:
    """A system of tiles, as the simulator needs it: its grid, its links, its memories."""

    name: str
    system: TiledSystem
    device: TiledDevice

    def __post_init__(self) -> None:
        if self.device.torus and self.system.chips > 1:
            raise PhazeError(f"system {self.name}: a chip whose tiles form a torus must be alone")

    @property
    def flops(self) -> float:
        """Return the FLOP/s of 16 bits of all chips."""
        return self.system.chips * self.device.flops

    @property
    def sram_bytes(self) -> float:
        """Return the SRAM of all chips."""
        return self.system.chips * self.device.sram_bytes

    @property
    def dram_bytes_per_s(self) -> float:
        """Return the bandwidth of all memories."""
        return len(self.memory.ports) * self.memory.bandwidth_bytes_per_s

    @cached_property
    def grid(self) -> Grid:
        """Return the places of all chips as one grid; some may be routers without a tile."""
        rows, columns = self.system.rows * self.device.rows, self.system.columns * self.device.columns
        return Grid(rows, columns, self.device.torus)

    @cached_property
    def tiles(self) -> tuple[int, ...]:
        """Return the places of the grid that have a tile, row by row."""
        return tuple(np.flatnonzero(self._has_tile).tolist())

    @property
    def _has_tile(self) -> NDArray[np.bool_]:
        """Return whether there is a tile, for all places of the grid (rows, columns)."""
        without = self.device.rows_without_tiles, self.device.columns_without_tiles
        rows = ~np.isin(np.arange(self.grid.rows) % self.device.rows, without[0])
        columns = ~np.isin(np.arange(self.grid.columns) % self.device.columns, without[1])
        return rows[:, np.newaxis] & columns

    @property
    def wires(self) -> Wires:
        """Return the links, perhaps others between chips than inside."""
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
    def memory(self) -> Memory:
        """Return the memories."""
        dram = self.system.dram
        named = (self.grid.tile(row, column) for row, column in dram.tiles or ())
        ports = tuple(sorted(named)) if dram.tiles else self._ports_at_edges()
        return Memory(ports, dram.bandwidth_bytes_per_s, dram.response_s)

    @property
    def tile(self) -> Tile:
        """Return a tile as the simulator knows it; SRAM binds nothing where its bandwidth is not given."""
        tile = self.device.tile
        return Tile(
            rows=tile.pe_x,
            columns=tile.pe_y,
            clock_hz=tile.clock_hz,
            sram_bytes=tile.sram_bytes,
            sram_bandwidth_bytes_per_s=tile.sram_bandwidth_bytes_per_s or inf,
            lanes=tile.lanes or 0,
            fetched_once=self.system.fetched_once,
        )

    @cached_property
    def chip(self) -> Chip:
        """Return all chips as one; raise PhazeError where the network is too large to be held.

        Some of its places may be routers without a tile: `tiles` are those to give work to.
        """
        if self.grid.tiles > MOST_TILES:
            raise PhazeError(
                f"system {self.name}: at most {MOST_TILES:,} tiles can be simulated link by link, "
                f"got {self.grid.tiles:,}; describe a part of it"
            )
        gib = self.system.dram.gib
        dram_bytes = inf if gib is None else gib * GIB
        return Chip(self.name, self.grid, self.tile, self.wires, self.memory, dram_bytes)

    @property
    def hops_to_memory(self) -> int:
        """Return the hops from the tile furthest from any memory to the place of the nearest one."""
        grid = self.grid
        away: NDArray[np.bool_] = np.ones((grid.rows, grid.columns), bool)
        away.flat[list(self.memory.ports)] = False
        around = np.tile(away, (3, 3)) if grid.wrap else away
        hops = distance_transform_cdt(around, metric="taxicab")
        if grid.wrap:
            hops = hops[grid.rows : 2 * grid.rows, grid.columns : 2 * grid.columns]
        return int(np.max(hops[self._has_tile]))

    def _ports_at_edges(self) -> tuple[int, ...]:
        """Return the tiles with ports at edges, of every chip or of all together."""
        system, device, dram = self.system, self.device, self.system.dram
        places = np.arange(self.grid.tiles)
        chips = places.reshape(system.rows, device.rows, system.columns, device.columns).swapaxes(1, 2)
        sides = {
            "north": chips[:, :, 0], "south": chips[:, :, -1], "west": chips[..., 0], "east": chips[..., -1],
        }  # fmt: skip
        outer = {"north": (0, 0), "south": (-1, 0), "west": (0, 1), "east": (-1, 1)}  # place, axis of chips
        found: set[int] = set()
        for edge in dram.edges:
            place, axis = outer[edge]
            side = sides[edge] if dram.around == "chip" else sides[edge].take([place], axis)
            found.update(side[..., self._spread(side.shape[-1])].ravel().tolist())
        return tuple(sorted(found))

    def _spread(self, side: int) -> list[int]:
        """Return which tiles of a side have ports."""
        ports = self.system.dram.ports_per_edge or side
        if ports > side:
            raise PhazeError(
                f"system {self.name}: dram.ports_per_edge must be at most the {side} of a side, got {ports}"
            )
        return [(2 * k + 1) * side // (2 * ports) for k in range(ports)]


def load_tiled_machine(name: str, folder: Path = FOLDER) -> TiledMachine:
    """Return a system of tiles of config/systems by name, or of a YAML file by path."""
    return TiledMachine(Path(name).stem, *load_tiled(name, folder))
