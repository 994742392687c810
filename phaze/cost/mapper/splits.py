"""Distinct splits of one shape among cores, with lower bounds that hold for every tiling.

Cycles depend on the array only and words on the L2 buffer only, so both are computed once for all cores that
share them.

Up to `FREE` parts may be split in any way, more parts by powers of two, with some splits in between.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.cost.mapper.arrays import largest_products, least_moved

FREE = 16
"""Number of parts up to which every split is tried; larger core counts may use these splits too."""
ROUNDS = 3
"""Limit on the parts for a core count that is not a power of two: 2^ROUNDS times the power of two
below.
"""
BETWEEN = (3, 5, 7)
"""Odd factors by which a core count that is not a power of two may multiply the number of parts in one
dimension.
"""

Division = tuple[int, int, int, int]
"""Numbers of parts along batch, m and n, and the number of parts per core."""


class SplitRanges(NamedTuple):
    """Rows of the table of splits that each core count may use, (C,)."""

    every: Ints
    """Number of leading rows that a core count and all larger ones may use, (C,)."""
    own: Ints
    """Range (from, to) of the rows that only this core count may use, (C, 2)."""
    above: Ints
    """Range (C, 2) of the next power of two's rows, which bound a count that is not a power of two; else
    empty.
    """


@lru_cache(maxsize=64)
def list_splits(counts: tuple[int, ...]) -> tuple[Ints, SplitRanges]:
    """Table of splits (X, 4) for ascending core counts (see `Division`), and the row ranges of each count."""
    numbers = (parts for parts in range(1, counts[-1] + 1) if parts <= FREE or is_power(parts))
    ladder = [row for parts in numbers for row in _divisions_into(parts)]
    sizes = [b * m * n for b, m, n, _ in ladder]
    rows, ranges = list(ladder), []
    for count in counts:
        between = [] if is_power(count) else _extra_divisions(count)
        above = [] if is_power(count) else _power_divisions(_next_power(count), 1)
        first = len(rows)
        rows += between + above
        ranges.append((first, first + len(between), len(rows)))
    bounds = np.array(ranges)
    # Rows of the ladder ascend in parts, so a core count may use a leading range of them.
    every = np.searchsorted(sizes, counts, side="right")
    return np.array(rows), SplitRanges(every, bounds[:, :2].copy(), bounds[:, 1:].copy())


def _divisions_into(parts: int) -> list[Division]:
    if is_power(parts):
        return _power_divisions(parts, 1)
    divisors = [d for d in range(1, parts + 1) if parts % d == 0]
    return [(b, m, parts // (b * m), 1) for b, m in product(divisors, repeat=2) if parts % (b * m) == 0]


def _power_divisions(parts: int, rounds: int) -> list[Division]:
    level = parts.bit_length() - 1
    return [
        (1 << b, 1 << m, 1 << (level - b - m), rounds) for b in range(level + 1) for m in range(level + 1 - b)
    ]


def _extra_divisions(count: int) -> list[Division]:
    """Additional splits for a core count that is not a power of two."""
    level = count.bit_length() - 1
    divisions: list[Division] = []
    for factor, i, j, k in product(BETWEEN, *[range(level + 1)] * 3):
        if factor << (i + j + k) <= count:
            b, m, n = 1 << i, 1 << j, 1 << k
            divisions += [(factor * b, m, n, 1), (b, factor * m, n, 1), (b, m, factor * n, 1)]
    for parts in (_next_power(count) << doublings for doublings in range(ROUNDS)):
        divisions += _power_divisions(parts, -(-parts // count))
    return divisions


def _next_power(count: int) -> int:
    return 1 << count.bit_length()


def is_power(count: int) -> bool:
    """True if a number is a power of two."""
    return count & (count - 1) == 0


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
    """All splits that core counts allow, and the array sizes and buffers for which bounds are computed."""

    rows: Ints
    """Splits, (R, 4), see `Division`."""
    places: Ints
    """Indices of a split's (dimension, parts) along m, k and n in the tile tables, (R, 3)."""
    units: Floats
    """Distinct array sizes (rows or columns), (U,)."""
    buffers: Floats
    """Distinct L2 buffers in words, (B,)."""

    def of(self, shape: Ints) -> Splits:
        """Distinct splits of a shape (4,)."""
        distinct = _distinct_splits(shape, self.rows)
        fields = _fields(shape, self.rows[distinct], self.places[distinct])
        batch, m, k, n = map(float, shape)
        folds = np.empty((4, len(self.units), fields.shape[1]))
        folds[M:] = np.ceil(fields[M:LEFT, None] / self.units[:, None])
        products = largest_products(self.buffers[:, None])
        words = least_moved(fields[LEFT], fields[RIGHT], batch * m * n, fields[M], k, fields[N], products)
        return Splits(fields, np.append(0, np.cumsum(distinct)), words, folds)


def _distinct_splits(shape: Ints, rows: Ints) -> Bools:
    """Mask of the splits that are not dominated by a split into the same number of parts or fewer."""
    b, m, n, _ = rows.T
    parts = b * m * n
    # Half as many parts have the same size.
    halved = (b // 2 >= shape[BATCH]) | (m // 2 >= shape[M]) | (n // 2 >= shape[N])
    # Twice as many parts along the batch would divide evenly, copy no operand, and have larger m and n.
    doubled = (m * n > 1) & (parts & (parts - 1) == 0) & (shape[BATCH] % (2 * b) == 0)
    distinct: Bools = ~(halved | doubled)
    return distinct


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
