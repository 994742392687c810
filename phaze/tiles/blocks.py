"""Rectangles of tiles of any size, and the groups of tiles along the axes of parallelism inside them.

Rectangles and groups are not stored: a wafer has 753,972 tiles (WSE-2), and equal tiles act as one virtual
tile (PALM, IV.A).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeVar, overload

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import TileGrid

Sides = tuple[int, int]
"""Rows and columns."""
Axis = TypeVar("Axis", bound=str)
SPARED = 8
"""Smallest number of steps in a side of a block that does not fill the grid: up to an eighth is idle."""


@dataclass(frozen=True)
class TileBlock(Sequence[int]):
    """Rectangle of tiles in row-major order."""

    grid: TileGrid
    row: int
    """Row of the first tile."""
    column: int
    rows: int
    columns: int

    def __len__(self) -> int:
        """Number of tiles."""
        return self.rows * self.columns

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[int, ...]: ...
    def __getitem__(self, place: int | slice) -> int | tuple[int, ...]:
        """Tile at a place, or tiles at several."""
        if isinstance(place, slice):
            return tuple(self[k] for k in range(*place.indices(len(self))))
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        row, column = divmod(place % len(self), self.columns)
        return (self.row + row) * self.grid.columns + self.column + column

    @property
    def sides(self) -> Sides:
        """Rows and columns."""
        return self.rows, self.columns


@dataclass(frozen=True)
class AxisGroups(Sequence[tuple[int, ...]]):
    """Groups along one axis inside a block, each as a tuple of tiles in row-major order of its members.

    The block is cut into superblocks of `outer` × `inner` tiles: a group has one tile at the same place in
    each of its `outer` inner blocks.
    """

    block: TileBlock
    inner: Sides
    """Rows and columns of an inner block, whose tiles are in different groups."""
    outer: Sides
    """Inner blocks per column and row of a superblock: the members of a group."""

    @property
    def width(self) -> int:
        """Members of a group."""
        return prod(self.outer)

    @property
    def superblock(self) -> Sides:
        """Rows and columns of the tiles whose groups share links."""
        return self.inner[0] * self.outer[0], self.inner[1] * self.outer[1]

    def __len__(self) -> int:
        """Number of groups."""
        return len(self.block) // self.width

    @overload
    def __getitem__(self, place: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[tuple[int, ...], ...]: ...
    def __getitem__(self, place: int | slice) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
        """Group at a place, superblock after superblock."""
        if isinstance(place, slice):
            return tuple(self[k] for k in range(*place.indices(len(self))))
        if not 0 <= place < len(self):
            raise IndexError(place)
        (rows, columns), inner = self.superblock, self.inner
        number, inside = divmod(place, prod(inner))
        down, across = divmod(number, self.block.columns // columns)
        row = self.block.row + down * rows + inside // inner[1]
        column = self.block.column + across * columns + inside % inner[1]
        wide = self.block.grid.columns
        return tuple(
            (row + a * inner[0]) * wide + column + b * inner[1]
            for a in range(self.outer[0])
            for b in range(self.outer[1])
        )

    @cached_property
    def corners(self) -> tuple[Sides, ...]:
        """Row and column of the first tile of every superblock."""
        rows, columns = self.superblock
        block = self.block
        return tuple(
            (block.row + down, block.column + across)
            for down in range(0, block.rows, rows)
            for across in range(0, block.columns, columns)
        )


def compact(rows: int, columns: int, size: int) -> Sides:
    """Sides of the squarest rectangle of `size` tiles that divides a rectangle of rows × columns.

    Raises `PhazeError` if there is none.
    """
    fitting = [
        (down, size // down)
        for down in range(1, min(rows, size) + 1)
        if size % down == 0 and rows % down == 0 and columns % (size // down) == 0
    ]
    if not fitting:
        raise PhazeError(
            f"mapping: groups of {size} tiles cannot fill {rows} × {columns} tiles as rectangles"
        )
    return min(fitting, key=lambda sides: (sum(sides), sides))


def groups_in_block(block: TileBlock, axes: Mapping[Axis, int]) -> dict[Axis, AxisGroups]:
    """Groups of a block along each axis; groups along the last axis are rectangles of adjacent tiles."""
    inner, (rows, columns) = (1, 1), block.sides
    groups = {}
    for axis, width in reversed(list(axes.items())):
        outer = compact(rows, columns, width)
        groups[axis] = AxisGroups(block, inner, outer)
        inner = inner[0] * outer[0], inner[1] * outer[1]
        rows, columns = rows // outer[0], columns // outer[1]
    return groups


def stage_blocks(
    grid: TileGrid, stages: int, preferred: Sides | None = None, parts: int = 1
) -> tuple[TileBlock, ...]:
    """Blocks of the stages along an S: those that fill the grid, else the largest ones that it has room for.

    Blocks that fill the grid must have a multiple of `parts` tiles. Of several shapes the `preferred` one is
    taken, or the squarest. In a grid that blocks cannot fill, sides are multiples of a power of two, so that
    groups can divide them, and at most an eighth of a side is idle. Raises `PhazeError` if there are more
    stages than tiles.
    """
    _check_stages(grid, stages)
    size, remainder = divmod(grid.tiles, stages)
    shapes = [
        (rows, size // rows)
        for rows in range(1, size + 1)
        if not remainder
        and size % parts == 0
        and size % rows == 0
        and grid.rows % rows == 0
        and grid.columns % (size // rows) == 0
    ]
    if shapes:
        rows, columns = min(shapes, key=lambda sides: (sides != preferred, sum(sides)))
    else:
        rows, columns = _largest(grid, stages)
    return s_order(grid, rows, columns)[:stages]


def stage_rows(grid: TileGrid, stages: int) -> tuple[TileBlock, ...]:
    """Blocks of the stages from the top down: whole rows, or equal parts of a row.

    Traffic inside a part of a row stays in that row. In a grid that stages cannot fill, rows and columns stay
    idle. Raises `PhazeError` if there are more stages than tiles.
    """
    _check_stages(grid, stages)
    size, remainder = divmod(grid.tiles, stages)
    if not remainder and not (size % grid.columns and grid.columns % size):
        rows, columns = max(1, size // grid.columns), min(size, grid.columns)
    elif stages <= grid.rows:
        rows, columns = _divisible(grid.rows // stages), _divisible(grid.columns)
    else:
        rows, columns = 1, _divisible(grid.columns // -(-stages // grid.rows))
    across = grid.columns // columns
    places = (divmod(stage, across) for stage in range(stages))
    return tuple(TileBlock(grid, down * rows, at * columns, rows, columns) for down, at in places)


def _check_stages(grid: TileGrid, stages: int) -> None:
    if not 1 <= stages <= grid.tiles:
        raise PhazeError(
            f"tiled: stages must be from 1 to {grid.tiles:,}, the tiles of the system, got {stages}"
        )


def s_order(grid: TileGrid, rows: int, columns: int) -> tuple[TileBlock, ...]:
    """Blocks of rows × columns, with every other row of blocks reversed; consecutive ones are neighbours."""
    across = grid.columns // columns
    blocks = []
    for down in range(grid.rows // rows):
        order = range(across) if down % 2 == 0 else range(across - 1, -1, -1)
        blocks += [TileBlock(grid, down * rows, at * columns, rows, columns) for at in order]
    return tuple(blocks)


def _largest(grid: TileGrid, stages: int) -> Sides:
    """Sides of the largest block that fits the grid once per stage; the squarest in a tie."""
    sides = [
        (_divisible(grid.rows // down), _divisible(grid.columns // -(-stages // down)))
        for down in range(1, min(stages, grid.rows) + 1)
        if -(-stages // down) <= grid.columns
    ]
    return max(sides, key=lambda shape: (prod(shape), -sum(shape)))


def _divisible(side: int) -> int:
    """Largest multiple of a power of two in a side; the power is the largest up to an eighth of the side."""
    step = 1 << max(0, (side // SPARED).bit_length() - 1)
    return side // step * step
