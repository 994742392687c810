"""Best plan on a hierarchical network (Piper, Appendix E), found by bisection on the time per sample.

A plan cuts the layers into superstages of the highest level. A superstage with data-parallel degree d runs on
d devices of that level, each of which takes every d-th microbatch and cuts the same layers again for the
devices inside it. The parts at level 1 are stages with data and tensor parallelism, as on a flat network.

The time per sample is the largest over all devices of all levels, so the optimum is found by bisection:
`hierarchy_search` decides if a time suffices, and its tables give such a plan. A plan replaces the
upper end by its own time, which is no longer. The search ends when at most 1e-12 of it could still be gained.
(The text of Appendix E prints a maximum over k where the final result is the minimum.)

Configurations are chosen exactly, not by the bang-per-buck rule. That rule may find a faster choice for more
microbatches in flight, and "the greatest s within the time" would then not be sufficient.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf, sqrt

import numpy as np

from phaze.formulas.downsets import enumerate_downsets, enumerate_prefixes
from phaze.formulas.piper.hierarchy_search import (
    NONE,
    DegreeChoices,
    Greatest,
    LevelCosts,
    WithinTime,
    follow,
)
from phaze.formulas.piper.knapsack import choose_exactly
from phaze.formulas.piper.layers import Hierarchy, PiperPlan, PlannedStage, ProfiledLayers, in_flight
from phaze.formulas.piper.stages import planned_stage
from phaze.layout import Layout

MAX_DOWNSETS = 2_000
"""Default limit on the number of downsets; all nested pairs of them are compared."""
TOLERANCE = 1e-12
"""Relative gap to the optimum at which the search stops."""
CLOSE = 1e-4
"""Relative gap below which the search tests a time just below the best plan's instead of bisecting."""
Link = tuple[int, int, int]
"""A set of layers, the index of its degrees in `DegreeChoices`, and s.

s is the sum of its degrees and all later ones, as its enclosing device sees them.
"""


def plan_hierarchy(
    layers: ProfiledLayers,
    hierarchy: Hierarchy,
    *,
    linear: bool = False,
    max_downsets: int = MAX_DOWNSETS,
) -> PiperPlan | None:
    """Plan with the least time per sample, None if nothing fits (Piper, Appendix E).

    linear: cut only between prefixes of one linear order, for graphs with too many downsets; more than
    `max_downsets` of them, or too many pairs, are an error.
    """
    if linear:
        downsets = enumerate_prefixes(len(layers), layers.pairs)
    else:
        downsets = enumerate_downsets(len(layers), layers.pairs, max_downsets)
    costs = LevelCosts(layers, hierarchy, downsets)
    best = _plan_at(WithinTime(costs, inf))
    if best is None:
        return None
    # The slowest device takes at least the mean of the least work of all layers, up to rounding.
    low = float(costs.work_s[-1]) / hierarchy.devices(len(hierarchy.levels)) * (1 - 1e-9)
    high = best.time_per_sample_s
    trial_s = _between(low, high)
    while high - low > TOLERANCE * high:
        candidate = _plan_at(WithinTime(costs, trial_s))
        if candidate is None:
            low = trial_s
            trial_s = _between(low, high)
            continue
        best, high = candidate, min(trial_s, candidate.time_per_sample_s)
        near = high - low <= CLOSE * high
        # If no plan is just below the best, the best is optimal within the tolerance.
        trial_s = high * (1 - TOLERANCE / 2) if near else _between(low, high)
    return best


def _between(low: float, high: float) -> float:
    """Next time to test between two bounds: their geometric mean while they are far apart."""
    # Bounds far apart differ in order of magnitude, which the geometric mean halves.
    middle = sqrt(low * high) if high > 2 * low > 0 else low + (high - low) / 2
    return float(np.clip(middle, low, high))


