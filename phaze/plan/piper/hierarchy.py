"""The best plan on a network with levels (Piper, Appendix E): the least time at which some plan keeps the
time.

The time per sample is the largest over all devices of all levels, so the optimum is found by bisection on
it: `hierarchy_search` says whether a time suffices, and
a plan that keeps it is traced back from its tables. A plan that is found replaces the upper end by its own
time, which is no longer; the search ends when at most 1e-12 of it could still be gained. (The text of
Appendix E prints a maximum over k where the final result is the minimum.)

All three ways of counting microbatches in flight obey the bounds on the sum of degrees. `crude` and `lossy`
only assume more in flight than `exact`: s is at most K, as every replica that it counts has a device of its
own, and at most N, and dividing by the degrees around and rounding up keeps that. What they accept `exact`
accepts with the same time, so that they are never better. They do not compare with each other, as K may be
more or less than N.

Configurations are chosen exactly, not by the bang-per-buck rule: that may find a faster choice for more
microbatches in flight, so that "the greatest s that keeps the time" would not say all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf, sqrt

import numpy as np

from phaze.cost.network.network import BOTH_DIRECTIONS
from phaze.layout import Layout
from phaze.plan.downsets import enumerate_downsets, enumerate_prefixes
from phaze.plan.piper.hierarchy_costs import Problem, problem_of
from phaze.plan.piper.hierarchy_search import NONE, Choices, Limits, Question, follow
from phaze.plan.piper.knapsack import choose_exactly
from phaze.plan.piper.layers import Layers, PlannedStage
from phaze.plan.piper.nested import Hierarchy, Memory, NestedPlan, Parts, Superstage
from phaze.plan.piper.stages import planned_stage

MAX_DOWNSETS = 2_000
"""Unless the caller says otherwise; all pairs of nested ones are compared."""
TOLERANCE = 1e-12
"""Of the time per sample: what the optimum may be below the plan's."""
CLOSE = 1e-4
"""Of the time per sample: from here on it pays to ask for anything better than a plan that was just found."""
Link = tuple[int, int, int]
"""A set, the number of its choice, and s, the degrees from it on as the device around it sees them."""


def plan_hierarchy(
    layers: Layers,
    hierarchy: Hierarchy,
    *,
    memory: Memory = "exact",
    linear: bool = False,
    max_downsets: int = MAX_DOWNSETS,
) -> NestedPlan | None:
    """Return a plan with the least time per sample, None where nothing fits (Piper, Appendix E).

    linear: cut only between prefixes of one linear order, for graphs with too many downsets; more than
    `max_downsets` of them, or too many pairs, are an error.
    """
    if linear:
        downsets = enumerate_prefixes(len(layers), layers.pairs)
    else:
        downsets = enumerate_downsets(len(layers), layers.pairs, max_downsets)
    problem = problem_of(layers, hierarchy, memory, downsets)
    best = _plan_at(Question(problem, inf))
    return None if best is None else _improve(problem, best, _lower_bound_s(problem))


def _lower_bound_s(problem: Problem) -> float:
    """Return a time that no plan goes below: all devices at work all the time."""
    return float(problem.work_s[-1]) / problem.hierarchy.devices * (1 - 1e-9)


def _improve(problem: Problem, best: NestedPlan, low: float) -> NestedPlan:
    """Return the best plan, given one and a time below which there is none."""
    high = best.time_per_sample_s
    ask = _between(low, high)
    while high - low > TOLERANCE * high:
        found = _plan_at(Question(problem, ask))
        if found is None:
            low = ask
            ask = _between(low, high)
            continue
        best, high = found, min(ask, found.time_per_sample_s)
        near = high - low <= CLOSE * high
        ask = high * (1 - TOLERANCE / 2) if near else _between(low, high)
    return best


def _between(low: float, high: float) -> float:
    """Return a time between two: the geometric mean while they are far apart."""
    middle = sqrt(low * high) if high > 2 * low > 0 else low + (high - low) / 2
    return float(np.clip(middle, low, high))


