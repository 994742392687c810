"""Pareto fronts of many points in time, area and energy.

Point b covers point a if it is not worse in any of the three and precedes it in the order (time, area,
energy, index): b dominates a, or they are equal and b comes first. Covering is transitive, so the points that
no other point covers form the Pareto front, with the first of equal points.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.base.ranking import Ranks

MANY = 4096
"""Number of points from which a first pass over a sample pays off."""
SHARE = 64
"""Sampling interval: the sample is one point in this many."""


def uncovered(time: Floats, area: Floats, energy: Floats, covering: Bools | None = None) -> Bools:
    """Mask (n,) of points that no other point, or none in `covering` if given, dominates; O(n log n)."""
    ranks = np.unique(area, return_inverse=True)[1].astype(np.int64)
    order = np.lexsort((energy, area, time))
    among = np.ones(len(time), dtype=np.bool_) if covering is None else covering
    return _sweep(order, ranks, energy, among, int(ranks.max(initial=-1)) + 1)


def uncovered_among(among: Bools, time: Floats, area: Floats, energy: Floats) -> Bools:
    """Mask (n,) of points of a subset that no other point of the subset dominates.

    A large subset is first filtered by the front of a sample, which needs no sorting. This is valid because
    covering is transitive.
    """
    members = np.flatnonzero(among)
    if len(members) > MANY:
        sample = members[::SHARE]
        few = sample[uncovered(time[sample], area[sample], energy[sample])]
        members = np.flatnonzero(among & ~covered_by(few, time, area, energy))
    result = np.zeros(len(time), dtype=np.bool_)
    result[members[uncovered(time[members], area[members], energy[members])]] = True
    return result


@njit
def _sweep(order: Ranks, area: Ranks, energy: Floats, covering: Bools, areas: int) -> Bools:
    """Mask of undominated points, found in order of time with a Fenwick tree of minimum energy by area."""
    least = np.full(areas + 1, np.inf)
    result = np.zeros(len(order), dtype=np.bool_)
    for i in order:
        best, a = np.inf, area[i] + 1
        while a > 0:
            best = min(best, least[a])
            a -= a & -a
        result[i] = not best <= energy[i]
        a = area[i] + 1
        while covering[i] and a <= areas:
            least[a] = min(least[a], energy[i])
            a += a & -a
    return result


def covered_by(few: Ints, time: Floats, area: Floats, energy: Floats) -> Bools:
    """Mask (n,) of points dominated by any of the points `few`, found without sorting all points."""
    return _compare(few[np.argsort(time[few], kind="stable")], time, area, energy)


@njit
def _compare(few: Ints, time: Floats, area: Floats, energy: Floats) -> Bools:
    """Mask (n,) of points that one of the points `few` dominates; `few` are sorted by time."""
    result = np.zeros(len(time), dtype=np.bool_)
    for i in range(len(time)):
        for k in few:
            if time[k] > time[i] or result[i]:
                break
            if area[k] <= area[i] and energy[k] <= energy[i]:
                equal = time[k] == time[i] and area[k] == area[i] and energy[k] == energy[i]
                result[i] = not equal or k < i
    return result
