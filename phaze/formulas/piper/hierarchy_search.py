"""Decide whether a plan meets a time limit on every device of every level (Piper, Appendix E, inverted).

A stage of level 1 with degrees d and t, of which the levels above run q replicas, takes for a sample of the
whole

    1/(q d) * [sum p + 2 (c + c_fw or c_bw) / B_1 over the border + L sum w / B_1]

where L = 4 (d-1)/d for synchronisation by rounds and L = 4 (d-1) q/N by batches. The best configurations
depend on t, on L and on the microbatches in flight; on d and q only through these. So one staircase per set,
t and L is enough: the least time as a function of the microbatches in flight.

A superstage of level l takes 1/(q d) * [L W + 2 sum of c over the border] / B_l. There the weights of a layer
are those of the whole layer, which all devices inside hold together: W sums t X.w over the layers, with the
least t that a layer has configurations for (and the largest X.w of these). Appendix E leaves this open,
because it ignores tensor parallelism where it states the cost. Shards that t devices copy rather than divide,
such as those of normalisations, are counted once. The exchange of a layer's t devices (c_fw, c_bw) stays
inside level 1.

Appendix E tabulates dp[D, D'][k][s, x], the least time. To decide if a time t suffices, the sums s need no
axis. A set of layers that fits on a device with s fits with any smaller s (fewer microbatches are in flight),
so the greatest s that fits is enough: G[D, D'][x], found level by level from

    r[D][k][x] = max over D°, d, x° of min(r[D°][k - c][x - x°], S[D - D°, d, x°] - x)

where r = s - x counts the degrees of all that follows the whole set, c is the devices and x° the degrees that
the last superstage takes, and S is the greatest s within the time limit. At level 1 S is d times the
microbatches that may be in flight. At a level above it is d G[x°/d] of the level below (as ceil(s/d) <= G if
and only if s <= d G) if its own communication is within the limit. At the highest level D' is empty and
s = x, and f[D][s], the fewest devices, is enough. Unused devices do no harm: k is an upper limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.cost.network.network import BOTH_DIRECTIONS
from phaze.formulas.downsets import Downsets, DownsetsError
from phaze.formulas.piper.knapsack import choose_exactly
from phaze.formulas.piper.layers import FlatCluster, Hierarchy, ProfiledLayers
from phaze.formulas.piper.stages import ConfigurationCosts, costs_of, price_stage
from phaze.layout import Layout

PAIRS = 400_000
"""Limit on the number of contiguous sets of layers."""
NONE = np.int32(1 << 30)
"""Number of devices of a state that no plan reaches; as a sum of degrees, no limit."""
Greatest = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Sets:
    """All P non-empty contiguous sets of layers, as differences of downsets: `outer` without `inner`."""

    outer: Ints
    """(P,) index of the outer downset, ascending."""
    inner: Ints
    """(P,) index of the inner downset, ascending for each outer one."""
    number: Ints
    """(downsets, downsets) index of the set of an outer and an inner downset, or -1."""
    member: Bools
    """(P, n) true if the set contains a layer."""


class Staircase(NamedTuple):
    """Minimum time of each set of layers, as a step function of the microbatches in flight."""

    start: Ints
    """(P + 1,) index of the first step of each set."""
    time_s: Floats
    """(steps,) time of each step, ascending within a set."""
    until: Ints
    """(steps,) most microbatches in flight at that time, ascending within a set."""


class DegreeChoices(NamedTuple):
    """The O choices of degrees with which a set of layers can run as one stage or superstage of a level."""

    data: Ints
    """(O,) data-parallel degree d."""
    inner: Ints
    """(O,) t at level 1; above it x°/d, the sum of the degrees inside each device."""
    cost: Ints
    """(O,) number of devices of the level."""
    degree: Ints
    """(O,) x°, the sum of the data-parallel degrees."""
    limit: Greatest
    """(P, O) greatest s with which the set stays within the time; less than x° if there is none."""


def sets_of(downsets: Downsets) -> Sets:
    """All contiguous sets, from pairs of nested downsets; DownsetsError with advice if there are too many."""
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
    outer = np.repeat(np.arange(len(downsets)), [len(inner) for inner in inside])
    inner = np.concatenate(inside)
    number = np.full((len(downsets), len(downsets)), -1, dtype=np.int64)
    number[outer, inner] = np.arange(len(outer))
    member = downsets.membership
    return Sets(outer, inner, number, member[outer] & ~member[inner])


@njit
def staircase_of(costs: ConfigurationCosts, member: Bools, t: int, exchanged: float, most: int) -> Staircase:
    """Least time of every set as a stage without replicas, by microbatches in flight.

    The least time rises with the microbatches in flight. The best choice for m microbatches stays the best
    until it no longer fits, hence one knapsack per step of the staircase. member: (P, n); t: index of the
    width; exchanged: as for `price_stage`; most: upper limit of microbatches in flight.
    """
    start, time, until = [0], [0.0][:0], [0][:0]
    chosen = np.empty(member.shape[1], dtype=np.int64)
    stash, fixed, limit = costs.stash_bytes, costs.fixed_bytes, costs.limit_bytes
    for p in range(len(member)):
        own_s, memory_bytes, common_s = price_stage(costs, member[p], t, exchanged, 1)
        m = 1
        while m <= most and choose_exactly(costs.first[t], member[p], own_s, memory_bytes, limit, chosen):
            # The choice stays optimal as long as it fits: more microbatches only rule choices out.
            picked = chosen[member[p]]
            m = max(m, _lasts(stash[picked].sum(), fixed[picked].sum(), limit, most))
            time.append(own_s[picked].sum() + common_s)
            until.append(m)
            m += 1
            memory_bytes = stash * m + fixed
        start.append(len(time))
    return Staircase(np.array(start), np.array(time), np.array(until))


@njit
def _lasts(stash: float, fixed: float, limit: float, most: int) -> int:
    """Most microbatches in flight that fit in memory, at most `most`."""
    if stash * most + fixed <= limit:
        return most
    # The quotient may be rounded to either side of an integer.
    m = int((limit - fixed) / stash)
    while m > 0 and stash * m + fixed > limit:
        m -= 1
    while stash * (m + 1) + fixed <= limit:
        m += 1
    return m


@njit
def longest_in_flight(stairs: Staircase, allowed: Floats) -> Ints:
    """Maximum number of microbatches in flight at which each set meets its time limit, (P,); 0 if none."""
    most = np.zeros(len(allowed), dtype=np.int64)
    for p in range(len(allowed)):
        begin, end = stairs.start[p], stairs.start[p + 1]
        steps = np.searchsorted(stairs.time_s[begin:end], allowed[p], side="right")
        if steps > 0:
            most[p] = stairs.until[begin + steps - 1]
    return most


@njit
def follow(number: Ints, around: Ints, choices: DegreeChoices, devices: int, degrees: int) -> Greatest:
    """Greatest degree sum r[D][k][x] of the stages after D, if D has k devices and degree sum x; else -1.

    `around` lists D' and then the downsets D that contain it, smaller ones first.
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
                        # The stage limits what follows it, and so do the stages before it in the set.
                        value = min(r[m, k - cost[o], x - degree[o]], limit[pair, o] - x)
                        if value > r[j, k, x]:
                            r[j, k, x] = value
                            possible[j] = True
    return r


