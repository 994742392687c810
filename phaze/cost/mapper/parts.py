"""Divisions of a product among cores: in any numbers into few parts, by powers of two into many, and some
between.
"""

from itertools import product
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Ints

FREE = 16
"""Up to so many parts are tried in every division; every larger number of cores may also take them."""
ROUNDS = 3
"""A number of cores that is no power of two takes up to 2^ROUNDS times as many parts as the power of two
below it.
"""
BETWEEN = (3, 5, 7)
"""Such a number of cores may also divide one dimension into these times a power of two."""

Division = tuple[int, int, int, int]
"""Parts along batch, m and n, and how many of them every core takes."""


class Divisions(NamedTuple):
    """What numbers of cores (C,) may divide a product into; `rows` is (X, 4), see `Division`."""

    rows: Ints
    every: Ints
    """The first so many rows are open to a number of cores (C,), and to all larger ones."""
    own: Ints
    """From, to (C, 2): rows that only this number of cores takes."""
    above: Ints
    """From, to (C, 2): rows of the next power of two, which limit a number that is none; empty otherwise."""


def list_divisions(counts: Ints) -> Divisions:
    """Divisions for ascending numbers of cores."""
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
    return Divisions(np.array(rows), every, bounds[:, :2], bounds[:, 1:])


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
    """Divisions of a number of cores that is no power of two, beside those of fewer cores."""
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
    """Whether a number is a power of two."""
    return count & (count - 1) == 0
