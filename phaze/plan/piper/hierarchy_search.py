"""Whether some plan keeps a time on every device of every level (Piper, Appendix E, turned around).

Appendix E tabulates dp[D, D'][k][s, x], the least time. Asked instead whether a time t suffices, the sums s
need no axis. A set of layers that fits on a device with s fits with any smaller s (fewer microbatches are
in flight), so that the greatest s that fits says all: G[D, D'][x], found level by level from

    r[D][k][x] = max over D°, d, x° of min(r[D°][k - c][x - x°], S[D - D°, d, x°] - x)

where r = s - x counts the degrees of what follows the whole set, c is the devices and x° the degrees that
the last superstage takes, and S is the greatest s with which it keeps the time: at level 1 d times the
microbatches that may be in flight, at a level above d G[x°/d] of the level below (as ceil(s/d) <= G if and
only if s <= d G) if its own communication keeps the time. At the highest level D' is empty and s = x, and
f[D][s], the fewest devices, is enough. Devices beyond those used do no harm: k counts what may be used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit

Limits = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Choices:
    """Ways to run a set of layers as one superstage or stage of a level, O of them."""

    data: Ints
    """(O,) d."""
    inner: Ints
    """(O,) t at level 1, x°/d above."""
    cost: Ints
    """(O,) devices of the level."""
    degree: Ints
    """(O,) x°."""
    limit: Limits
    """(P, O) the greatest s that keeps the time; less than x° where none does."""


NONE = np.int32(1 << 30)


@njit
def longest_in_flight(start: Ints, cost: Floats, until: Ints, allowed: Floats) -> Ints:
    """Return the most microbatches in flight whose least cost is allowed, of each set; 0 where none, (P,)."""
    most = np.zeros(len(allowed), dtype=np.int64)
    for p in range(len(allowed)):
        low, high = start[p], start[p + 1]
        while low < high:
            middle = (low + high) // 2
            if cost[middle] <= allowed[p]:
                low = middle + 1
            else:
                high = middle
        if low > start[p]:
            most[p] = until[low - 1]
    return most


@njit
def follow(
    number: Ints,
    around: Ints,
    cost: Ints,
    degree: Ints,
    limit: Limits,
    devices: int,
    degrees: int,
) -> Limits:
    """Return r[D][k][x], -1 where nothing keeps the time, shape (len(around), devices + 1, degrees + 1).

    `around` lists D' and then the downsets D that hold it, smaller ones first.
    """
    r = np.full((len(around), devices + 1, degrees + 1), np.int32(-1))
    possible = np.zeros(len(around), dtype=np.bool_)
    possible[0] = True
    r[0, :, 0] = NONE
    for j in range(1, len(around)):
        for m in range(j):
            pair = number[around[j], around[m]]
            if pair < 0 or not possible[m]:
                continue
            for o in range(len(cost)):
                if limit[pair, o] < degree[o]:
                    continue
                top = min(degrees, limit[pair, o])
                for k in range(cost[o], devices + 1):
                    for x in range(degree[o], top + 1):
                        value = min(r[m, k - cost[o], x - degree[o]], limit[pair, o] - x)
                        if value > r[j, k, x]:
                            r[j, k, x] = value
                            possible[j] = True
    return r


@njit
def limits_inside(
    number: Ints,
    pairs: int,
    cost: Ints,
    degree: Ints,
    limit: Limits,
    devices: int,
    degrees: int,
) -> Limits:
    """Return G, the greatest s with which a set fits on one device of the next level, (P, degrees + 1)."""
    greatest = np.full((pairs, degrees + 1), np.int32(-1))
    for bottom in range(len(number) - 1):
        around = np.concatenate((np.array([bottom]), np.flatnonzero(number[:, bottom] >= 0)))
        r = follow(number, around, cost, degree, limit, devices, degrees)
        for j in range(1, len(around)):
            pair = number[around[j], bottom]
            for x in range(1, degrees + 1):
                if r[j, devices, x] >= 0:
                    greatest[pair, x] = min(NONE, r[j, devices, x] + x)
    return greatest


@njit
def fewest_devices(
    number: Ints,
    cost: Ints,
    degree: Ints,
    limit: Limits,
    devices: int,
    degrees: int,
    remaining: Ints,
) -> Limits:
    """Return f[D][s], the fewest devices of the highest level, NONE where more are needed, (downsets, N + 1).

    What exceeds the devices when the `remaining` (at least needed for the layers outside D) are added is left
    out: no plan extends it.
    """
    f = np.full((len(number), degrees + 1), NONE)
    f[0, 0] = 0
    low = np.zeros(len(number), dtype=np.int64)
    high = np.full(len(number), -1)
    high[0] = 0
    for j in range(1, len(number)):
        row = f[j]
        for m in range(j):
            pair = number[j, m]
            if pair < 0 or high[m] < 0:
                continue
            for o in range(len(cost)):
                shift = degree[o]
                top = min(high[m] + shift, degrees, limit[pair, o])
                for s in range(low[m] + shift, top + 1):
                    row[s] = min(row[s], f[m, s - shift] + cost[o])
        first = True
        for s in range(degrees + 1):
            if row[s] + remaining[j] > devices:
                row[s] = NONE
                continue
            high[j] = s
            if first:
                low[j] = s
                first = False
    return f