def _plan_at(within: WithinTime) -> PiperPlan | None:
    """Plan in which every device stays within the time limit; None if infeasible."""
    hierarchy, fewest = within.costs.hierarchy, within.fewest()
    sums = fewest[-1].copy()
    if hierarchy.inner.exactly:
        # Degrees that sum to less than N are ruled out.
        sums[: hierarchy.inner.microbatches] = NONE
        sums = sums if len(sums) > hierarchy.inner.microbatches else sums[:0]
    if not len(sums) or sums.min() >= NONE:
        return None
    links = _highest(within, fewest, int(sums.argmin()))
    return PiperPlan(tuple(_stage(within, len(hierarchy.levels), 1, link) for link in links))


def _highest(within: WithinTime, fewest: Greatest, degree: int) -> Iterator[Link]:
    """Yield the superstages of the highest level in the order of the data flow."""
    choices = within.choices(len(within.costs.hierarchy.levels), 1)
    number = within.costs.sets.number
    at = len(fewest) - 1
    while at > 0:
        below, o = next(
            (m, o)
            for m, o in product(range(at), range(len(choices.cost)))
            if _joins(choices, int(number[at, m]), o, degree)
            and fewest[m, degree - choices.degree[o]] + choices.cost[o] == fewest[at, degree]
        )
        yield int(number[at, below]), o, degree
        at, degree = below, degree - int(choices.degree[o])


def _inside(within: WithinTime, level: int, around: int, pair: int, x: int, s: int) -> Iterator[Link]:
    """Yield a superstage's parts on one device; their degrees sum to x, with those of later stages to s."""
    sets, devices = within.costs.sets, within.costs.hierarchy.levels[level - 1].devices
    choices, bottom = within.choices(level, around), int(sets.inner[pair])
    inside = sets.number[sets.outer[pair]] >= 0
    inside[sets.outer[pair]] = True
    downsets = np.append(bottom, np.flatnonzero(inside & (sets.number[:, bottom] >= 0)))
    r = follow(sets.number, downsets, choices, devices, x)
    at, k, after = len(downsets) - 1, devices, s - x
    while at > 0:
        below, o = next(
            (m, o)
            for m, o in product(range(at), range(len(choices.cost)))
            if choices.degree[o] <= x
            and choices.cost[o] <= k
            and _joins(choices, int(sets.number[downsets[at], downsets[m]]), o, x + after)
            and r[m, k - choices.cost[o], x - choices.degree[o]] >= after
        )
        yield int(sets.number[downsets[at], downsets[below]]), o, x + after
        at, k, x = below, k - int(choices.cost[o]), x - int(choices.degree[o])


def _joins(choices: DegreeChoices, pair: int, o: int, s: int) -> bool:
    """True if a set of layers, as one stage or superstage with choice `o`, allows the degree sum s."""
    return pair >= 0 and bool(choices.degree[o] <= s <= choices.limit[pair, o])


def _stage(within: WithinTime, level: int, around: int, link: Link) -> PlannedStage:
    """Build a stage with its best configurations, or a superstage with all its parts."""
    pair, o, s = link
    choices, costs = within.choices(level, around), within.costs
    data, inner, member = int(choices.data[o]), int(choices.inner[o]), costs.sets.member[pair]
    if level == 1:
        layout = Layout(tp=inner, dp=data)
        waiting, exchanged = in_flight(s, layout), costs.hierarchy.cluster(1, around).exchanged(layout)
        stage = planned_stage(costs.costs, member, layout, waiting, exchanged, choose_exactly, around)
        assert stage is not None, "the search has priced this stage"
        return stage
    # Each of the d devices runs all parts, for every d-th microbatch: it sees ceil(s/d) in place of s.
    inside = _inside(within, level - 1, around * data, pair, inner, -(-s // data))
    return PlannedStage(
        layers=tuple(np.flatnonzero(member).tolist()),
        layout=Layout(dp=data),
        time_s=float(costs.superstage_s(level, Layout(dp=data), around)[pair]),
        level=level,
        parts=tuple(_stage(within, level - 1, around * data, link) for link in list(inside)),
    )
