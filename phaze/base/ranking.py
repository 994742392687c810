"""Ranking of architectures, used to keep candidates and to choose the best one.

Architectures are ordered by time per batch, then area, then name. Times that agree to 30 bits (a relative
1e-9) are ties: they differ by the order of floating-point sums, not by hardware, and area decides. Unlike
comparison with a tolerance, rounding to a grid keeps the order transitive.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from phaze.base.arrays import Bools, Floats, Ints

Ranks = NDArray[np.int64]
Number = TypeVar("Number", bound=np.number)

BITS = 30
"""Significant bits of a time; 2^-30 is a relative 9e-10."""


def name_ranks(names: ArrayLike) -> Ranks:
    """Alphabetical rank of every name."""
    return np.unique(np.asarray(names, dtype=str), return_inverse=True)[1].astype(np.int64)


def tied(time_s: Floats | float) -> Floats:
    """Times rounded to the grid on which ties are decided; infinity stays infinite."""
    mantissa, exponent = np.frexp(np.asarray(time_s, dtype=np.float64))
    # Scale the mantissa so that the bits to keep are an integer, and round that.
    rounded: Floats = np.ldexp(np.rint(np.ldexp(mantissa, BITS)), exponent - BITS)
    return rounded


def order(time_s: Floats, area_um2: Floats, name: Ranks) -> Ranks:
    """Indices of the architectures from best to worst; `name` contains ranks from `name_ranks`."""
    return np.lexsort((name, area_um2, tied(time_s))).astype(np.int64)


def within(time_s: Floats, tolerance: float) -> Bools:
    """Mask of times whose throughput is at least (1 - tolerance) of the best; all False if none is finite."""
    time = tied(time_s)
    result: Bools = np.isfinite(time) & (time <= limit_of(time, tolerance))
    return result


def limit_of(time_s: Floats, tolerance: float) -> float:
    """Longest time within the tolerance of the best throughput."""
    return float(tied(np.min(time_s, initial=np.inf) / (1.0 - tolerance)))


def smallest(time_s: Floats, area_um2: Floats, name: Ranks, tolerance: float) -> int | None:
    """Index of the smallest area within the tolerance of the best throughput; ties by time, then name."""
    among = np.flatnonzero(within(time_s, tolerance))
    if not len(among):
        return None
    return int(among[np.lexsort((name[among], tied(time_s)[among], area_um2[among]))[0]])


def distinct_rows(values: NDArray[Number]) -> tuple[NDArray[Number], Ints]:
    """Distinct rows of an array (n, m), ascending, and the index of each row among them (n,).

    Equivalent to `np.unique` by rows, ten times as fast.
    """
    # The last key of lexsort is the one to sort by first.
    order = np.lexsort(values.T[::-1])
    ranked = values[order]
    first = np.concatenate([[True], (ranked[1:] != ranked[:-1]).any(axis=1)])[: len(values)]
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.cumsum(first) - 1
    return ranked[first], place
