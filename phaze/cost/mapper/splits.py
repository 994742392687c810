"""Distinct splits of one shape among cores, with lower bounds that hold for every tiling.

Cycles depend on the array only and words on the L2 buffer only, so both are computed once for all cores that
share them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit_nested
from phaze.cost.mapper.arrays import largest_products, least_moved

BATCH, M, K, N = range(4)
REPEATS, LEFT, RIGHT, PLACE = 0, 4, 5, 6
"""Fields of a split.

REPEATS is the number of products on the busiest core. LEFT and RIGHT are the words of the operands, fetched
once by every core that needs them. M, K and N are the sizes of a part. PLACE + M, K, N is the index of its
tiles in the tables.
"""


class Splits(NamedTuple):
    """Distinct splits of a shape (X,), with tables by array dimension or buffer."""

    fields: Floats
    """Fields by split, (10, X)."""
    before: Ints
    """Number of distinct splits among the first rows of the divisions."""
    words: Floats
    """Lower bound on the words of each split, by L2 buffer (B, X)."""
    folds: Floats
    """Fewest folds along M, K, N, by array dimension (4, U, X)."""


def empty_splits(divisions: int, units: int, buffers: int) -> Splits:
    """Uninitialised splits, filled anew for every shape."""
    return Splits(
        np.empty((10, divisions)),
        np.zeros(divisions + 1, dtype=np.int64),
        np.empty((buffers, divisions)),
        np.empty((4, units, divisions)),
    )


@njit_nested
def fill_splits(
    splits: Splits, shape: Ints, divisions: Ints, places: Ints, units: Floats, buffers: Floats
) -> None:
    """Fill `splits` for a shape (4,) from divisions (X, 4); `places` (X, 3) index their parts."""
    count = 0
    for x in range(len(divisions)):
        if _differs(shape, divisions[x, 0], divisions[x, 1], divisions[x, 2]):
            _fill_fields(splits.fields[:, count], shape, divisions[x], places[x])
            count += 1
        splits.before[x + 1] = count
    for dimension in (M, K, N):
        for u in range(len(units)):
            for x in range(count):
                splits.folds[dimension, u, x] = np.ceil(splits.fields[dimension, x] / units[u])
    m, n = splits.fields[M, :count], splits.fields[N, :count]
    result = float(shape[BATCH]) * shape[M] * shape[N]
    left, right = splits.fields[LEFT, :count], splits.fields[RIGHT, :count]
    for b in range(len(buffers)):
        squares = largest_products(buffers[b])
        for x in range(count):
            splits.words[b, x] = least_moved(left[x], right[x], result, m[x], float(shape[K]), n[x], squares)


@njit_nested
def _differs(shape: Ints, b: int, m: int, n: int) -> bool:
    """True if a split may be better than every split into the same number of parts or fewer."""
    if b // 2 >= shape[BATCH] or m // 2 >= shape[M] or n // 2 >= shape[N]:
        # Half as many parts have the same size.
        return False
    parts = b * m * n
    # Twice as many parts along the batch would divide evenly, copy no operand, and have larger m and n.
    return m * n == 1 or parts & (parts - 1) > 0 or shape[BATCH] % (2 * b) > 0


@njit_nested
def _fill_fields(fields: Floats, shape: Ints, division: Ints, place: Ints) -> None:
    batch, m, k, n = float(shape[BATCH]), float(shape[M]), float(shape[K]), float(shape[N])
    fields[REPEATS] = division[3] * np.ceil(batch / division[0])
    fields[M], fields[K], fields[N] = np.ceil(m / division[1]), k, np.ceil(n / division[2])
    fields[PLACE + M], fields[PLACE + K], fields[PLACE + N] = place[0], place[1], place[2]
    # Cores that share rows each fetch the left operand; cores that share columns each fetch the right one.
    fields[LEFT] = batch * m * k * division[2]
    fields[RIGHT] = batch * k * n * division[1]
