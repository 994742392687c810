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

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit
from phaze.plan.piper.hierarchy_costs import Problem, Staircase

Limits = NDArray[np.int32]


class Choices(NamedTuple):
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
def longest_in_flight(stairs: Staircase, allowed: Floats) -> Ints:
    """Return the most microbatches in flight whose least cost is allowed, of each set; 0 where none, (P,)."""
    most = np.zeros(len(allowed), dtype=np.int64)
    for p in range(len(allowed)):
        low, high = stairs.start[p], stairs.start[p + 1]
        while low < high:
            middle = (low + high) // 2
            if stairs.time_s[middle] <= allowed[p]:
                low = middle + 1
            else:
                high = middle
        if low > stairs.start[p]:
            most[p] = stairs.until[low - 1]
    return most


@njit
def follow(number: Ints, around: Ints, choices: Choices, devices: int, degrees: int) -> Limits:
    """Return r[D][k][x], -1 where nothing keeps the time, shape (len(around), devices + 1, degrees + 1).

    `around` lists D' and then the downsets D that hold it, smaller ones first.
    """
    cost, degree, limit = choices.cost, choices.degree, choices.limit
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
def limits_inside(number: Ints, choices: Choices, devices: int, degrees: int) -> Limits:
    """Return G, the greatest s with which a set fits on one device of the next level, (P, degrees + 1)."""
    greatest = np.full((len(choices.limit), degrees + 1), np.int32(-1))
    for bottom in range(len(number) - 1):
        around = np.concatenate((np.array([bottom]), np.flatnonzero(number[:, bottom] >= 0)))
        r = follow(number, around, choices, devices, degrees)
        for j in range(1, len(around)):
            pair = number[around[j], bottom]
            for x in range(1, degrees + 1):
                if r[j, devices, x] >= 0:
                    greatest[pair, x] = min(NONE, r[j, devices, x] + x)
    return greatest


@njit
def fewest_devices(number: Ints, choices: Choices, devices: int, degrees: int, remaining: Ints) -> Limits:
    """Return f[D][s], the fewest devices of the highest level, NONE where more are needed, (downsets, N + 1).

    What exceeds the devices when the `remaining` (at least needed for the layers outside D) are added is left
    out: no plan extends it.
    """
    cost, degree, limit = choices.cost, choices.degree, choices.limit
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


@dataclass(frozen=True, eq=False)
class Question:
    """Whether some plan takes `time_s` or less on every device of every level."""

    problem: Problem
    time_s: float
    asked: dict[tuple[int, int], Choices] = field(default_factory=dict)

    def choices(self, level: int, around: int) -> Choices:
        """Return how sets run as superstages of a level, with replicas of it whose d multiply to `around`."""
        key = (level, around)
        if key not in self.asked:
            rows = self._stages(around) if level == 1 else self._superstages(level, around)
            self.asked[key] = _choices(list(rows), len(self.problem.sets.outer))
        return self.asked[key]

    def degrees(self, level: int, around: int) -> int:
        """Return the most that degrees may sum up to in a device of the level above."""
        hierarchy = self.problem.hierarchy
        return min(prod(hierarchy.counts[:level]), hierarchy.microbatches // around)

    def limits(self, level: int, around: int) -> Limits:
        """Return the greatest s with which sets fit on one device of the level above, (P, degrees + 1)."""
        number, devices = self.problem.sets.number, self.problem.hierarchy.counts[level - 1]
        return limits_inside(number, self.choices(level, around), devices, self.degrees(level, around))

    def fewest(self) -> Limits:
        """Return the fewest devices of the highest level for every downset and sum of degrees."""
        number, hierarchy = self.problem.sets.number, self.problem.hierarchy
        choices, degrees = self.choices(hierarchy.levels, 1), self.degrees(hierarchy.levels, 1)
        return fewest_devices(number, choices, hierarchy.counts[-1], degrees, self._remaining())

    def _remaining(self) -> Ints:
        """Return the devices of the highest level that the layers outside a downset need at least."""
        hierarchy = self.problem.hierarchy
        each_s = self.time_s * hierarchy.inside(hierarchy.levels)
        rest_s = self.problem.work_s[-1] - self.problem.work_s
        needed = np.ceil(rest_s / each_s - 1e-9) if each_s > 0 else np.zeros(len(rest_s))
        return np.clip(needed, 0, int(NONE) // 4).astype(np.int64)

    def _stages(self, around: int) -> Iterator[tuple[int, int, int, int, Ints]]:
        """Yield d, t, the devices, the degree and the greatest s of each set, for stages of level 1."""
        problem, hierarchy = self.problem, self.problem.hierarchy
        for t, tensor in enumerate(problem.costs.widths.tolist()):
            for data in hierarchy.degrees(1, around):
                if data * tensor > hierarchy.counts[0]:
                    break
                stairs, allowed = problem.allowed_s(t, data, around, self.time_s)
                each = np.broadcast_to(allowed, len(problem.sets.outer)).astype(np.float64)
                most = longest_in_flight(stairs, each)
                yield data, tensor, data * tensor, data, self._limit(most, data, around)

    def _limit(self, most: Ints, data: int, around: int) -> Ints:
        """Return the greatest s for which `most` microbatches in flight are enough, (P,)."""
        if self.problem.memory == "exact":
            return np.asarray(data * most)
        assumed = self.problem.in_flight(data, around, 0)
        return np.where(most >= assumed, data * self.problem.most, 0)

    def _superstages(self, level: int, around: int) -> Iterator[tuple[int, int, int, int, Ints]]:
        """Yield d, x, the devices, the degree and the greatest s of each set, for a level above the first."""
        problem = self.problem
        for data in problem.hierarchy.degrees(level, around):
            fits = problem.superstage_s(level, data, around) <= self.time_s
            limits = self.limits(level - 1, around * data).astype(np.int64)
            for x in range(1, limits.shape[1]):
                yield data, x, data, data * x, np.where(fits, data * limits[:, x], 0)


def _choices(rows: list[tuple[int, int, int, int, Ints]], sets: int) -> Choices:
    """Return those of the choices that are of use to some set."""
    used = [row for row in rows if (row[4] >= row[3]).any()]
    limit = np.empty((sets, len(used)), dtype=np.int32)
    for o, row in enumerate(used):
        limit[:, o] = np.minimum(row[4], int(NONE) // 2)
    data, inner, cost, degree = (np.array([row[i] for row in used], dtype=np.int64) for i in range(4))
    return Choices(data, inner, cost, degree, limit)
