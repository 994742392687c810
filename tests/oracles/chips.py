"""Chips of tiles: PALM's wafer without its file, chips with less bandwidth, groups on a rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import Grid, Memory, Wires, mesh
from phaze.cost.network.topology import Topology
from phaze.tiles.chip import Chip
from phaze.tiles.placement import Placed, Tiles, block, compact


def wafer(rows: int = 5, columns: int = 4, latency_s: float = 1e-9) -> tuple[Grid, Topology, Memory]:
    """Return PALM's wafer (Table VI): 4 × 4 cores in each of 5 × 4 tiles, memories at west and east edges."""
    grid = Grid(rows * 4, columns * 4)
    wires = Wires(1024e9, latency_s, (4, 4), 256e9)
    memory = Memory(grid.edge(), 256e9)
    return grid, mesh(grid, wires, memory), memory


def slower(chip: Chip, part: Literal["sram", "links", "dram"], factor: float = 0.5) -> Chip:
    """Return a chip of which one bandwidth is multiplied by a factor."""
    if part == "sram":
        bandwidth = chip.tile.sram_bandwidth_bytes_per_s * factor
        return replace(chip, tile=replace(chip.tile, sram_bandwidth_bytes_per_s=bandwidth))
    if part == "links":
        between = chip.wires.between_bandwidth_bytes_per_s
        wires = replace(
            chip.wires,
            bandwidth_bytes_per_s=chip.wires.bandwidth_bytes_per_s * factor,
            between_bandwidth_bytes_per_s=between and between * factor,
        )
        return replace(chip, wires=wires)
    if chip.memory is None:
        raise PhazeError(f"chip {chip.name}: has no memory whose bandwidth could change")
    memory = replace(chip.memory, bandwidth_bytes_per_s=chip.memory.bandwidth_bytes_per_s * factor)
    return replace(chip, memory=memory)


def groups(
    grid: Grid, tiles: Sequence[int], tensor: int, placed: Placed = "near"
) -> tuple[tuple[Tiles, ...], tuple[Tiles, ...]]:
    """Return the tensor-parallel and the data-parallel groups of a stage on a rectangle of tiles.

    Near, a tensor-parallel group is the rectangle with the shortest sides, and a data-parallel one has the
    tiles at one position of every such rectangle; far, the two change places.
    """
    if placed not in get_args(Placed):
        raise PhazeError(f"mapping: groups must be one of {', '.join(get_args(Placed))}, got {placed}")
    corner, rows, columns = _rectangle(grid, tiles)
    if tensor < 1 or len(tiles) % tensor:
        raise PhazeError(f"mapping: tensor must divide the {len(tiles)} tiles of a stage, got {tensor}")
    size = tensor if placed == "near" else len(tiles) // tensor
    down, across = compact(rows, columns, size)
    close = tuple(
        block(grid, (corner[0] + row, corner[1] + column), (down, across))
        for row in range(0, rows, down)
        for column in range(0, columns, across)
    )
    apart = tuple(zip(*close, strict=True))
    return (close, apart) if placed == "near" else (apart, close)


def _rectangle(grid: Grid, tiles: Sequence[int]) -> tuple[tuple[int, int], int, int]:
    """Return the corner, rows and columns of tiles; raises `PhazeError` where they are no rectangle."""
    places = [grid.place(tile) for tile in tiles]
    top, left = min(row for row, _ in places), min(column for _, column in places)
    rows = max(row for row, _ in places) - top + 1
    columns = max(column for _, column in places) - left + 1
    if sorted(tiles) != sorted(block(grid, (top, left), (rows, columns))):
        raise PhazeError("mapping: groups need a stage whose tiles are a rectangle; name them yourself")
    return (top, left), rows, columns
