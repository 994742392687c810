"""A system of tiles, as the simulator needs it: its grid, its links, its memories."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_cdt

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.cost.network.mesh import Grid, Memory, Wires
from phaze.spec.files import FOLDER
from phaze.spec.systems import load_tiled
from phaze.spec.tiled import Edge, TiledDevice, TiledSystem
from phaze.tiles.chip import Chip, Tile

MOST_TILES = 50_000
"""Tiles of a network that is held link by link; a larger one takes gigabytes."""


@dataclass(frozen=True)
class TiledMachine:
    """A system of tiles and its chip."""

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
        ports = self._named_ports() if dram.tiles else self._ports_at_edges()
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

    def _named_ports(self) -> tuple[int, ...]:
        named = self.system.dram.tiles or ()
        return tuple(sorted(self.grid.tile(row, column) for row, column in named))

    def _ports_at_edges(self) -> tuple[int, ...]:
        dram = self.system.dram
        at = {
            port for edge in dram.edges for chip in self._chips_at(edge) for port in self._ports(edge, chip)
        }
        return tuple(sorted(at))

    def _chips_at(self, edge: Edge) -> list[tuple[int, int]]:
        """Return the row and column of every chip that has memories at its side of an edge."""
        rows, columns = self.system.rows, self.system.columns
        chips = [(row, column) for row in range(rows) for column in range(columns)]
        if self.system.dram.around == "chip":
            return chips
        return [chip for chip in chips if _is_at(edge, chip, (rows, columns))]

    def _ports(self, edge: Edge, chip: tuple[int, int]) -> list[int]:
        """Return the tiles with ports at an edge of a chip."""
        rows, columns = self.device.rows, self.device.columns
        side = rows if edge in ("west", "east") else columns
        first_row, first_column = chip[0] * rows, chip[1] * columns
        fixed = {"north": first_row, "south": first_row + rows - 1}.get(edge)
        if fixed is not None:
            return [self.grid.tile(fixed, first_column + k) for k in self._spread(side)]
        column = first_column if edge == "west" else first_column + columns - 1
        return [self.grid.tile(first_row + k, column) for k in self._spread(side)]

    def _spread(self, side: int) -> list[int]:
        """Return which tiles of a side have ports."""
        ports = self.system.dram.ports_per_edge or side
        if ports > side:
            raise PhazeError(
                f"system {self.name}: dram.ports_per_edge must be at most the {side} of a side, got {ports}"
            )
        return [(2 * k + 1) * side // (2 * ports) for k in range(ports)]


def _is_at(edge: Edge, chip: tuple[int, int], shape: tuple[int, int]) -> bool:
    """Return whether a chip is at an edge of all chips."""
    last = shape[0] - 1, shape[1] - 1
    position = {"north": chip[0], "south": last[0] - chip[0], "west": chip[1], "east": last[1] - chip[1]}
    return position[edge] == 0


def load_tiled_machine(name: str, folder: Path = FOLDER) -> TiledMachine:
    """Return a system of tiles of config/systems by name, or of a YAML file by path."""
    return TiledMachine(Path(name).stem, *load_tiled(name, folder))