@njit
def limits_inside(number: Ints, choices: DegreeChoices, devices: int, degrees: int) -> Greatest:
    """Greatest degree sum of each set and later stages, by the set's own sum x, (P, degrees + 1).

    The set is on one device of the next level; -1 if it cannot be.
    """
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
def fewest_devices(
    number: Ints, choices: DegreeChoices, devices: int, degrees: int, remaining: Ints
) -> Greatest:
    """Fewest highest-level devices f[D][s] for downset D and degree sum s; NONE if they do not suffice.

    A state is dropped if it exceeds the devices with `remaining` added, the lower bound of devices for the
    layers outside D: no plan extends it.
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
        # Too many devices for any extension: the state is dropped.
        row[row + remaining[j] > devices] = NONE
        reached = np.flatnonzero(row < NONE)
        if len(reached):
            low[j], high[j] = reached[0], reached[-1]
    return f


class LevelCosts:
    """Costs of all contiguous sets as stages and superstages, independent of the time limit."""

    def __init__(self, layers: ProfiledLayers, hierarchy: Hierarchy, downsets: Downsets) -> None:
        """Compute the costs of all sets that do not depend on their degrees."""
        self.hierarchy, self.sets = hierarchy, sets_of(downsets)
        self.costs = costs_of(layers, hierarchy.inner)
        member = self.sets.member
        crossing = member[:, layers.sources] != member[:, layers.targets]
        self.border_bytes: Floats = crossing @ layers.edge_bytes
        """(P,) total bytes c of the edges that cross the boundary of the set."""
        self.weight_bytes: Floats = member @ _whole_weight_bytes(layers)
        """(P,) W, the weights of the set on all its devices together."""
        work_s = layers.least(lambda width, options: width * options.time_s, hierarchy.inner.devices)
        self.work_s: Floats = downsets.membership.astype(float) @ np.where(np.isinf(work_s), 0.0, work_s)
        """(downsets,) lower bound on the device-seconds of the layers in each downset."""
        self.constant_s = [_constant_weight_s(self.costs, member, t) for t in range(len(self.costs.widths))]
        """For each width, each set's sum of w / B_1, (P,); None if it depends on the configurations."""
        self._stairs: dict[tuple[int, float], Staircase] = {}

    def most_in_flight(self, t: int, layout: Layout, around: int, time_s: float) -> Ints:
        """Most microbatches in flight with which each set, at the t-th width, meets the time limit, (P,)."""
        exchanged = self.hierarchy.cluster(1, around).exchanged(layout)
        constant_s = self.constant_s[t]
        # Weights that no choice changes add a constant: one staircase then serves all degrees.
        key = (t, exchanged if constant_s is None else 0.0)
        if key not in self._stairs:
            most = self.hierarchy.inner.microbatches
            self._stairs[key] = staircase_of(self.costs, self.sets.member, t, key[1], most)
        allowed = np.full(len(self.sets.outer), time_s * layout.dp * around)
        if constant_s is not None:
            allowed -= BOTH_DIRECTIONS * exchanged * constant_s
        return longest_in_flight(self._stairs[key], allowed)

    def superstage_s(self, level: int, layout: Layout, around: int) -> Floats:
        """Communication time of each set as a superstage of a level, per sample of the global batch, (P,)."""
        cluster = self.hierarchy.cluster(level, around)
        gradients = BOTH_DIRECTIONS * cluster.exchanged(layout) * self.weight_bytes
        return (gradients + 2 * self.border_bytes) / cluster.bandwidth_bytes_per_s / (layout.dp * around)


