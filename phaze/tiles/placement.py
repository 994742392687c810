"""Which tiles of a group differ along one axis only, near each other or far apart (PALM, V.B, Figure 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import Grid
from phaze.tiles.mapping import Placed, Tiles, compact
from phaze.tiles.operators import Axis
from phaze.tiles.rings import ring, snake

Table = NDArray[np.int64]


def axis_groups(
    grid: Grid, tiles: Sequence[int], axes: Mapping[Axis, int], placed: Placed = "near"
) -> dict[Axis, tuple[Tiles, ...]]:
    """Return the groups along every axis, each in the order of its ring.

    Near, the last axis has the closest tiles, of which the next one has blocks, and so on: tensor parallelism
    is last in a transformer layer, sums in a linear operator. Far, it is the first axis. Blocks are the
    rectangles with the shortest sides that fill the group's; a group that is no rectangle is cut row by row.
    """
    if placed not in get_args(Placed):
        raise PhazeError(f"placement: must be one of {', '.join(get_args(Placed))}, got {placed}")
    if prod(axes.values()) != len(tiles):
        parts = " × ".join(f"{axis} {width}" for axis, width in axes.items())
        raise PhazeError(f"placement: {parts} must be the {len(tiles)} tiles of the group")
    key = tuple(axes.items())
    return dict(_groups(grid, tuple(tiles), key if placed == "near" else key[::-1]))


@lru_cache(maxsize=1024)
def _groups(
    grid: Grid, tiles: Tiles, axes: tuple[tuple[Axis, int], ...]
) -> tuple[tuple[Axis, tuple[Tiles, ...]], ...]:
    """Return the groups along axes of which the last has the closest tiles."""
    table = _table(grid, tiles, [width for _, width in axes])
    found = []
    for place, (axis, width) in enumerate(axes):
        rows = np.moveaxis(table, place, -1).reshape(-1, width)
        found.append((axis, tuple(ring(grid, row.tolist()).order for row in rows)))
    return tuple(found)


def _table(grid: Grid, tiles: Tiles, widths: Sequence[int]) -> Table:
    """Return the tile at every position along the axes, of their shape."""
    rectangle = _rectangle(grid, tiles)
    if rectangle is None:
        return np.array(snake(grid, tiles)).reshape(widths)
    blocks = rectangle[..., np.newaxis]
    for width in reversed(widths):
        blocks = _merged(blocks, width)
    return blocks.reshape(widths)


def _merged(blocks: Table, width: int) -> Table:
    """Return larger blocks, each of so many; blocks are (rows, columns, tiles of a block)."""
    rows, columns, size = blocks.shape
    down, across = compact(rows, columns, width)
    parts = blocks.reshape(rows // down, down, columns // across, across, size)
    return parts.transpose(0, 2, 1, 3, 4).reshape(rows // down, columns // across, width * size)


def _rectangle(grid: Grid, tiles: Tiles) -> Table | None:
    """Return the tiles in their rows and columns, None where they are no rectangle."""
    places = np.array([grid.place(tile) for tile in tiles])
    low, high = places.min(axis=0), places.max(axis=0)
    shape = high - low + 1
    if prod(shape.tolist()) != len(set(tiles)):
        return None
    rows = range(int(low[0]), int(high[0]) + 1)
    return np.array([[grid.tile(row, column) for column in range(low[1], high[1] + 1)] for row in rows])
