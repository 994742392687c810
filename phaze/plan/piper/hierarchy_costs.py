"""What stages and superstages cost, for all contiguous sets at once (Piper, Section 4 and Appendix E).

A stage of level 1 with degrees d and t, of which the levels above run q replicas, takes for a sample of the
whole

    1/(q d) * [sum p + 2 (c + c_fw or c_bw) / B_1 over the border + L sum w / B_1]

where L = 4 (d-1)/d for synchronisation by rounds and L = 4 (d-1)/d * q d/N by batches. Which configurations
are best depends on t, on L and on how many microbatches are in flight; on d and q only through these. So
one staircase for each set, t and L says all: the least time as a function of what is in flight.

A superstage of level l takes 1/(q d) * [L W + 2 sum of c over the border] / B_l. There the weights of a
layer are those of the whole layer, which all devices inside hold together: W sums t X.w over the layers,
with the least t that a layer has configurations for (and the largest X.w of these). Appendix E leaves this
open, as it ignores tensor parallelism where it states the cost. Slices that t devices copy rather than
share, such as those of normalisations, are counted once. What a layer's t devices exchange (c_fw, c_bw)
stays inside level 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.cost.network.network import BOTH_DIRECTIONS
from phaze.plan.downsets import Downsets, DownsetsError
from phaze.plan.piper.knapsack import choose_exactly
from phaze.plan.piper.layers import Cluster, Layers, in_flight
from phaze.plan.piper.nested import Hierarchy, Memory
from phaze.plan.piper.stages import Costs, costs_of, price_stage

PAIRS = 400_000
"""Contiguous sets that are planned for at most."""


@dataclass(frozen=True, eq=False)
class Sets:
    """All contiguous sets that are not empty, P of them, as pairs of downsets: `outer` without `inner`."""

    outer: Ints
    """(P,) downset, rising."""
    inner: Ints
    """(P,) downset inside it, rising for one outer."""
    number: Ints
    """(downsets, downsets) which set an outer and an inner make, or -1."""
    member: Bools
    """(P, n) whether it holds a layer."""


class Staircase(NamedTuple):
    """The least time of every set as a function of the microbatches in flight, in steps."""

    start: Ints
    """(P + 1,) first step of each set."""
    time_s: Floats
    """(steps,) rising within a set."""
    until: Ints
    """(steps,) the most in flight at that time, rising within a set."""


def sets_of(downsets: Downsets) -> Sets:
    """Return all pairs of nested downsets; too many: an error that says what to do."""
    inside: list[Ints] = []
    pairs = 0
    for i in range(len(downsets)):
        inside.append(downsets.within(i)[:-1])
        pairs += len(inside[-1])
        if pairs > PAIRS:
            raise DownsetsError(
                f"{i + 1} of {len(downsets)} downsets make {pairs} contiguous sets; for levels at most "
                f"{PAIRS} are compared; the prefixes of one linear order make fewer"
            )
    sizes = np.array([len(inner) for inner in inside])
    outer = np.repeat(np.arange(len(downsets)), sizes)
    inner = np.concatenate(inside)
    number = np.full((len(downsets), len(downsets)), -1, dtype=np.int64)
    number[outer, inner] = np.arange(len(outer))
    member = downsets.membership
    return Sets(outer, inner, number, member[outer] & ~member[inner])


def border_bytes(layers: Layers, member: Bools) -> Floats:
    """Return the sum of c over the edges that cross each set's border, (P,)."""
    crossing: Floats = (member[:, layers.sources] != member[:, layers.targets]) @ layers.edge_bytes
    return crossing


def whole_weight_bytes(layers: Layers) -> Floats:
    """Return the weights of each layer on all its devices together, (n,)."""
    weights = np.zeros(len(layers))
    for tensor in sorted(layers.options, reverse=True):
        options = layers.options[tensor]
        most = np.full(len(layers), -1.0)
        np.maximum.at(most, options.layer, tensor * options.weight_bytes)
        weights = np.where(most >= 0, most, weights)
    return weights


def least_work_s(layers: Layers, widest: int) -> Floats:
    """Return the least t X.p of each layer over t <= widest, zero where it has no configuration, (n,)."""
    work = np.full(len(layers), np.inf)
    for tensor, options in layers.options.items():
        if tensor <= widest:
            np.minimum.at(work, options.layer, tensor * options.time_s)
    return np.where(np.isinf(work), 0.0, work)


def constant_weight_s(costs: Costs, member: Bools, t: int) -> Floats | None:
    """Return sum w / B of every set at the t-th width (P,), None where it depends on the configurations."""
    exchange_s = costs.weight_s / BOTH_DIRECTIONS
    spans = [exchange_s[i:j] for i, j in pairwise(costs.first[t])]
    if any(len(span) and np.ptp(span) > 0 for span in spans):
        return None
    return np.asarray(member @ np.array([span[0] if len(span) else 0.0 for span in spans]))


@njit
def staircase_of(costs: Costs, member: Bools, t: int, exchanged: float, most: int) -> Staircase:
    """Return the least times of stages with d = q = 1, and gradients exchanged as often as given.

    With more in flight, nothing gets smaller: the least time rises. The choice that is best for m
    microbatches stays so until it no longer fits, hence one knapsack for each step of the staircase. member:
    (P, n); t: the position of the width; exchanged: as for `price_stage`; most: in flight at all.
    """
    sets = len(member)
    start = np.zeros(sets + 1, dtype=np.int64)
    time = np.empty(2 * sets + 2)
    until = np.empty(2 * sets + 2, dtype=np.int64)
    chosen = np.empty(member.shape[1], dtype=np.int64)
    stash, fixed, limit = costs.stash_bytes, costs.fixed_bytes, costs.limit_bytes
    steps = 0
    for p in range(sets):
        own_s, memory_bytes, common_s = price_stage(costs, member[p], t, exchanged, 1)
        m = 1
        while m <= most and choose_exactly(costs.first[t], member[p], own_s, memory_bytes, limit, chosen):
            if steps == len(time):
                time = np.concatenate((time, np.empty(len(time))))
                until = np.concatenate((until, np.empty(len(until), dtype=np.int64)))
            picked = chosen[member[p]]
            m = max(m, _lasts(stash[picked].sum(), fixed[picked].sum(), limit, most))
            time[steps] = own_s[picked].sum() + common_s
            until[steps] = m
            steps += 1
            m += 1
            memory_bytes = stash * m + fixed
        start[p + 1] = steps
    return Staircase(start, time[:steps].copy(), until[:steps].copy())


@njit
def _lasts(stash: float, fixed: float, limit: float, most: int) -> int:
    """Return the most microbatches in flight, of `most`, that fit."""
    if stash * most + fixed <= limit:
        return most
    m = int((limit - fixed) / stash)
    while m > 0 and stash * m + fixed > limit:
        m -= 1
    while stash * (m + 1) + fixed <= limit:
        m += 1
    return m


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
        sums = {
            "exact": degree,
            "crude": self.hierarchy.devices,
            "lossy": self.hierarchy.microbatches_inside(around),
        }
        return in_flight(sums[self.memory], data)

    def allowed_s(self, t: int, data: int, around: int, time_s: float) -> tuple[Staircase, Floats | float]:
        """Return the staircase of the t-th width and how far a stage may go on it, (P,) or ()."""
        sync = self.hierarchy.sync_weight(data, around)
        constant_s = self.constant_s[t]
        key = (t, sync if constant_s is None else 0.0)
        if key not in self.stairs:
            exchanged = key[1] / BOTH_DIRECTIONS
            self.stairs[key] = staircase_of(self.costs, self.sets.member, t, exchanged, self.most)
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
