"""Splits of a matrix product among cores.

Up to `FREE` parts may be split in any way, more parts by powers of two, with some splits in between.
"""

from itertools import product
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Ints

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


def list_splits(counts: Ints) -> tuple[Ints, SplitRanges]:
    """Table of splits (X, 4) for ascending core counts (see `Division`), and the row ranges of each count."""
    ladder = [row for parts in _numbers(int(counts[-1])) for row in _into(parts)]
    sizes = [b * m * n for b, m, n, _ in ladder]
    rows, ranges = list(ladder), []
    for count in map(int, counts):
        between = [] if is_power(count) else _between(count)
        above = [] if is_power(count) else _powers(_above(count), 1)
        first = len(rows)
        rows += between + above
        ranges.append((first, first + len(between), len(rows)))
    bounds = np.array(ranges)
    every = np.searchsorted(sizes, counts, side="right")
    return np.array(rows), SplitRanges(every, bounds[:, :2].copy(), bounds[:, 1:].copy())


def _numbers(most: int) -> list[int]:
    return [parts for parts in range(1, most + 1) if parts <= FREE or is_power(parts)]


def _into(parts: int) -> list[Division]:
    if is_power(parts):
        return _powers(parts, 1)
    divisors = [d for d in range(1, parts + 1) if parts % d == 0]
    return [(b, m, parts // (b * m), 1) for b, m in product(divisors, repeat=2) if parts % (b * m) == 0]


def _powers(parts: int, rounds: int) -> list[Division]:
    level = parts.bit_length() - 1
    return [
        (1 << b, 1 << m, 1 << (level - b - m), rounds)
        for b in range(level + 1)
        for m in range(level + 1 - b)
    ]  # fmt: skip


def _between(count: int) -> list[Division]:
    """Additional splits for a core count that is not a power of two."""
    level = count.bit_length() - 1
    found: list[Division] = []
    for factor, i, j, k in product(BETWEEN, *[range(level + 1)] * 3):
        if factor << (i + j + k) <= count:
            b, m, n = 1 << i, 1 << j, 1 << k
            found += [(factor * b, m, n, 1), (b, factor * m, n, 1), (b, m, factor * n, 1)]
    for parts in (_above(count) << more for more in range(ROUNDS)):
        found += _powers(parts, -(-parts // count))
    return found


def _above(count: int) -> int:
    return 1 << count.bit_length()


def is_power(count: int) -> bool:
    """True if a number is a power of two."""
    return count & (count - 1) == 0
