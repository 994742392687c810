"""Where stages and communication groups lie on a grid of tiles (PALM, V.B, Figure 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import Grid

Placed = Literal["near", "far"]
"""Tensor-parallel groups as close as possible (PALM's comm1), or the data-parallel ones (comm2)."""

Tiles = tuple[int, ...]


def line(grid: Grid, stages: int) -> tuple[Tiles, ...]:
    """Return the tiles of every stage: as many whole rows or parts of a row as a stage has tiles, top down.

    Activations pass from row to row, everything inside a stage along rows.
    """
    size, left = divmod(grid.tiles, max(stages, 1))
    if stages < 1 or left or (size % grid.columns and grid.columns % size):
        raise PhazeError(
            f"mapping: line cannot place {stages} stages on {grid.rows} × {grid.columns} tiles: every stage "
            "must have whole rows or an equal part of a row"
        )
    return tuple(tuple(range(first, first + size)) for first in range(0, grid.tiles, size))


def s_shaped(grid: Grid, rows: int, columns: int) -> tuple[Tiles, ...]:
    """Return the tiles of every stage: blocks of rows × columns, every other row of blocks backward.

    Blocks that follow each other are neighbours.
    """
    if rows < 1 or columns < 1 or grid.rows % rows or grid.columns % columns:
        raise PhazeError(
            f"mapping: blocks of {rows} × {columns} must fill {grid.rows} × {grid.columns} tiles"
        )
    across = grid.columns // columns
    blocks = []
    for down in range(grid.rows // rows):
        order = range(across) if down % 2 == 0 else range(across - 1, -1, -1)
        blocks += [block(grid, (down * rows, at * columns), (rows, columns)) for at in order]
    return tuple(blocks)


def own(grid: Grid, stages: Sequence[Sequence[int]]) -> tuple[Tiles, ...]:
    """Return a user's mapping: tiles of every stage; raises `PhazeError` where a tile has two stages."""
    used: dict[int, int] = {}
    for stage, tiles in enumerate(stages):
        if not tiles:
            raise PhazeError(f"mapping: stage {stage} must have at least one tile")
        for tile in tiles:
            if not 0 <= tile < grid.tiles:
                raise PhazeError(
                    f"mapping: stage {stage}: a tile must be from 0 to {grid.tiles - 1}, got {tile}"
                )
            if tile in used:
                raise PhazeError(f"mapping: tile {tile} must have one stage, got {used[tile]} and {stage}")
            used[tile] = stage
    return tuple(tuple(tiles) for tiles in stages)


def block(grid: Grid, corner: tuple[int, int], shape: tuple[int, int]) -> Tiles:
    """Return the tiles of a rectangle (rows, columns) below and right of a corner (row, column)."""
    return tuple(
        grid.tile(corner[0] + row, corner[1] + column)
        for row in range(shape[0])
        for column in range(shape[1])
    )


def compact(rows: int, columns: int, size: int) -> tuple[int, int]:
    """Return the sides of the rectangle of so many tiles that fills another with the shortest sides."""
    fitting = [
        (down, size // down)
        for down in range(1, size + 1)
        if size % down == 0 and rows % down == 0 and columns % (size // down) == 0
    ]
    if not fitting:
        raise PhazeError(
            f"mapping: groups of {size} tiles cannot fill {rows} × {columns} tiles as rectangles"
        )
    return min(fitting, key=lambda sides: (sum(sides), sides))
