"""Meshes and tori with dimension-ordered routing, and memories at their edges.

Includes tiles in two dimensions (PALM, II.C, IV.C.3, Table VI) and devices in any number of dimensions.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from phaze.base.errors import PhazeError
from phaze.cost.network.topology import Link, Router, Topology


@dataclass(frozen=True)
class TileGrid:
    """Tiles in rows and columns, numbered row by row."""

    rows: int
    columns: int
    wrap: bool = False
    """True if the last tile of a row or column is next to the first: a torus."""

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1:
            raise PhazeError(f"grid: rows and columns must be ≥ 1, got {self.rows} × {self.columns}")

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.rows * self.columns

    def tile(self, row: int, column: int) -> int:
        """Number of the tile at a row and column."""
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            raise PhazeError(
                f"grid: ({row}, {column}) must be within {self.rows} rows and {self.columns} columns"
            )
        return row * self.columns + column

    def place(self, tile: int) -> tuple[int, int]:
        """Row and column of a tile."""
        return divmod(tile, self.columns)

    def route(self, source: int, target: int) -> list[int]:
        """Tiles on the route: along the row first, then along the column (XY routing)."""
        return _along_axes((self.rows, self.columns), self.wrap, source, target)

    def distance(self, a: int, b: int) -> int:
        """Hops between two tiles."""
        (row, column), (to_row, to_column) = self.place(a), self.place(b)
        down, across = abs(row - to_row), abs(column - to_column)
        if self.wrap:
            down, across = min(down, self.rows - down), min(across, self.columns - across)
        return down + across

    def neighbours(self, tile: int) -> list[int]:
        """Tiles one hop away, in ascending order."""
        row, column = self.place(tile)
        around = [(row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)]
        if self.wrap:
            around = [(r % self.rows, c % self.columns) for r, c in around]
        inside = {r * self.columns + c for r, c in around if 0 <= r < self.rows and 0 <= c < self.columns}
        return sorted(inside - {tile})

    def edge(self) -> tuple[int, ...]:
        """Tiles at the west and east edges, in ascending order."""
        columns = {0, self.columns - 1}
        return tuple(tile for tile in range(self.tiles) if self.place(tile)[1] in columns)


@dataclass(frozen=True)
class Wires:
    """Bandwidth and latency of the links of a mesh, optionally slower between blocks of tiles."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    block: tuple[int, int] | None = None
    """Rows and columns of a block; PALM's wafer has 4 × 4 cores in each of its tiles."""
    between_bandwidth_bytes_per_s: float | None = None
    between_latency_s: float | None = None
    half_duplex: bool = False
    """True if the two directions between neighbours exclude each other."""

    def crosses(self, grid: TileGrid, a: int, b: int) -> bool:
        """True if two neighbours are in different blocks."""
        if self.block is None:
            return False
        (row, column), (to_row, to_column) = grid.place(a), grid.place(b)
        down, across = self.block
        return (row // down, column // across) != (to_row // down, to_column // across)

    def links(self, grid: TileGrid, a: int, b: int, number: int) -> tuple[Link, Link]:
        """Links between two neighbours; `number` is the resource of both if half-duplex."""
        bandwidth, latency = self.bandwidth_bytes_per_s, self.latency_s
        if self.crosses(grid, a, b):
            bandwidth = self.between_bandwidth_bytes_per_s or bandwidth
            latency = latency if self.between_latency_s is None else self.between_latency_s
        shared = number if self.half_duplex else -1
        return Link(a, b, bandwidth, latency, shared), Link(b, a, bandwidth, latency, shared)


@dataclass(frozen=True)
class PortMemory:
    """Shared DRAM, attached through a port at each of several tiles (PALM, Equations 4 and 5)."""

    ports: tuple[int, ...]
    """Tiles with a port."""
    bandwidth_bytes_per_s: float
    """Bandwidth of one port, for reads and writes together."""
    response_s: float = 0.0


def mesh(grid: TileGrid, wires: Wires, memory: PortMemory | None = None) -> Topology:
    """Mesh or torus of tiles; the memories, one for each port, are nodes numbered after the tiles.

    A memory access occupies the port exclusively for Response_Time + Access_Size / BW_DRAM. The network
    transfer follows it for a read and precedes it for a write.
    """
    links: list[Link] = []
    for tile in range(grid.tiles):
        for other in grid.neighbours(tile):
            if tile < other:
                links += wires.links(grid, tile, other, len(links))
    name = f"{grid.rows} × {grid.columns} {'torus' if grid.wrap else 'mesh'}"
    return with_memory(Topology(name, grid.tiles, grid.tiles, tuple(links), grid.route), memory)


def with_memory(network: Topology, memory: PortMemory | None) -> Topology:
    """Network with memories at some of its devices; one node for each port follows all other nodes."""
    if memory is None:
        return network
    if not memory.ports:
        raise PhazeError("memory: ports must name at least one tile")
    links = []
    for number, tile in enumerate(memory.ports):
        if not 0 <= tile < network.devices:
            raise PhazeError(f"memory: ports must be tiles from 0 to {network.devices - 1}, got {tile}")
        node, resource = network.nodes + number, len(network.links) + number
        # Both directions of a port exclude each other.
        for a, b in ((node, tile), (tile, node)):
            links.append(Link(a, b, memory.bandwidth_bytes_per_s, memory.response_s, resource, True))
    return replace(
        network, nodes=network.nodes + len(memory.ports), links=(*network.links, *links),
        router=partial(_route, network.router, network.nodes, memory.ports), _legs={},
    )  # fmt: skip


def nearest_memory(grid: TileGrid, memory: PortMemory, tile: int) -> int:
    """Node of the memory nearest to a tile by number of hops; ties go to the first."""
    return grid.tiles + min(range(len(memory.ports)), key=lambda k: (grid.distance(memory.ports[k], tile), k))


def _route(router: Router, nodes: int, ports: tuple[int, ...], source: int, target: int) -> list[int]:
    """Nodes on the route; either end may be a memory."""
    if source == target:
        return [source]
    first = ports[source - nodes] if source >= nodes else source
    last = ports[target - nodes] if target >= nodes else target
    path = router(first, last)
    return [source] * (source != first) + [*path] + [target] * (target != last)


def walk(at: int, to: int, length: int, wrap: bool) -> list[int]:
    """Positions from `at` (excluded) to `to` along an axis, in the shorter direction on a torus."""
    ahead = (to - at) % length
    if not wrap:
        step, count = (1, to - at) if to >= at else (-1, at - to)
    # Ties go forward, so that every pair has one route.
    elif ahead <= length - ahead:
        step, count = 1, ahead
    else:
        step, count = -1, length - ahead
    return [(at + step * k) % length for k in range(1, count + 1)]


def torus(
    shape: Sequence[int], bandwidth_bytes_per_s: float, latency_s: float = 0.0, *, wrap: bool = True
) -> Topology:
    """Torus, or mesh without `wrap`; devices are numbered with the last dimension fastest."""
    if not shape or min(shape) < 1:
        raise PhazeError(f"torus: every dimension must have ≥ 1 devices, got {list(shape)}")
    box = tuple(shape)
    links = tuple(
        Link(source, target, bandwidth_bytes_per_s, latency_s)
        for source, others in enumerate(_neighbours(box, wrap=wrap))
        for target in dict.fromkeys(others)
        if target not in (source, -1)
    )
    name = " × ".join(map(str, box)) + (" torus" if wrap else " mesh")
    return Topology(name, prod(box), prod(box), links, partial(_along_axes, box, wrap))


def _neighbours(shape: tuple[int, ...], *, wrap: bool) -> list[list[int]]:
    """Previous and next device along every axis, for each device; -1 at the edge of a mesh."""
    numbers = np.arange(prod(shape)).reshape(shape)
    shifted = []
    for axis, step in itertools.product(range(len(shape)), (-1, 1)):
        moved = np.roll(numbers, -step, axis)
        if not wrap:
            # np.roll wraps around; at the edge of a mesh there is no neighbour.
            np.moveaxis(moved, axis, 0)[0 if step < 0 else -1] = -1
        shifted.append(moved.ravel())
    return [list(map(int, row)) for row in zip(*shifted, strict=True)]


def _along_axes(shape: tuple[int, ...], wrap: bool, source: int, target: int) -> list[int]:
    """Devices on the route, last dimension first (XY routing); the shorter direction on a torus."""
    path, stride = [source], 1
    for side in reversed(shape):
        at, to = source // stride % side, target // stride % side
        # Number of the device at position 0 of this axis, with all other coordinates as they are.
        here = path[-1] - at * stride
        path += [here + step * stride for step in walk(at, to, side, wrap)]
        stride *= side
    return path
