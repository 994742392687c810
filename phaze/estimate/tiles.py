"""Candidate tiles of a dimension: multiples of the array's size, and equal parts of what a core works on.

Nothing here depends on the size of a buffer, so that all that fits a small buffer is also tried with a
large one.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from phaze.theory.arrays import ceil_div, folds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEPS = np.array([1, 2, 3, 4, 5, 6, 7, 8, *(factor << i for i in range(2, 18) for factor in (3, 4))])
"""All numbers up to 8, then 12, 16, 24, 32, ..."""
MOST = 2 * len(STEPS)
SIZE, NUMBER, FOLDS = range(3)
"""Fields of a tile: its size, how many make up the part, and how often they fill the array."""
M, K, N = range(3)
"""Dimensions, by their row in the tables."""


@numba.njit(cache=True, error_model="numpy")
def list_tiles(shape: Ints, units: Ints, table: Floats, length: Ints) -> None:
    """List the tiles of a shape (batch, m, k, n) in `table` (3, U, L, MOST, 3), and their numbers in
    `length` (3, U, L).

    The lists are by dimension, size of the array, and level: a core's part of m or n is ⌈size / 2^level⌉; k
    is not parted.
    """
    for dimension in range(3):
        for level in range(1 if dimension == K else length.shape[2]):
            size = ceil_div(shape[dimension + 1], 1 << level)
            for u in range(len(units)):
                length[dimension, u, level] = _tiles_of(size, units[u], table[dimension, u, level])


@numba.njit(cache=True, error_model="numpy")
def _tiles_of(size: int, unit: int, table: Floats) -> int:
    """Fill `table` with the tiles of a dimension, ascending, and return how many there are."""
    part, multiple, count = len(STEPS) - 1, 0, 0
    while part >= 0:
        tile = ceil_div(size, STEPS[part])
        if multiple < len(STEPS) and STEPS[multiple] * unit < tile:
            tile = STEPS[multiple] * unit
            multiple += 1
        else:
            part -= 1
        if count == 0 or table[count - 1, SIZE] < tile:
            table[count, SIZE] = tile
            table[count, NUMBER] = ceil_div(size, tile)
            table[count, FOLDS] = folds(size, tile, unit)
            count += 1
    return count
