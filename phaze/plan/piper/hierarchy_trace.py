"""The plan behind an answer: superstages traced back from the tables of `hierarchy_search`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from phaze.plan.piper.hierarchy_question import Question
from phaze.plan.piper.hierarchy_search import NONE, Choices, Limits, follow
from phaze.plan.piper.knapsack import choose_exactly
from phaze.plan.piper.layers import PlannedStage
from phaze.plan.piper.nested import NestedPlan, Parts, Superstage
from phaze.plan.piper.stages import planned_stage

Link = tuple[int, int, int]
"""A set, the number of its choice, and s, the degrees from it on as the device around it sees them."""


def plan_at(question: Question) -> NestedPlan | None:
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
    r = follow(sets.number, held, choices.cost, choices.degree, choices.limit, devices, x)
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
    data, tensor = int(choices.data[o]), int(choices.inner[o])
    member, costs = problem.sets.member[pair], problem.costs
    t = int(np.searchsorted(costs.widths, tensor))
    in_flight = problem.in_flight(data, around, s)
    exchanged = problem.hierarchy.sync_weight(data, around) / 4
    stage = planned_stage(costs, member, t, data, in_flight, exchanged, choose_exactly, around)
    assert stage is not None, "the search has priced this stage"
    return stage