def _plan_at(question: Question) -> NestedPlan | None:
    """Return a plan that keeps the time, None where there is none."""
    hierarchy = question.problem.hierarchy
    fewest = question.fewest()
    sums = fewest[-1].copy()
    if hierarchy.exactly:
        sums[: hierarchy.microbatches] = NONE
        sums = sums if len(sums) > hierarchy.microbatches else sums[:0]
    if not len(sums) or sums.min() >= NONE:
        return None
    links = _highest(question, fewest, int(sums.argmin()))
    return NestedPlan(_parts(question, hierarchy.levels, 1, list(links)))


def _highest(question: Question, fewest: Limits, degree: int) -> Iterator[Link]:
    """Yield the superstages of the highest level, the first in the data flow first."""
    choices = question.choices(question.problem.hierarchy.levels, 1)
    number = question.problem.sets.number
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


def _inside(question: Question, level: int, around: int, pair: int, x: int, s: int) -> Iterator[Link]:
    """Yield the superstages of a level in one device of the next that runs a set with x and s."""
    sets, devices = question.problem.sets, question.problem.hierarchy.counts[level - 1]
    choices, bottom = question.choices(level, around), int(sets.inner[pair])
    inside = sets.number[sets.outer[pair]] >= 0
    inside[sets.outer[pair]] = True
    held = np.append(bottom, np.flatnonzero(inside & (sets.number[:, bottom] >= 0)))
    r = follow(sets.number, held, choices, devices, x)
    at, k, after = len(held) - 1, devices, s - x
    while at > 0:
        below, o = next(
            (m, o)
            for m, o in product(range(at), range(len(choices.cost)))
            if choices.degree[o] <= x
            and choices.cost[o] <= k
            and _joins(choices, int(sets.number[held[at], held[m]]), o, x + after)
            and r[m, k - choices.cost[o], x - choices.degree[o]] >= after
        )
        yield int(sets.number[held[at], held[below]]), o, x + after
        at, k, x = below, k - int(choices.cost[o]), x - int(choices.degree[o])


def _joins(choices: Choices, pair: int, o: int, s: int) -> bool:
    """Return whether a set can run this way with s."""
    return pair >= 0 and bool(choices.degree[o] <= s <= choices.limit[pair, o])


def _parts(question: Question, level: int, around: int, links: list[Link]) -> Parts:
    """Return what the links stand for."""
    if level == 1:
        return tuple(_stage(question, around, link) for link in links)
    return tuple(_superstage(question, level, around, link) for link in links)


def _superstage(question: Question, level: int, around: int, link: Link) -> Superstage:
    """Return a superstage with all that is in it."""
    pair, o, s = link
    choices, problem = question.choices(level, around), question.problem
    data = int(choices.data[o])
    inside = _inside(question, level - 1, around * data, pair, int(choices.inner[o]), -(-s // data))
    return Superstage(
        level=level,
        layers=tuple(np.flatnonzero(problem.sets.member[pair]).tolist()),
        data=data,
        time_s=float(problem.superstage_s(level, data, around)[pair]),
        parts=_parts(question, level - 1, around * data, list(inside)),
    )


def _stage(question: Question, around: int, link: Link) -> PlannedStage:
    """Return a stage with the configurations that are best for it."""
    pair, o, s = link
    choices, problem = question.choices(1, around), question.problem
    layout = Layout(tp=int(choices.inner[o]), dp=int(choices.data[o]))
    waiting = problem.in_flight(layout.dp, around, s)
    exchanged = problem.hierarchy.sync_weight(layout.dp, around) / BOTH_DIRECTIONS
    member = problem.sets.member[pair]
    stage = planned_stage(problem.costs, member, layout, waiting, exchanged, choose_exactly, around)
    assert stage is not None, "the search has priced this stage"
    return stage
