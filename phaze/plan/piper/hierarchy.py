"""The best plan on a network with levels (Piper, Appendix E): the least time at which some plan keeps the
time.

The time per sample is the largest over all devices of all levels, so the optimum is found by bisection on
it: `hierarchy_search` says whether a time suffices. A plan that is found replaces the upper end by its own
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

from math import inf, sqrt

import numpy as np

from phaze.plan.downsets import enumerate_downsets, enumerate_prefixes
from phaze.plan.piper.hierarchy_question import Problem, Question, problem_of
from phaze.plan.piper.hierarchy_trace import plan_at
from phaze.plan.piper.layers import Layers
from phaze.plan.piper.nested import Hierarchy, Memory, NestedPlan

MAX_DOWNSETS = 2_000
"""Unless the caller says otherwise; all pairs of nested ones are compared."""
TOLERANCE = 1e-12
"""Of the time per sample: what the optimum may be below the plan's."""
CLOSE = 1e-4
"""Of the time per sample: from here on it pays to ask for anything better than a plan that was just found."""


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
        downsets = enumerate_prefixes(len(layers), layers.edges)
    else:
        downsets = enumerate_downsets(len(layers), layers.edges, max_downsets)
    problem = problem_of(layers, hierarchy, memory, downsets)
    best = plan_at(Question(problem, inf))
    return None if best is None else _improve(problem, best, _lower_bound_s(problem))


def _lower_bound_s(problem: Problem) -> float:
    """Return a time that no plan goes below: all devices at work all the time."""
    return float(problem.work_s[-1]) / problem.hierarchy.devices * (1 - 1e-9)


def _improve(problem: Problem, best: NestedPlan, low: float) -> NestedPlan:
    """Return the best plan, given one and a time below which there is none."""
    high = best.time_per_sample_s
    ask = _between(low, high)
    while high - low > TOLERANCE * high:
        found = plan_at(Question(problem, ask))
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
