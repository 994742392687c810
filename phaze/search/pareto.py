"""Which of many points no other is better than, in time, area and energy.

Point b covers point a when it is not worse in any of the three and comes before it in the order (time, area,
energy, index): a is dominated by b, or equal and later. Covering is transitive, so that the points that no
other covers form the Pareto front, of equal points the first one.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.base.ranking import Ranks

MANY = 4096
"""Of how many points at least it pays to look at a few first."""
SHARE = 64
"""One of how many these are."""


def uncovered(time: Floats, area: Floats, energy: Floats, covering: Bools | None = None) -> Bools:
    """Which points (n,) none of the covering points, by default all, covers; O(n log n)."""
    ranks = np.unique(area, return_inverse=True)[1].astype(np.int64)
    order = np.lexsort((energy, area, time))
    among = np.ones(len(time), dtype=np.bool_) if covering is None else covering
    return _sweep(order, ranks, energy, among, int(ranks.max(initial=-1)) + 1)


def uncovered_among(among: Bools, time: Floats, area: Floats, energy: Floats) -> Bools:
    """Which of some points (n,) no other of these covers.

    Of many, those that some of them cover are left out first, which takes no sorting: covering is transitive.
    """
    mine = np.flatnonzero(among)
    if len(mine) > MANY:
        some = mine[::SHARE]
        few = some[uncovered(time[some], area[some], energy[some])]
        mine = np.flatnonzero(among & ~covered_by(few, time, area, energy))
    result = np.zeros(len(time), dtype=np.bool_)
    result[mine[uncovered(time[mine], area[mine], energy[mine])]] = True
    return result


@njit
def _sweep(order: Ranks, area: Ranks, energy: Floats, covering: Bools, areas: int) -> Bools:
    """Go through the points by time and keep the least energy of all areas up to each, in a Fenwick tree."""
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
    """Which points (n,) are covered by one of a few of them, given by index; they need no sorting."""
    return _compare(few[np.argsort(time[few], kind="stable")], time, area, energy)


@njit
def _compare(few: Ints, time: Floats, area: Floats, energy: Floats) -> Bools:
    """Compare every point with the few by rising time, as long as these take no longer."""
    result = np.zeros(len(time), dtype=np.bool_)
    for i in range(len(time)):
        for k in few:
            if time[k] > time[i] or result[i]:
                break
            if area[k] <= area[i] and energy[k] <= energy[i]:
                equal = time[k] == time[i] and area[k] == area[i] and energy[k] == energy[i]
                result[i] = not equal or k < i
    return result
