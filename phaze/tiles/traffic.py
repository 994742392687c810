"""Messages of tile groups: over every link of a chip, or aggregated between the groups of a large one.

A memory access is one message per port, between the port and its farthest tile, with the bytes of all tiles.
A collective sends the bytes of all rounds of a ring in one round.

Aggregated, a grid of any size is a mesh of cells, at least two by two in the block of every stage (PALM,
III.A and IV.A: virtual tiles, with formulas instead of the links inside a group). A link between two cells
has the bandwidth of all links that it stands for. A collective is one message that occupies all links inside
its block for the time that it takes alone. That time is simulated link by link on one of the equal parts of
the block, shrunk if it is large.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, pairwise

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.cost.network.mesh import TileGrid
from phaze.cost.network.messages import Message, Plan, then
from phaze.cost.network.network import rounds
from phaze.cost.network.topology import Link, Topology
from phaze.tiles.blocks import AxisGroups, Sides, TileBlock
from phaze.tiles.chip import Chip
from phaze.tiles.exchanges import alone_s, group_plan
from phaze.tiles.placement import Tiles
from phaze.tiles.ports import PortUse, port_uses
from phaze.tiles.steps import GroupCollective
from phaze.tiles.tile import Access


class TileTraffic(ABC):
    """Network of a chip, and the messages of its tile groups on it."""

    @property
    @abstractmethod
    def topology(self) -> Topology:
        """Network of all messages that have been made."""

    @abstractmethod
    def nodes(self, tiles: Sequence[int]) -> tuple[int, ...]:
        """Nodes that send and receive the tensors between a group and others."""

    @abstractmethod
    def accessed(self, tiles: Tiles, access: Access) -> Plan:
        """Messages for the memory reads and writes of every tile of a group: one per port and direction."""

    @abstractmethod
    def exchanged(self, tiles: Tiles, collectives: Sequence[GroupCollective]) -> Plan:
        """Messages of consecutive collectives inside a group."""

    @abstractmethod
    def place(self, node: int) -> tuple[float, float] | None:
        """Row and column of a node on the chip; None if it is no place of tiles."""

    @abstractmethod
    def links(self, topology: Topology) -> Bools:
        """Mask of the resources of the network that are links of the chip, (resources,)."""

    @abstractmethod
    def port_places(self, topology: Topology) -> dict[int, tuple[float, float]]:
        """Row and column of memory ports, by their resource in the network."""


@dataclass(frozen=True, eq=False)
class LinkTraffic(TileTraffic):
    """Messages over every link of a chip."""

    chip: Chip

    @property
    def topology(self) -> Topology:
        """Network of the chip."""
        return self.chip.topology

    def links(self, topology: Topology) -> Bools:
        """Mask of the resources that are no memory ports."""
        return ~topology.buffers

    def port_places(self, topology: Topology) -> dict[int, tuple[float, float]]:
        """Row and column of every port."""
        ends = (
            (topology.resource_of[k], min(link.source, link.target))
            for k, link in enumerate(topology.links)
            if link.buffered
        )
        return {resource: self.chip.grid.place(tile) for resource, tile in ends}

    def nodes(self, tiles: Sequence[int]) -> tuple[int, ...]:
        """Tiles of the group."""
        return tuple(tiles)

    def accessed(self, tiles: Tiles, access: Access) -> Plan:
        """Messages between each port that the group uses and the farthest of its tiles."""
        plan, (read, write) = [], access
        for port, (far, users) in _ports(self.chip, tiles).items() if read or write else ():
            plan += [Message(port, far, read * users)] if read else []
            plan += [Message(far, port, write * users)] if write else []
        return tuple(plan)

    def exchanged(self, tiles: Tiles, collectives: Sequence[GroupCollective]) -> Plan:  # noqa: ARG002
        """Messages between the members of all groups."""
        return then(
            *(
                group_plan(self.topology, exchange.kind, exchange.groups, exchange.size_bytes, self.node)
                for exchange in collectives
            )
        )

    @property
    def node(self) -> int:
        """Devices of a node, inside which collectives run first; 1: no nodes."""
        return 1 if self.chip.network is None else self.chip.network.node

    def place(self, node: int) -> tuple[float, float] | None:
        """Row and column of a tile."""
        return self.chip.grid.place(node) if node < self.chip.grid.tiles else None


@lru_cache(maxsize=1024)
def _ports(chip: Chip, tiles: Tiles) -> dict[int, tuple[int, int]]:
    """Memory ports that a group uses, each with its farthest tile and the number of its tiles."""
    hops = chip.topology.hops
    return {
        port: (max(users, key=lambda tile: hops(port, tile)), len(users))
        for port, users in chip.users(tiles).items()
    }


@dataclass(eq=False)
class GroupTraffic(TileTraffic):
    """Messages on a mesh of cells, with formulas inside the blocks of the stages."""

    chip: Chip
    blocks: tuple[TileBlock, ...]
    """Blocks of all stages."""
    _sources: dict[tuple[Tiles, GroupCollective], tuple[int, int, float]] = field(default_factory=dict)
    """First and last node, and bandwidth, of the route of every collective."""

    @cached_property
    def cells(self) -> TileGrid:
        """Cells in rows and columns."""
        return TileGrid(len(self.cuts[0]) - 1, len(self.cuts[1]) - 1, self.chip.grid.wrap)

    @cached_property
    def cuts(self) -> tuple[list[int], list[int]]:
        """First row of every row of cells and the end, and the same for columns."""
        cuts = {0, self.chip.grid.rows}, {0, self.chip.grid.columns}
        for block in self.blocks:
            for axis, first, side in ((0, block.row, block.rows), (1, block.column, block.columns)):
                cuts[axis].update((first, first + side // 2, first + side))
        return sorted(cuts[0]), sorted(cuts[1])

    def links(self, topology: Topology) -> Bools:
        """Mask of the resources that are links between cells."""
        mask = np.zeros(topology.resources, np.bool_)
        mask[[topology.resource_of[number] for number in range(len(self._mesh))]] = True
        return mask

    def port_places(self, topology: Topology) -> dict[int, tuple[float, float]]:
        """Row and column of the middle of every cell with ports."""
        ends = (
            (topology.resource_of[k], self.place(self._ports[link.source][0]))
            for k, link in enumerate(topology.links)
            if link.buffered and link.source in self._ports
        )
        return {resource: place for resource, place in ends if place is not None}

    def nodes(self, tiles: Sequence[int]) -> tuple[int, ...]:
        """Cells of the block, row by row."""
        block = _block(tiles)
        rows, columns = (
            range(bisect_right(cuts, first) - 1, bisect_right(cuts, first + side - 1))
            for cuts, first, side in zip(self.cuts, (block.row, block.column), block.sides, strict=True)
        )
        return tuple(self.cells.tile(row, column) for row in rows for column in columns)

    def sides(self, cell: int) -> Sides:
        """Rows and columns of tiles in a cell."""
        places = self.cells.place(cell)
        rows, columns = (cuts[at + 1] - cuts[at] for cuts, at in zip(self.cuts, places, strict=True))
        return rows, columns

    def place(self, node: int) -> tuple[float, float] | None:
        """Row and column of the middle of a cell."""
        if node >= self.cells.tiles:
            return None
        row, column = (
            (cuts[at] + cuts[at + 1] - 1) / 2
            for cuts, at in zip(self.cuts, self.cells.place(node), strict=True)
        )
        return row, column

    def _cells_of(self, rows: Ints, columns: Ints) -> Ints:
        """Cells of tiles."""
        down, across = (
            np.searchsorted(cuts, places, side="right") - 1
            for cuts, places in zip(self.cuts, (rows, columns), strict=True)
        )
        return np.asarray(down * self.cells.columns + across, np.int64)

    @cached_property
    def memories(self) -> dict[TileBlock, list[tuple[int, PortUse]]]:
        """Memories that each block uses, with the node of the ports of a cell.

        The next node is the entry to the links of the tiles.
        """
        node, memories = self.cells.tiles, {}
        for block in dict.fromkeys(self.blocks):
            uses = [*port_uses(self.chip, block, self._cells_of)]
            memories[block] = [(node + 2 * k, use) for k, use in enumerate(uses)]
            node += 2 * len(uses)
        return memories

    @cached_property
    def _ports(self) -> dict[int, tuple[int, int]]:
        """Cell and first resource by node of a memory: from and to the links of the tiles, and the ports."""
        used = [(node, use.cell) for uses in self.memories.values() for node, use in uses]
        number = {cell: k for k, cell in enumerate(dict.fromkeys(cell for _, cell in used))}
        return {node: (cell, len(self._mesh) + 3 * number[cell]) for node, cell in used}

    def accessed(self, tiles: Tiles, access: Access) -> Plan:
        """Messages between each cell with ports that the block uses and the farthest of its cells."""
        plan, (read, write) = [], access
        for node, use in self.memories[_block(tiles)] if read or write else ():
            plan += [Message(node, use.far, read * use.users)] if read else []
            plan += [Message(use.far, node, write * use.users)] if write else []
        return tuple(plan)

    def exchanged(self, tiles: Tiles, collectives: Sequence[GroupCollective]) -> Plan:
        """One message per collective, which occupies all links inside the block of the group."""
        return then(*(self._exchange(tiles, exchange) for exchange in collectives))

    def _exchange(self, tiles: Tiles, exchange: GroupCollective) -> Plan:
        groups = _axis_groups(exchange.groups)
        width = groups.width
        sent_bytes = len(tiles) * rounds(exchange.kind, width) / width * exchange.size_bytes
        if not sent_bytes:
            return ()
        key = tiles, exchange
        if key not in self._sources:
            seconds = alone_s(self.chip.wires, exchange.kind, groups, exchange.size_bytes)
            last = self._inside[_block(tiles)][-1][0]
            self._sources[key] = self._first_source + len(self._sources), last, sent_bytes / seconds
        source, last, _ = self._sources[key]
        return (Message(source, last, sent_bytes),)

    @cached_property
    def _inside(self) -> dict[TileBlock, list[tuple[int, int]]]:
        """Chain of nodes for each block, each after the first behind one link between cells of the block."""
        chains, node = {}, self.cells.tiles + 2 * len(self._ports)
        for block in dict.fromkeys(self.blocks):
            cells = set(self.nodes(block))
            inside = [k for k, link in enumerate(self._mesh) if {link.source, link.target} <= cells]
            # Accesses of a cell to its own ports share links with the collectives, too.
            entries = {entry for cell, entry in self._ports.values() if cell in cells}
            inside += [entry + k for entry in sorted(entries) for k in (0, 1)]
            chains[block] = [(node + k, resource) for k, resource in enumerate((-1, *inside))]
            node += len(chains[block])
        return chains

    @cached_property
    def _mesh(self) -> tuple[Link, ...]:
        """Links between neighbouring cells, each its own resource, in both directions."""
        links: list[Link] = []
        for cell in range(self.cells.tiles):
            for other in self.cells.neighbours(cell):
                bandwidth, latency_s = self._wire(cell, other)
                links.append(Link(cell, other, bandwidth, latency_s, len(links)))
        return tuple(links)

    def _wire(self, cell: int, other: int) -> tuple[float, float]:
        """Bandwidth and latency between two neighbouring cells: of all lanes, and from middle to middle."""
        wires, grid = self.chip.wires, self.chip.grid
        axis = int(self.cells.place(cell)[0] == self.cells.place(other)[0])
        lanes = self.sides(cell)[1 - axis]
        cuts, side = self.cuts[axis], (grid.rows, grid.columns)[axis]
        places = (self.cells.place(node)[axis] for node in (cell, other))
        low, high = sorted((cuts[at] + cuts[at + 1]) // 2 for at in places)
        hops = high - low
        if grid.wrap and side - hops < hops:
            return lanes * wires.bandwidth_bytes_per_s, (side - hops) * wires.latency_s
        crossed = 0 if wires.block is None else high // wires.block[axis] - low // wires.block[axis]
        between = wires.between_bandwidth_bytes_per_s if crossed else None
        between_s = wires.latency_s if wires.between_latency_s is None else wires.between_latency_s
        latency_s = (hops - crossed) * wires.latency_s + crossed * between_s
        return lanes * (between or wires.bandwidth_bytes_per_s), latency_s

    @property
    def topology(self) -> Topology:
        """Cells, then memories with their entries, then the routes of the collectives made so far."""
        links = [*self._mesh, *self._port_links()]
        for inside in self._inside.values():
            links += [
                Link(before, node, float("inf"), 0.0, resource)
                for (before, _), (node, resource) in pairwise(inside)
            ]
        for source, last, bandwidth in self._sources.values():
            links.append(Link(source, self._first_of[last], bandwidth))
        nodes = self._first_source + len(self._sources)
        name = f"{self.chip.grid.rows} × {self.chip.grid.columns} tiles in cells"
        return Topology(name, self.cells.tiles, nodes, tuple(links), self._route)

    @property
    def _first_source(self) -> int:
        """Node of the first collective."""
        return self.cells.tiles + 2 * len(self._ports) + sum(map(len, self._inside.values()))

    @cached_property
    def _first_of(self) -> dict[int, int]:
        """First node of the chain of every block, by its last node."""
        return {inside[-1][0]: inside[0][0] for inside in self._inside.values()}

    def _port_links(self) -> Iterator[Link]:
        """Yield the links of the memories to their entries, and from there to the cells, both directions."""
        memory, wires = self.chip.memory, self.chip.wires
        for node, use in chain.from_iterable(self.memories.values()):
            assert memory is not None
            cell, entry = self._ports[node]
            for a, b in ((node, node + 1), (node + 1, node)):
                bandwidth = use.ports * memory.bandwidth_bytes_per_s
                yield Link(a, b, bandwidth, memory.response_s, entry + 2, True)
            between = wires.between_bandwidth_bytes_per_s if use.crosses else None
            bandwidth = use.ports * (between or wires.bandwidth_bytes_per_s)
            yield Link(node + 1, cell, bandwidth, 0.0, entry)
            yield Link(cell, node + 1, bandwidth, 0.0, entry + 1)

    def _route(self, source: int, target: int) -> list[int]:
        """Nodes on a route: through the mesh of cells, or along the chain of a collective."""
        cells = self.cells.tiles
        if target in self._first_of and source != target:
            return [source, *range(self._first_of[target], target + 1)]
        first, last = (self._ports[node][0] if node in self._ports else node for node in (source, target))
        path = self.cells.route(first, last) if max(first, last) < cells else [source]
        out = (source, source + 1) if source != first else ()
        return [*out, *path, *((target + 1, target) if target != last else ())]


def _axis_groups(groups: Sequence[Tiles]) -> AxisGroups:
    assert isinstance(groups, AxisGroups)
    return groups


def _block(tiles: Sequence[int]) -> TileBlock:
    assert isinstance(tiles, TileBlock)
    return tiles


def traffic_of(chip: Chip, groups: Sequence[Tiles]) -> TileTraffic:
    """TileTraffic of tile groups: aggregated if they are blocks, else over every link."""
    blocks = tuple(group for group in groups if isinstance(group, TileBlock))
    return GroupTraffic(chip, blocks) if blocks else LinkTraffic(chip)
