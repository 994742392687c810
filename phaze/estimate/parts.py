"""Numbers of parts into which cores divide a product: powers of two, few of any number, and some between."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze.theory.compiled import njit

Ints = NDArray[np.int64]

ROUNDS = 3
"""A number of cores that is no power of two takes up to 2^ROUNDS times as many parts as the power of two
below it.
"""
BETWEEN = (3, 5, 7)
"""Such a number of cores may also divide one dimension into these times a power of two."""
FREE = 16
"""Up to so many parts are tried in every division; every larger number of cores may also take them."""


def parts_of(counts: Ints) -> Ints:
    """Return the numbers of parts into which some number of cores divides a dimension, ascending."""
    powers = [1 << level for level in range(max(_levels(int(count)) for count in counts) + 1)]
    between = [int(count) for count in counts if not is_power(count)]
    others = [factor << i for factor in BETWEEN for i in range(20) if factor << i <= max(between, default=0)]
    free = range(1, min(FREE, int(max(counts))) + 1)
    return np.array(sorted({*powers, *others, *free}), dtype=np.int64)


def _levels(count: int) -> int:
    """Return the largest level at which some cores divide a shape."""
    return level_of(count) if is_power(count) else level_of(count) + ROUNDS


@njit
def level_of(count: int) -> int:
    """Return the largest level with 2^level ≤ count."""
    level = 0
    while (2 << level) <= count:
        level += 1
    return level


@njit
def is_power(count: int) -> bool:
    """Return whether a number is a power of two."""
    return count & (count - 1) == 0
