"""Candidate tile sizes of a dimension: multiples of the array size, and equal parts of a core's share.

Candidates do not depend on the buffer size, so every tile that fits a small buffer is also tried with a large
one.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.compiled import njit_nested

STEPS = np.array([*range(1, 17), *(factor << i for i in range(2, 16) for factor in (5, 6, 7, 8))], float)
"""Multiples and divisors tried: 1 to 16, then numbers with three significant bits: 20, 24, 28, 32, ..."""
MOST = 2 * len(STEPS) + 2
SIZE, NUMBER, FOLDS, FEWER = range(4)
"""Columns of a table of tiles.

Its size, the number of tiles in the part, the number of folds, and the index of the largest smaller tile with
fewer folds; -1 if there is none.
"""


@njit_nested
def list_tiles(size: float, unit: float, table: Floats) -> int:
    """Fill `table` (MOST, 4) with the candidate tiles of a dimension, ascending; return their number."""
    count = _append(table, 0, size, 1.0, unit)
    part, multiple, array = len(STEPS) - 1, 0, _unequal(size, unit, unit)
    while part > 0 and STEPS[part] >= size:
        part -= 1
    while part >= 0:
        tile = np.ceil(size / STEPS[part])
        if array < tile:
            tile, multiple = array, multiple + 1
            array = _unequal(size, STEPS[multiple] * unit, unit) if multiple < len(STEPS) else np.inf
        else:
            part -= 1
        if tile > table[count - 1, SIZE]:
            count = _append(table, count, size, tile, unit)
    return count


@njit_nested
def _unequal(size: float, tile: float, unit: float) -> float:
    """Smallest tile size that needs no more tiles and folds than `tile`, a multiple of the array size.

    The last array need not be full: the unfilled rest is divided equally among all tiles but the last.
    """
    if tile >= size:
        return size
    number = np.ceil(size / tile)
    unfilled = np.ceil(size / unit) * unit - size
    return tile - min(np.floor(unfilled / (number - 1.0)), tile - np.ceil(size / number))  # type: ignore[no-any-return]


@njit_nested
def _append(table: Floats, count: int, size: float, tile: float, unit: float) -> int:
    whole = np.floor(size / tile)
    rest = size - whole * tile
    folds = whole * np.ceil(tile / unit) + np.ceil(rest / unit)
    fewer = count - 1
    while fewer >= 0 and table[fewer, FOLDS] >= folds:
        fewer = int(table[fewer, FEWER])
    table[count, SIZE] = tile
    table[count, NUMBER] = whole + (1.0 if rest > 0.0 else 0.0)
    table[count, FOLDS] = folds
    table[count, FEWER] = fewer
    return count + 1
