"""Candidate tiles of a dimension: multiples of the array's size, and equal parts of what a core works on.

Nothing here depends on the size of a buffer, so that all that fits a small buffer is also tried with a
large one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze.theory.arrays import ceil_div, folds
from phaze.theory.compiled import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEPS = np.array([*range(1, 17), *(factor << i for i in range(2, 16) for factor in (5, 6, 7, 8))])
"""All numbers up to 16, then those of three binary digits: 20, 24, 28, 32, 40, ..."""
MOST = 2 * len(STEPS) + 2
SIZE, NUMBER, FOLDS = range(3)
"""Fields of a tile: its size, how many make up the part, and how often they fill the array."""
M, K, N = range(3)
"""Dimensions, by their row in the tables."""


@njit
def list_tiles(shape: Ints, units: Ints, parts: Ints, table: Floats, length: Ints) -> None:
    """List the tiles of a shape in `table` (3, U, L, MOST, 3), and how many there are in `length` (3, U, L).

    The lists are by dimension, size of the array, and number of parts (L,) into which a dimension is divided;
    k is never divided.
    """
    for dimension in range(3):
        for p in range(1 if dimension == K else len(parts)):
            size = ceil_div(shape[dimension + 1], parts[p])
            for u in range(len(units)):
                length[dimension, u, p] = _tiles_of(size, units[u], table[dimension, u, p])


@njit
def _tiles_of(size: int, unit: int, table: Floats) -> int:
    """Fill `table` with the tiles of a dimension, ascending from 1, and return how many there are."""
    count = _append(table, 0, size, 1, unit)
    part, multiple = len(STEPS) - 1, 0
    while part >= 0:
        tile = ceil_div(size, STEPS[part])
        if multiple < len(STEPS) and _unequal(size, STEPS[multiple] * unit, unit) < tile:
            tile = _unequal(size, STEPS[multiple] * unit, unit)
            multiple += 1
        else:
            part -= 1
        count = _append(table, count, size, tile, unit)
    return count


@njit
def _unequal(size: int, tile: int, unit: int) -> int:
    """Return the smallest tile of which as few fill the array as often as of `tile`, some whole arrays.

    The last array need not be full: all tiles but the last are smaller by an equal part of what is missing.
    """
    if tile >= size:
        return size
    number = ceil_div(size, tile)
    unfilled = ceil_div(size, unit) * unit - size
    return tile - min(unfilled // (number - 1), tile - ceil_div(size, number))


@njit
def _append(table: Floats, count: int, size: int, tile: int, unit: int) -> int:
    """Append a tile unless it is no larger than the last, and return how many there are."""
    if count > 0 and tile <= table[count - 1, SIZE]:
        return count
    table[count, SIZE] = tile
    table[count, NUMBER] = ceil_div(size, tile)
    table[count, FOLDS] = folds(size, tile, unit)
    return count + 1
