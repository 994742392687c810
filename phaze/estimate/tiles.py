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

STEPS = np.array([1, 2, 3, 4, 5, 6, 7, 8, *(factor << i for i in range(2, 18) for factor in (3, 4))])
"""All numbers up to 8, then 12, 16, 24, 32, ..."""
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
    sizes = np.empty(2 * len(STEPS) + 2, dtype=np.int64)
    for i in range(len(STEPS)):
        sizes[2 * i] = min(size, STEPS[i] * unit)
        sizes[2 * i + 1] = ceil_div(size, STEPS[i])
    # Two tiles fill the array well without being equal: one is a number of whole arrays, the other the rest.
    sizes[-2:] = 1, size - size // (2 * unit) * unit
    sizes.sort()
    count = 0
    for i in range(len(sizes)):
        tile = int(sizes[i])
        if count == 0 or table[count - 1, SIZE] < tile:
            table[count, SIZE] = tile
            table[count, NUMBER] = ceil_div(size, tile)
            table[count, FOLDS] = folds(size, tile, unit)
            count += 1
    return count
