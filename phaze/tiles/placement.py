"""Placement of stages and their groups on a grid of tiles, and the ring order of each group.

Stages are placed in rows, in blocks along an S, or on user-specified tiles. The tiles of a group along one
axis of parallelism are close together or far apart (PALM, V.B, Figure 8). The order of a group is a ring of
neighbours if one exists, else a path with a long way back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import TileGrid
from phaze.tiles.blocks import TileBlock, compact, groups_in_block, s_order, stage_rows
from phaze.tiles.operators import TileAxis

Placed = Literal["near", "far"]
"""Groups placed on the closest tiles: tensor-parallel (near, PALM's comm1) or data-parallel (far, comm2)."""

Tiles = tuple[int, ...] | TileBlock
"""Tiles of a group: listed, or a block of any size."""
STEPS = 200_000
"""Maximum number of steps of the search for a ring."""


def line(grid: TileGrid, stages: int) -> tuple[Tiles, ...]:
    """Tiles of each stage: whole rows, or equal parts of a row, from the top down."""
    return tuple(map(tuple, stage_rows(grid, stages)))


def s_shaped(grid: TileGrid, rows: int, columns: int) -> tuple[Tiles, ...]:
    """Tiles of each stage: blocks of rows × columns, with every other row of blocks reversed.

    Consecutive blocks are neighbours.
    """
    if rows < 1 or columns < 1 or grid.rows % rows or grid.columns % columns:
        raise PhazeError(
            f"mapping: blocks of {rows} × {columns} must fill {grid.rows} × {grid.columns} tiles"
        )
    return tuple(map(tuple, s_order(grid, rows, columns)))


def in_turn(grid: TileGrid, sizes: Sequence[int], *, reverse: bool) -> tuple[Tiles, ...]:
    """Tiles of each stage of a given size, row by row; with `reverse`, every other row runs backwards.

    Raises `PhazeError` if the grid has fewer tiles.
    """
    if sum(sizes) > grid.tiles:
        raise PhazeError(
            f"mapping: stages must have at most the {grid.tiles} tiles of the system, got {sum(sizes)}"
        )
    order = snake(grid, range(grid.tiles)) if reverse else tuple(range(grid.tiles))
    return tuple(order[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True))


def own(grid: TileGrid, stages: Sequence[Sequence[int]]) -> tuple[Tiles, ...]:
    """Check a user-specified mapping and return the tiles of each stage.

    Raises `PhazeError` for a stage without tiles, a tile outside the grid, or a tile with two stages.
    """
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


def block(grid: TileGrid, corner: tuple[int, int], shape: tuple[int, int]) -> Tiles:
    """Tiles of a rectangle (rows, columns) with its top left corner at (row, column)."""
    return tuple(
        grid.tile(corner[0] + row, corner[1] + column)
        for row in range(shape[0])
        for column in range(shape[1])
    )


@dataclass(frozen=True)
class Ring:
    """Order in which the tiles of a group pass messages on."""

    order: tuple[int, ...]
    closed: bool
    """True if consecutive tiles are neighbours, including the last and the first."""


def ring(grid: TileGrid, tiles: Sequence[int]) -> Ring:
    """Ring over tiles: around a rectangle with an even side, grown by pairs, or found by search.

    Without a ring of neighbours, the order is a path of neighbours with a long way back from the last tile to
    the first. Without a path (or if the search reaches its limit), it is row by row, with every other row
    reversed.
    """
    chosen = tuple(tiles)
    if len(chosen) <= 2:
        return Ring(chosen, len(chosen) < 2 or chosen[1] in grid.neighbours(chosen[0]))
    closed_order = _around_rectangle(grid, chosen) or _grown(grid, chosen) or _search(grid, chosen, True)
    if closed_order:
        return Ring(closed_order, True)
    return Ring(_search(grid, chosen, False) or snake(grid, chosen), False)


def snake(grid: TileGrid, tiles: Sequence[int]) -> tuple[int, ...]:
    """Order tiles row by row, with every other row from right to left."""
    rows: dict[int, list[int]] = {}
    for tile in sorted(tiles):
        rows.setdefault(tile // grid.columns, []).append(tile)
    ordered = [rows[row] for row in sorted(rows)]
    return tuple(tile for k, row in enumerate(ordered) for tile in (row[::-1] if k % 2 else row))


def _around_rectangle(grid: TileGrid, tiles: Sequence[int]) -> tuple[int, ...] | None:
    """Ring through all tiles of a rectangle with an even side; None for any other set of tiles."""
    places = [grid.place(tile) for tile in tiles]
    top, first_column = min(row for row, _ in places), min(column for _, column in places)
    rows = max(row for row, _ in places) - top + 1
    columns = max(column for _, column in places) - first_column + 1
    if rows * columns != len(tiles) or min(rows, columns) < 2:
        return None
    if rows % 2 == 0:
        return tuple(grid.tile(top + row, first_column + column) for row, column in _comb(rows, columns))
    if columns % 2 == 0:
        return tuple(grid.tile(top + row, first_column + column) for column, row in _comb(columns, rows))
    return None


def _comb(even: int, other: int) -> list[tuple[int, int]]:
    """Ring over a rectangle with an even number of rows: a snake, closed by the first column."""
    outward = [
        (a, b) for a in range(even) for b in (range(1, other) if a % 2 == 0 else range(other - 1, 0, -1))
    ]
    return outward + [(a, 0) for a in range(even - 1, -1, -1)]


def _grown(grid: TileGrid, tiles: tuple[int, ...]) -> tuple[int, ...] | None:
    """Ring grown from two neighbours by detours over pairs of free tiles; None if some tiles remain."""
    remaining = set(tiles[1:])
    second = next((other for other in grid.neighbours(tiles[0]) if other in remaining), None)
    if second is None or len(tiles) % 2:
        return None
    order = [tiles[0], second]
    remaining.discard(second)
    place = 0
    while place < len(order) and remaining:
        detour = _detour(grid, order[place], order[(place + 1) % len(order)], remaining)
        order[place + 1 : place + 1] = detour
        remaining.difference_update(detour)
        place += not detour
    return None if remaining else tuple(order)


def _detour(grid: TileGrid, a: int, b: int, free: set[int]) -> list[int]:
    """Two free tiles that form a detour from a to its neighbour b; empty if there are none."""
    for first in grid.neighbours(a):
        for second in grid.neighbours(b):
            if first != second and {first, second} <= free and second in grid.neighbours(first):
                return [first, second]
    return []


def _search(grid: TileGrid, tiles: tuple[int, ...], closed: bool) -> tuple[int, ...] | None:
    """Search for a Hamiltonian cycle or path of tiles, neighbours with the fewest continuations first."""
    inside = set(tiles)
    around = {tile: [other for other in grid.neighbours(tile) if other in inside] for tile in tiles}
    if not grid.wrap and _one_colour_too_many(grid, tiles, closed):
        return None
    starts = sorted(tiles, key=lambda tile: (len(around[tile]), tile))
    budget = [STEPS]
    for start in starts[:1] if closed else starts:
        path = _extend(around, [start], closed, budget)
        if path:
            return tuple(path)
    return None


def _one_colour_too_many(grid: TileGrid, tiles: Sequence[int], closed: bool) -> bool:
    """True if the chess-board colours of the tiles rule out a ring or path that alternates between them."""
    black = sum((row + column) % 2 for row, column in map(grid.place, tiles))
    return abs(len(tiles) - 2 * black) > (0 if closed else 1)


def _extend(
    around: dict[int, list[int]], path: list[int], closed: bool, budget: list[int]
) -> list[int] | None:
    """Extend a path to all tiles, depth first; None if that is impossible or exceeds the budget."""
    used = set(path)
    continuations = [iter(_next(around, path[-1], used))]
    while continuations:
        if len(path) == len(around) and (not closed or path[0] in around[path[-1]]):
            return path
        budget[0] -= 1
        if budget[0] < 0:
            return None
        tile = next(continuations[-1], None)
        if tile is None:
            continuations.pop()
            used.discard(path.pop())
        else:
            path.append(tile)
            used.add(tile)
            continuations.append(iter(_next(around, tile, used)))
    return None


def _next(around: dict[int, list[int]], tile: int, used: set[int]) -> list[int]:
    """Unused neighbours of a tile, those with the fewest continuations first (Warnsdorff)."""
    fresh = [other for other in around[tile] if other not in used]
    return sorted(fresh, key=lambda other: (sum(far not in used for far in around[other]), other))


TileTable = NDArray[np.int64]


def axis_groups(
    grid: TileGrid, tiles: Sequence[int], axes: Mapping[TileAxis, int], placed: Placed = "near"
) -> dict[TileAxis, Sequence[Tiles]]:
    """Groups of tiles along each axis, each in ring order.

    With "near", each group along the last axis is a block of adjacent tiles. A group along the axis before it
    has one tile in each of several adjacent blocks, and so on. The last axis is tensor parallelism in a
    transformer layer and the summed dimension in a linear operator. With "far", the order of the axes is
    reversed. Blocks are the squarest rectangles that divide the rectangle of all tiles. Tiles that do not
    form a rectangle are cut row by row.
    """
    if prod(axes.values()) != len(tiles):
        parts = " × ".join(f"{axis} {width}" for axis, width in axes.items())
        raise PhazeError(f"placement: {parts} must be the {len(tiles)} tiles of the group")
    key = tuple(axes.items())
    if isinstance(tiles, TileBlock):
        return {**groups_in_block(tiles, dict(key if placed == "near" else key[::-1]))}
    return dict(_groups(grid, tuple(tiles), key if placed == "near" else key[::-1]))


@lru_cache(maxsize=1024)
def _groups(
    grid: TileGrid, tiles: Tiles, axes: tuple[tuple[TileAxis, int], ...]
) -> tuple[tuple[TileAxis, tuple[Tiles, ...]], ...]:
    """Groups of tiles along each axis; groups along the last axis have the closest tiles."""
    table = _table(grid, tiles, [width for _, width in axes])
    groups = []
    for place, (axis, width) in enumerate(axes):
        rows = np.moveaxis(table, place, -1).reshape(-1, width)
        groups.append((axis, tuple(ring(grid, row.tolist()).order for row in rows)))
    return tuple(groups)


def _table(grid: TileGrid, tiles: Tiles, widths: Sequence[int]) -> TileTable:
    """Tile at each position along the axes, shape `widths`; neighbours along the last axes are closest."""
    rectangle = _rectangle(grid, tiles)
    if rectangle is None:
        return np.array(snake(grid, tiles)).reshape(widths)
    blocks = rectangle[..., np.newaxis]
    for width in reversed(widths):
        blocks = _merged(blocks, width)
    return blocks.reshape(widths)


def _merged(blocks: TileTable, width: int) -> TileTable:
    """Merge blocks of tiles, `width` at a time; arrays have shape (rows, columns, tiles of a block)."""
    rows, columns, size = blocks.shape
    down, across = compact(rows, columns, width)
    parts = blocks.reshape(rows // down, down, columns // across, across, size)
    return parts.transpose(0, 2, 1, 3, 4).reshape(rows // down, columns // across, width * size)


def _rectangle(grid: TileGrid, tiles: Tiles) -> TileTable | None:
    """Tiles as an array (rows, columns); None if they do not form a rectangle."""
    places = np.array([grid.place(tile) for tile in tiles])
    low, high = places.min(axis=0), places.max(axis=0)
    shape = high - low + 1
    if prod(shape.tolist()) != len(set(tiles)):
        return None
    rows = range(int(low[0]), int(high[0]) + 1)
    return np.array([[grid.tile(row, column) for column in range(low[1], high[1] + 1)] for row in rows])
