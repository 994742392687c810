"""Distinct splits of one shape among cores, with lower bounds that hold for every tiling.

Cycles depend on the array only and words on the L2 buffer only, so both are computed once for all cores that
share them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.cost.mapper.arrays import largest_products, least_moved

BATCH, M, K, N = range(4)
REPEATS, LEFT, RIGHT, PLACE = 0, 4, 5, 6
"""Indices of a split's fields in `Splits.fields`.

REPEATS is the number of products on the busiest core. LEFT and RIGHT are the words of the operands, fetched
once by every core that needs them. M, K and N are the sizes of a part. PLACE + M, K, N is the index of its
tiles in the tables.
"""


class Splits(NamedTuple):
    """Distinct splits of a shape (X,), with lower bounds on folds per array size and on words per buffer."""

    fields: Floats
    """Fields of every split, (10, X)."""
    before: Ints
    """Number of distinct splits among the first rows of the table of splits, for every number of rows."""
    words: Floats
    """Lower bound on the words that each split transfers, by L2 buffer, (B, X)."""
    folds: Floats
    """Minimum number of folds along M, K and N, by array size, (4, U, X)."""


class SplitSpace(NamedTuple):
    """All splits that core counts allow, and the array sizes and buffers for which they are bounded."""

    rows: Ints
    """Splits, (R, 4), see `cost.mapper.parts.Division`."""
    places: Ints
    """Indices of a split's (dimension, parts) along m, k and n in the tile tables, (R, 3)."""
    units: Floats
    """Distinct array sizes (rows or columns), (U,)."""
    buffers: Floats
    """Distinct L2 buffers in words, (B,)."""

    def of(self, shape: Ints) -> Splits:
        """Distinct splits of a shape (4,)."""
        distinct = _differ(shape, self.rows)
        fields = _fields(shape, self.rows[distinct], self.places[distinct])
        batch, m, k, n = map(float, shape)
        folds = np.empty((4, len(self.units), fields.shape[1]))
        folds[M:] = np.ceil(fields[M:LEFT, None] / self.units[:, None])
        products = largest_products(self.buffers[:, None])
        words = least_moved(fields[LEFT], fields[RIGHT], batch * m * n, fields[M], k, fields[N], products)
        return Splits(fields, np.append(0, np.cumsum(distinct)), words, folds)


def _differ(shape: Ints, rows: Ints) -> Bools:
    """Mask of the splits that are not dominated by a split into the same number of parts or fewer."""
    b, m, n, _ = rows.T
    parts = b * m * n
    # Half as many parts have the same size.
    halved = (b // 2 >= shape[BATCH]) | (m // 2 >= shape[M]) | (n // 2 >= shape[N])
    # Twice as many parts along the batch would divide evenly, copy no operand, and have larger m and n.
    doubled = (m * n > 1) & (parts & (parts - 1) == 0) & (shape[BATCH] % (2 * b) == 0)
    found: Bools = ~(halved | doubled)
    return found


def _fields(shape: Ints, rows: Ints, places: Ints) -> Floats:
    batch, m, k, n = map(float, shape)
    fields = np.empty((PLACE + len(shape), len(rows)))
    fields[REPEATS] = rows[:, 3] * np.ceil(batch / rows[:, 0])
    fields[M], fields[K], fields[N] = np.ceil(m / rows[:, 1]), k, np.ceil(n / rows[:, 2])
    # Cores that share rows each fetch the left operand; cores that share columns each fetch the right one.
    fields[LEFT] = batch * m * k * rows[:, 2]
    fields[RIGHT] = batch * k * n * rows[:, 1]
    fields[PLACE], fields[PLACE + 1 :] = 0.0, places.T
    return fields
