"""Algorithm 1 of Parmesan: binary search for the minimal longest stage time, several targets at a time."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.deadline import Deadline, OutOfTimeError
from phaze.map.descent import FOUND, NONE, STOPPED, descend, new_state
from phaze.map.heuristics import consecutive_map, p2p_map, random_map
from phaze.map.objective import MappingProblem, lower_bound_s
from phaze.map.schemes import make_costs, make_plan, near_devices
from phaze.map.symmetry import device_symmetry

ROUNDING = 1e-12
"""Relative tolerance of a target, for rounding errors of sums."""
TARGETS = 4
"""Number of concurrent targets, one thread each."""
EPSILON = 1e-9
"""Interval width at which the search ends, relative to the value."""
EPSILON_WITHOUT_PROOF = 1e-3
"""Interval width if the lower end was given up instead of proven: nearby targets would be given up as well.
"""


@dataclass(frozen=True)
class SearchLimits:
    """Limits at which a search ends without a proof."""

    tries: int = 4_000_000
    """Number of devices tried for one target; the same on every machine."""
    time_s: float = float("inf")
    """Wall time of all mapping methods together; results may then differ between runs."""


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Best mapping found by a search, and a proven lower bound on the longest stage time."""

    mapping: Ints
    """Device of each stage and replica, shape (S, R)."""
    value_s: float
    """Longest stage time of the mapping."""
    bound_s: float
    """Lower bound on the longest stage time of any mapping."""
    searched: bool = False
    """True if the search found the mapping; False if it is the initial upper bound."""
    stopped: bool = False
    """True if a target was given up at the limit of tries."""
    timed_out: bool = False
    """True if the time limit ended the search."""
    tries: int = 0
    """Number of devices tried, over all targets."""

    @property
    def proven(self) -> bool:
        """True if the mapping is proven optimal."""
        return proves(self.bound_s, self.value_s)


def proves(bound_s: float, value_s: float) -> bool:
    """True if a bound proves a value optimal up to rounding."""
    return bound_s >= value_s * (1 - 2e-9)


@dataclass
class _Interval:
    """State of Algorithm 1: the best mapping with the proven bound, and separately the interval to search."""

    best: SearchResult
    lower_s: float

    @property
    def width_s(self) -> float:
        return self.best.value_s - self.lower_s

    @property
    def is_open(self) -> bool:
        epsilon = EPSILON if self.lower_s <= self.best.bound_s else EPSILON_WITHOUT_PROOF
        return self.width_s > epsilon * self.best.value_s


def search(
    problem: MappingProblem,
    limits: SearchLimits,
    seed: int,
    start: tuple[Ints, ...] | None = None,
    deadline: Deadline | None = None,
) -> SearchResult:
    """Find the best mapping for an instantiation by binary search.

    The initial upper bound is the best of the mappings `start`; default: a random one and the heuristics
    (Section V-B). deadline: deadline of the caller; default: a new one from the limits.
    """
    until = deadline or Deadline(limits.time_s)
    interval = _initial(problem, seed, start, until)
    if interval.is_open and not until.passed:
        with suppress(OutOfTimeError):
            _narrow(problem, interval, limits, seed, until)
    best = interval.best
    bound_s = min(best.bound_s, best.value_s)
    return replace(best, bound_s=bound_s, timed_out=until.passed and interval.is_open)


def _narrow(
    problem: MappingProblem, interval: _Interval, limits: SearchLimits, seed: int, until: Deadline
) -> None:
    """Try targets within the interval, several at a time, until it is closed or the deadline passes."""
    symmetry = device_symmetry(problem, until)
    near = [near_devices(problem, k and seed * TARGETS + k, until) for k in range(TARGETS)]
    plan = make_plan(problem)
    until.check()
    costs = make_costs(problem)

    def try_target(job: tuple[int, float]) -> tuple[float, int, Ints, int]:
        k, target = job
        state = new_state(plan, symmetry, problem.shape[0])
        outcome, tried = descend(
            plan, costs, near[k], symmetry, state, target * (1 + ROUNDING), limits.tries, until
        )
        return target, outcome, state.at, tried

    with ThreadPoolExecutor(TARGETS) as pool, until.for_threads():
        while interval.is_open and not until.passed:
            targets = interval.lower_s + interval.width_s * np.arange(1, TARGETS + 1) / (TARGETS + 1)
            for target, outcome, devices, tried in pool.map(try_target, enumerate(targets.tolist())):
                _learn(problem, interval, plan.order, target, outcome, devices, tried)


def _initial(
    problem: MappingProblem, seed: int, start: tuple[Ints, ...] | None, until: Deadline
) -> _Interval:
    stages, replicas = problem.shape
    known = start or (
        random_map(stages, replicas, problem.network.devices, seed),
        consecutive_map(stages, replicas),
        p2p_map(stages, replicas),
    )
    values = [problem.value_s(mapping) for mapping in known]
    best = int(np.argmin(values))
    bound = lower_bound_s(problem, until)
    found = SearchResult(known[best], values[best], bound)
    return _Interval(found, min(bound, found.value_s))


def _learn(
    problem: MappingProblem,
    interval: _Interval,
    order: Ints,
    target: float,
    outcome: int,
    devices: Ints,
    tried: int,
) -> None:
    """Narrow the interval by the outcome of a target; a target that was given up counts as infeasible
    (Section V-B).
    """
    best = interval.best
    best = replace(best, tries=best.tries + tried, stopped=best.stopped or outcome == STOPPED)
    if outcome == FOUND:
        mapping = np.empty(problem.shape, np.int64)
        mapping[order[:, 0], order[:, 1]] = devices
        value = problem.value_s(mapping)
        if value < best.value_s:
            best = replace(best, mapping=mapping, value_s=value, searched=True)
    elif target < best.value_s:
        interval.lower_s = max(interval.lower_s, target)
    bound_s = max(best.bound_s, target) if outcome == NONE else best.bound_s
    interval.best = replace(best, bound_s=bound_s)
