"""Chips of tiles on a mesh with memories (PALM, II.C, IV.C), from systems that users describe.

A tile is the smallest part with a router: what PALM's wafer (Table VI) calls a core, with 4 × 4 in a tile.
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
from phaze.cost.network.mesh import PortMemory, TileGrid, Wires, mesh, nearest_memory
from phaze.cost.network.topology import Topology
from phaze.spec.files import FOLDER
from phaze.spec.systems import load_tiled
from phaze.spec.tiled import Tile, TiledDevice, TiledSystem


@dataclass(frozen=True)
class Chip:
    """Equal tiles on a mesh or torus, and the memories at tiles that have a port."""

    name: str
    grid: TileGrid
    tile: Tile
    wires: Wires
    """Links between neighbours, each with its bandwidth in every direction."""
    memory: PortMemory | None = None
    """DRAM that all tiles reach through the network; None: there is none."""
    fetched_once: bool = False
    """Whether operands that SRAM cannot hold pass once for a product, and not for each part that fits."""

    @cached_property
    def topology(self) -> Topology:
        """Tiles, then one node for every port, and the links."""
        return mesh(self.grid, self.wires, self.memory)

    def port(self, tile: int) -> int:
        """Node of the memory that a tile uses: the nearest one, the first of several.

        Raises `PhazeError` where there is none.
        """
        if self.memory is None:
            raise PhazeError(f"chip {self.name}: has no memory")
        return self._nearest[tile]

    @cached_property
    def _nearest(self) -> list[int]:
        assert self.memory is not None
        return [nearest_memory(self.grid, self.memory, tile) for tile in range(self.grid.tiles)]

    def users(self, tiles: Iterable[int]) -> dict[int, list[int]]:
        """Ports that tiles use, each with its tiles."""
        found: dict[int, list[int]] = {}
        for tile in tiles:
            found.setdefault(self.port(tile), []).append(tile)
        return found

    @cached_property
    def port_resources(self) -> NDArray[np.bool_]:
        """Mask of the network's resources that are ports of memories, (resources,)."""
        found = np.zeros(self.topology.resources, np.bool_)
        for link, resource in zip(self.topology.links, self.topology.resource_of, strict=True):
            found[resource] |= link.buffered
        found.setflags(write=False)
        return found

    @property
    def part_bytes(self) -> float:
        """Bytes of an operand that can stay while the other passes."""
        return inf if self.fetched_once else self.tile.sram_bytes

    @property
    def peak_flops_per_s(self) -> float:
        """FLOP/s of all tiles."""
        return self.grid.tiles * self.tile.flops


MOST_TILES = 50_000
"""Tiles of a network that is held link by link; a larger one takes gigabytes."""


@dataclass(frozen=True)
class TiledMachine:
    """A user's system of tiles: its grid, its links, its memories."""

    name: str
    system: TiledSystem
    device: TiledDevice

    def __post_init__(self) -> None:
        if self.device.torus and self.system.chips > 1:
            raise PhazeError(f"system {self.name}: a chip whose tiles form a torus must be alone")

    @cached_property
    def grid(self) -> TileGrid:
        """Places of all chips as one grid; some may be routers without a tile."""
        rows, columns = self.system.rows * self.device.rows, self.system.columns * self.device.columns
        return TileGrid(rows, columns, self.device.torus)

    @cached_property
    def tiles(self) -> tuple[int, ...]:
        """Places of the grid that have a tile, row by row."""
        return tuple(np.flatnonzero(self._has_tile).tolist())

    @property
    def _has_tile(self) -> NDArray[np.bool_]:
        """Mask of the grid's places with a tile, (rows, columns)."""
        without = self.device.rows_without_tiles, self.device.columns_without_tiles
        rows = ~np.isin(np.arange(self.grid.rows) % self.device.rows, without[0])
        columns = ~np.isin(np.arange(self.grid.columns) % self.device.columns, without[1])
        return rows[:, np.newaxis] & columns

    @property
    def wires(self) -> Wires:
        """Links, perhaps others between chips than inside."""
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
        """Memories at the places that are named, or at edges."""
        dram = self.system.dram
        named = (self.grid.tile(row, column) for row, column in dram.tiles or ())
        ports = tuple(sorted(named)) if dram.tiles else self._ports_at_edges()
        return PortMemory(ports, dram.bandwidth_bytes_per_s, dram.response_s)

    @cached_property
    def chip(self) -> Chip:
        """All chips as one; raises `PhazeError` where the network is too large to be held.

        Some of its places may be routers without a tile: `tiles` are those to give work to.
        """
        if self.grid.tiles > MOST_TILES:
            raise PhazeError(
                f"system {self.name}: at most {MOST_TILES:,} tiles can be simulated link by link, "
                f"got {self.grid.tiles:,}; describe a part of it"
            )
        return Chip(self.name, self.grid, self.device.tile, self.wires, self.memory, self.system.fetched_once)

    @property
    def hops_to_memory(self) -> int:
        """Hops from the tile furthest from any memory to the place of the nearest one."""
        grid = self.grid
        away: NDArray[np.bool_] = np.ones((grid.rows, grid.columns), bool)
        away.flat[list(self.memory.ports)] = False
        around = np.tile(away, (3, 3)) if grid.wrap else away
        hops = distance_transform_cdt(around, metric="taxicab")
        if grid.wrap:
            hops = hops[grid.rows : 2 * grid.rows, grid.columns : 2 * grid.columns]
        return int(np.max(hops[self._has_tile]))

    def _ports_at_edges(self) -> tuple[int, ...]:
        """Tiles with ports at edges, of every chip or of all together."""
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
        """Positions along a side that have ports."""
        ports = self.system.dram.ports_per_edge or side
        if ports > side:
            raise PhazeError(
                f"system {self.name}: dram.ports_per_edge must be at most the {side} of a side, got {ports}"
            )
        return [(2 * k + 1) * side // (2 * ports) for k in range(ports)]


def load_tiled_machine(name: str, folder: Path = FOLDER) -> TiledMachine:
    """System of tiles of config/systems by name, or of a YAML file by path."""
    return TiledMachine(Path(name).stem, *load_tiled(name, folder))
