"""Collectives of tile groups as messages, and their time alone on the links of a block of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from phaze.cost.network.collectives import by_level, by_node, collective, ring
from phaze.cost.network.delivery import deliver
from phaze.cost.network.mesh import TileGrid, Wires, mesh
from phaze.cost.network.messages import Plan, together
from phaze.cost.network.network import Collective, rounds
from phaze.cost.network.topology import Topology
from phaze.tiles.blocks import AxisGroups, Sides, TileBlock
from phaze.tiles.placement import Tiles
from phaze.tiles.placement import ring as ring_order

MOST_ALONE = 4096
"""Largest number of tiles whose collective is simulated link by link; a larger part of a block is shrunk."""
LEAST_MEMBERS = 6
"""Members per side to which a shrunk group is reduced at most, of the parity of the group."""


def group_plan(
    topology: Topology, kind: Collective, groups: Sequence[Tiles], size_bytes: float, node: int = 1
) -> Plan:
    """Messages of a collective that runs concurrently in several groups, all rounds of a ring as one.

    An all-to-all is one message for each pair of tiles. With nodes of several devices, rings run inside nodes
    first.
    """
    if kind == "all_to_all":
        return together(*(collective(kind, group, size_bytes) for group in groups))
    if node > 1:
        nodes = (by_node(sorted(group), node) for group in groups)
        return together(*(by_level(topology, kind, rows, size_bytes, 1) for rows in nodes))
    return together(*(ring(topology, kind, group, size_bytes, 1) for group in groups))


def alone_s(wires: Wires, kind: Collective, groups: AxisGroups, size_bytes: float) -> float:
    """Time in s of a collective of groups that has the links of their block to itself.

    The time of the slowest superblock: these differ only by where they cross the border of a chip.
    """
    block = wires.block or (1, 1)
    offsets = {(row % block[0], column % block[1]) for row, column in groups.corners}
    return max(
        _alone_s(wires, offset, groups.inner, groups.outer, kind, size_bytes) for offset in sorted(offsets)
    )


@lru_cache(maxsize=4096)
def _alone_s(
    wires: Wires, offset: Sides, inner: Sides, outer: Sides, kind: Collective, size_bytes: float
) -> float:
    """Time in s of the collective of one superblock, at an offset from the corner of a chip."""
    few, small, shrunk = _shrunk(inner, outer)
    if (few, small) == (outer, inner):
        return _simulated_s(wires, offset, inner, outer, kind, size_bytes)
    # The shrunk group has the bytes and, by narrower links, the load of the whole one; latencies follow by
    # formula.
    width, fewer = prod(outer), prod(few)
    size_bytes *= (rounds(kind, width) / width) / (rounds(kind, fewer) / fewer)
    narrow = replace(wires, bandwidth_bytes_per_s=wires.bandwidth_bytes_per_s / shrunk, latency_s=0.0)
    if wires.between_bandwidth_bytes_per_s is not None:
        between = wires.between_bandwidth_bytes_per_s / shrunk
        narrow = replace(narrow, between_bandwidth_bytes_per_s=between, between_latency_s=0.0)
    seconds = _simulated_s(narrow, offset, small, few, kind, size_bytes)
    return seconds + rounds(kind, width) * wires.latency_s * _slowest_hops(inner, outer)


def _shrunk(inner: Sides, outer: Sides) -> tuple[Sides, Sides, int]:
    """Fewer members and smaller inner blocks, with at most `MOST_ALONE` tiles, and the factor of these."""
    few = list(outer)
    while prod(few) * prod(inner) > MOST_ALONE and max(few) > LEAST_MEMBERS + 1:
        axis = few.index(max(few))
        # Parity decides whether the members form a ring, and where a path ends.
        half = few[axis] // 2
        few[axis] = max(half - (half - outer[axis]) % 2, LEAST_MEMBERS + outer[axis] % 2)
    small, shrunk = inner, 1
    while prod(few) * prod(small) > MOST_ALONE:
        shrunk *= 2
        small = max(1, round(inner[0] / shrunk)), max(1, round(inner[1] / shrunk))
    return (few[0], few[1]), small, shrunk


def _slowest_hops(inner: Sides, outer: Sides) -> int:
    """Hops of the longest message of a ring: 1 around neighbours, else back from the end of a path."""
    down, across = outer
    closed = inner == (1, 1) and min(outer) > 1 and not (down % 2 and across % 2)
    back = (down - 1) * inner[0] + (down % 2) * (across - 1) * inner[1]
    return 1 if closed else max(back, inner[0] * (down > 1), inner[1] * (across > 1))


def _simulated_s(
    wires: Wires, offset: Sides, inner: Sides, outer: Sides, kind: Collective, size_bytes: float
) -> float:
    """Time in s of the collective of one superblock, simulated link by link on a mesh of its own."""
    rows, columns = offset[0] + inner[0] * outer[0], offset[1] + inner[1] * outer[1]
    grid = TileGrid(rows, columns)
    block = TileBlock(grid, *offset, inner[0] * outer[0], inner[1] * outer[1])
    groups = [ring_order(grid, tiles).order for tiles in AxisGroups(block, inner, outer)]
    topology = _mesh_of(grid, wires)
    return deliver(topology, group_plan(topology, kind, groups, size_bytes)).time_s


@lru_cache(maxsize=32)
def _mesh_of(grid: TileGrid, wires: Wires) -> Topology:
    return mesh(grid, wires)