def _whole_weight_bytes(layers: ProfiledLayers) -> Floats:
    """Weight bytes of each layer, summed over all its devices, (n,)."""
    weights = np.zeros(len(layers))
    # Descending, so that the least width of each layer is written last.
    for width in sorted(layers.options, reverse=True):
        options = layers.options[width]
        most = np.full(len(layers), -1.0)
        np.maximum.at(most, options.layer, width * options.weight_bytes)
        weights = np.where(most >= 0, most, weights)
    return weights


def _constant_weight_s(costs: ConfigurationCosts, member: Bools, t: int) -> Floats | None:
    exchange_s = costs.weight_s / BOTH_DIRECTIONS
    spans = [exchange_s[i:j] for i, j in pairwise(costs.first[t])]
    if any(len(span) and np.ptp(span) > 0 for span in spans):
        return None
    return np.asarray(member @ np.array([span[0] if len(span) else 0.0 for span in spans]))


@dataclass(frozen=True, eq=False)
class WithinTime:
    """Search for plans that take `time_s` or less on every device of every level."""

    costs: LevelCosts
    time_s: float
    _choices: dict[tuple[int, int], DegreeChoices] = field(default_factory=dict)

    def choices(self, level: int, around: int) -> DegreeChoices:
        """Choices of degrees at a level; `around` is the product of the outer levels' replica counts."""
        key = (level, around)
        if key not in self._choices:
            rows = list(self._stages(around) if level == 1 else self._superstages(level, around))
            used = [row for row in rows if (row[4] >= row[3]).any()]
            limit = np.empty((len(self.costs.sets.outer), len(used)), dtype=np.int32)
            for o, row in enumerate(used):
                # Halved, so that sums of two limits do not overflow 32 bits.
                limit[:, o] = np.minimum(row[4], int(NONE) // 2)
            data, inner, cost, degree = (np.array([row[i] for row in used], np.int64) for i in range(4))
            self._choices[key] = DegreeChoices(data, inner, cost, degree, limit)
        return self._choices[key]

    def _degrees(self, level: int, cluster: FlatCluster) -> int:
        """Largest sum of data-parallel degrees inside one device of the level above."""
        return min(self.costs.hierarchy.devices(level), cluster.microbatches)

    def fewest(self) -> Greatest:
        """Fewest devices of the highest level for every downset and sum of degrees."""
        hierarchy, work_s = self.costs.hierarchy, self.costs.work_s
        top = len(hierarchy.levels)
        each_s, rest_s = self.time_s * hierarchy.devices(top - 1), work_s[-1] - work_s
        # Rounding errors must not require a device too many.
        needed = np.ceil(rest_s / each_s - 1e-9) if each_s > 0 else np.zeros(len(rest_s))
        remaining = np.clip(needed, 0, int(NONE) // 4).astype(np.int64)
        cluster, number = hierarchy.cluster(top, 1), self.costs.sets.number
        return fewest_devices(
            number, self.choices(top, 1), cluster.devices, self._degrees(top, cluster), remaining
        )

    def _stages(self, around: int) -> Iterator[tuple[int, int, int, int, Ints]]:
        """Yield choices for a level-1 stage: d, t, devices, degree, and each set's greatest degree sum."""
        cluster = self.costs.hierarchy.cluster(1, around)
        for t, width in enumerate(self.costs.costs.widths.tolist()):
            degrees = cluster.data_widths()
            for data in degrees[degrees * width <= cluster.devices].tolist():
                layout = Layout(tp=width, dp=data)
                most = self.costs.most_in_flight(t, layout, around, self.time_s)
                yield data, width, layout.devices, data, data * most

    def _superstages(self, level: int, around: int) -> Iterator[tuple[int, int, int, int, Ints]]:
        """Yield candidate superstages of a level above the first.

        Each is its data-parallel width d, units x, devices, degree, and the largest suffix sum s of each set.
        """
        number, hierarchy = self.costs.sets.number, self.costs.hierarchy
        for data in hierarchy.cluster(level, around).data_widths().tolist():
            fits = self.costs.superstage_s(level, Layout(dp=data), around) <= self.time_s
            inner = hierarchy.cluster(level - 1, around * data)
            choices, degrees = self.choices(level - 1, around * data), self._degrees(level - 1, inner)
            limits = limits_inside(number, choices, inner.devices, degrees).astype(np.int64)
            for x in range(1, limits.shape[1]):
                yield data, x, data, data * x, np.where(fits, data * limits[:, x], 0)
