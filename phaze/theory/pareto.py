"""Which of many points no other is better than, in time, area and energy.

Point b covers point a when it is not worse in any of the three and comes before it in the order (time, area,
energy, index): a is dominated by b, or equal and later. Covering is transitive, so that the points that no
other covers form the Pareto front, of equal points the first one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phaze.ndarrays import Bools, Floats, Ints
from phaze.theory.compiled import njit
from phaze.theory.ranking import Ranks


@dataclass(frozen=True, eq=False)
class Points:
    """Points in the order in which they may cover each other, to be asked for parts of them, arrays (n,)."""

    order: Ranks
    """Indices of the points by time, area, energy and index."""
    area: Ranks
    """Place of every point's area among the distinct ones."""
    energy: Floats

    @classmethod
    def of(cls, time: Floats, area: Floats, energy: Floats) -> Points:
        """Return the points sorted; O(n log n)."""
        ranks = np.unique(area, return_inverse=True)[1].astype(np.int64)
        return cls(np.lexsort((energy, area, time)), ranks, energy)

    def uncovered(self, among: Bools, covering: Bools | None = None) -> Bools:
        """Return which of some of the points (n,) none of the covering ones, by default the same, covers."""
        areas = int(self.area.max(initial=-1)) + 1
        return _sweep(
            self.order, self.area, self.energy, among, among if covering is None else covering, areas
        )


def uncovered(time: Floats, area: Floats, energy: Floats, covering: Bools | None = None) -> Bools:
    """Return which points (n,) none of the covering points, by default all, covers; O(n log n)."""
    return Points.of(time, area, energy).uncovered(np.ones(len(time), dtype=np.bool_), covering)


@njit
def _sweep(order: Ranks, area: Ranks, energy: Floats, among: Bools, covering: Bools, areas: int) -> Bools:
    """Go through the points by time and keep the least energy of all areas up to each, in a Fenwick tree."""
    least = np.full(areas + 1, np.inf)
    result = np.zeros(len(order), dtype=np.bool_)
    for i in order:
        if among[i]:
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
    """Return which points (n,) are covered by one of a few of them, given by index; they need no sorting."""
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
