"""Whether a time suffices, level by level: `hierarchy_search` on the costs of `hierarchy_costs`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.plan.downsets import Downsets
from phaze.plan.piper.hierarchy_costs import (
    Sets,
    Staircase,
    border_bytes,
    constant_weight_s,
    least_work_s,
    sets_of,
    staircase,
    whole_weight_bytes,
)
from phaze.plan.piper.hierarchy_search import (
    NONE,
    Choices,
    Limits,
    fewest_devices,
    limits_inside,
    longest_in_flight,
)
from phaze.plan.piper.layers import Cluster, Layers
from phaze.plan.piper.nested import Hierarchy, Memory
from phaze.plan.piper.stages import Costs, costs_of


@dataclass(frozen=True, eq=False)
class Problem:
    """Layers, levels, and what does not depend on the time that is asked for."""

    layers: Layers
    hierarchy: Hierarchy
    memory: Memory
    sets: Sets
    costs: Costs
    border_bytes: Floats
    """(P,)"""
    weight_bytes: Floats
    """(P,) W."""
    work_s: Floats
    """(downsets,) device seconds that the layers of a downset need at least."""
    constant_s: tuple[Floats | None, ...]
    """For each width sum w / B_1 of every set (P,), None where it depends on the configurations."""
    stairs: dict[tuple[int, float], Staircase] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """Return the most microbatches in flight that any way of counting asks for."""
        return max(self.hierarchy.microbatches, self.hierarchy.devices)

    def in_flight(self, data: int, around: int, degree: int) -> int:
        """Return how many microbatches are counted for a stage with s = `degree` in its device of level 2."""
        match self.memory:
            case "exact":
                return -(-degree // data)
            case "crude":
                return -(-self.hierarchy.devices // data)
            case "lossy":
                return -(-self.hierarchy.microbatches_inside(around) // data)

    def allowed_s(self, t: int, data: int, around: int, time_s: float) -> tuple[Staircase, Floats | float]:
        """Return the staircase of the t-th width and how far a stage may go on it, (P,) or ()."""
        sync = self.hierarchy.sync_weight(data, around)
        constant_s = self.constant_s[t]
        key = (t, sync if constant_s is None else 0.0)
        if key not in self.stairs:
            self.stairs[key] = staircase(self.costs, self.sets.member, *key, self.most)
        allowed = time_s * data * around
        return self.stairs[key], allowed if constant_s is None else allowed - sync * constant_s

    def superstage_s(self, level: int, data: int, around: int) -> Floats:
        """Return the communication of a device of a level, per sample of the whole, (P,)."""
        sync = self.hierarchy.sync_weight(data, around) * self.weight_bytes
        bandwidth = self.hierarchy.bandwidths_bytes_per_s[level - 1]
        return (sync + 2 * self.border_bytes) / bandwidth / (data * around)


def problem_of(layers: Layers, hierarchy: Hierarchy, memory: Memory, downsets: Downsets) -> Problem:
    """Return the problem on the contiguous sets that some downsets make."""
    sets = sets_of(downsets)
    flat = Cluster(
        devices=hierarchy.counts[0],
        memory_bytes=hierarchy.memory_bytes,
        bandwidth_bytes_per_s=hierarchy.bandwidths_bytes_per_s[0],
        microbatches=hierarchy.microbatches,
        synchronisation=hierarchy.synchronisation,
    )
    costs = costs_of(layers, flat)
    return Problem(
        layers=layers,
        hierarchy=hierarchy,
        memory=memory,
        sets=sets,
        costs=costs,
        border_bytes=border_bytes(layers, sets.member),
        weight_bytes=sets.member @ whole_weight_bytes(layers),
        work_s=downsets.membership @ least_work_s(layers, hierarchy.counts[0]),
        constant_s=tuple(constant_weight_s(costs, sets.member, t) for t in range(len(costs.widths))),
    )


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
        choices = self.choices(level, around)
        sets, hierarchy = self.problem.sets, self.problem.hierarchy
        return limits_inside(
            sets.number,
            len(sets.outer),
            choices.cost,
            choices.degree,
            choices.limit,
            hierarchy.counts[level - 1],
            self.degrees(level, around),
        )

    def fewest(self) -> Limits:
        """Return the fewest devices of the highest level for every downset and sum of degrees."""
        problem, level = self.problem, self.problem.hierarchy.levels
        choices = self.choices(level, 1)
        return fewest_devices(
            problem.sets.number,
            choices.cost,
            choices.degree,
            choices.limit,
            problem.hierarchy.counts[-1],
            self.degrees(level, 1),
            self._remaining(),
        )

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
                most = longest_in_flight(
                    stairs.start,
                    stairs.time_s,
                    stairs.until,
                    np.broadcast_to(allowed, len(problem.sets.outer)).astype(np.float64),
                )
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
