"""Candidate tiles of a dimension: multiples of the array's size, and the part that a core works on halved again and again."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from phaze.theory.arrays import ceil_div, folds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MULTIPLES = np.array([1, 2, 3, 4, 5, 6, 7, 8, *(factor << i for i in range(2, 18) for factor in (3, 4))])
"""Tiles to try, in sizes of the array: all up to 8, then 12, 16, 24, 32, ..."""
MOST = len(MULTIPLES) + 32
SIZE, NUMBER, FOLDS = range(3)
"""Fields of a tile: its size, how many make up the part, and how often they fill the array."""
M, K, N = range(3)
"""Dimensions, by their row in the tables."""


@numba.njit(cache=True)
def list_tiles(shape: Ints, units: Ints, table: Floats, length: Ints) -> None:
    """List the tiles of a shape (batch, m, k, n) in `table` (3, U, L, MOST, 3), and their numbers in `length` (3, U, L).

    The lists are by dimension, size of the array, and level: a core's part of m or n is ⌈size / 2^level⌉; k is not parted.
    """
    for dimension in range(3):
        for level in range(1 if dimension == K else length.shape[2]):
            size = ceil_div(shape[dimension + 1], 1 << level)
            for u in range(len(units)):
                length[dimension, u, level] = _tiles_of(size, units[u], table[dimension, u, level])


@numba.njit(cache=True)
def _tiles_of(size: int, unit: int, table: Floats) -> int:
    """Fill `table` with the tiles of a dimension, ascending, and return how many there are."""
    halving = 0
    while ceil_div(size, 1 << halving) > 1:
        halving += 1
    count, multiple = 0, 0
    while halving >= 0:
        tile = ceil_div(size, 1 << halving)
        if multiple < len(MULTIPLES) and MULTIPLES[multiple] * unit < tile:
            tile = MULTIPLES[multiple] * unit
            multiple += 1
        else:
            halving -= 1
        if count == 0 or table[count - 1, SIZE] < tile:
            table[count, SIZE] = tile
            table[count, NUMBER] = ceil_div(size, tile)
            table[count, FOLDS] = folds(size, tile, unit)
            count += 1
    return count
