"""Algorithm 1 of Parmesan: binary search for the minimal longest stage time, several targets at a time.

Algorithm 2, compiled, is a depth-first search for a mapping with every stage time within a target. Slots, the
replicas of all stages, are assigned in the mapping order. When a slot gets a device, the checking scheme
tests its own stage and the stages of its assigned neighbours. A partly assigned stage time uses the best link
of the device for each missing neighbour, a lower bound. The check therefore prunes no later than the paper's,
which waits for the last neighbour; with all neighbours assigned both are the same. Devices are tried in the
order of their link time to an assigned neighbour, shortest first. The paper's proofs do not depend on the
order.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit, njit_nogil
from phaze.base.deadline import Deadline, OutOfTimeError, slices
from phaze.map.heuristics import consecutive_map, p2p_map, random_map
from phaze.map.objective import MappingProblem, lower_bound_s
from phaze.map.schemes import LinkCosts, SlotOrder, make_costs, make_plan, near_devices
from phaze.map.symmetry import DeviceSymmetry, device_symmetry

FOUND, NONE, STOPPED, PAUSED = 1, 0, -1, -2
"""Outcomes: mapping found, no mapping exists, limit reached, or search paused and resumable."""
ROUNDING = 1e-12
"""Relative tolerance of a target, for rounding errors of sums."""
TARGETS = 4
"""Number of concurrent targets, one thread each."""
EPSILON = 1e-9
"""Interval width at which the search ends, relative to the value."""
EPSILON_WITHOUT_PROOF = 1e-3
"""Interval width if the lower end was given up instead of proven: nearby targets would be given up as well.
"""


class DescentInput(NamedTuple):
    """Input of the depth-first search: slots, costs, and devices with their symmetries."""

    plan: SlotOrder
    costs: LinkCosts
    near: Ints
    """Devices sorted by link time from each device, shortest first, shape (D, D)."""
    exchange: DeviceSymmetry


class DescentState(NamedTuple):
    """A partial mapping with bounds on its stage times, and their previous values for backtracking."""

    at: Ints
    """Device of every slot, shape (n,)."""
    used: Ints
    """1 if a device is taken, shape (D,)."""
    entered: Ints
    """Number of devices taken in each device group, shape (levels, D)."""
    position: Ints
    """Number of devices tried for each slot, shape (n,)."""
    messages: Floats
    """Lower bound on the message time c_m of each slot, plus its device's extra compute time, shape (n,)."""
    longest: Floats
    """Largest bound on c_m among the slots of each stage, shape (S,)."""
    slowest: Floats
    """Lower bound on the all-reduce time c_AR of each stage, shape (S,)."""
    old_messages: Floats
    old_longest: Floats
    old_slowest: Floats


def new_state(plan: SlotOrder, exchange: DeviceSymmetry, stages: int) -> DescentState:
    """Search state before any slot is assigned."""
    n, devices = len(plan.order), len(exchange.before)
    degree = max(1, int(np.diff(plan.first_link).max()))
    return DescentState(
        np.full(n, -1, np.int64),
        np.zeros(devices, np.int64),
        np.zeros((len(exchange.group), devices), np.int64),
        np.zeros(n, np.int64),
        np.zeros(n),
        np.zeros(stages),
        np.zeros(stages),
        np.zeros((n, degree)),
        np.zeros((n, degree + 1)),
        np.zeros(n),
    )


@njit
def _may_take(plan: SlotOrder, exchange: DeviceSymmetry, state: DescentState, k: int, d: int) -> bool:
    """True unless symmetry makes it redundant to assign device d to slot k (see `symmetry`)."""
    if k == 0 and exchange.first[d] == 0:
        return False
    if exchange.before[d] >= 0 and state.used[exchange.before[d]] == 0:
        return False
    if plan.below[k] >= 0 and d < state.at[plan.below[k]]:
        return False
    for level in range(len(exchange.group)):
        group = exchange.group[level, d]
        before = exchange.group_before[level, group]
        if before >= 0 and state.entered[level, group] == 0 and state.entered[level, before] == 0:
            return False
    return True


@njit
def _ring_with(plan: SlotOrder, costs: LinkCosts, state: DescentState, k: int, d: int) -> float:
    """Lower bound on the all-reduce time c_AR of slot k's stage if slot k is assigned device d."""
    stage = plan.order[k, 0]
    ring = state.slowest[stage]
    before, after = plan.previous[k], plan.following[k]
    if before < 0:
        return float(ring)
    size = costs.links.ring_bytes[stage]
    ring = max(ring, size * costs.best_out[d], size * costs.best_in[d])
    if before < k:
        e = state.at[before]
        ring = max(ring, size * costs.links.seconds[e, d] + costs.links.ring_waits * costs.links.waits[e, d])
    if after < k:
        e = state.at[after]
        ring = max(ring, size * costs.links.seconds[d, e] + costs.links.ring_waits * costs.links.waits[d, e])
    return float(ring)


@njit
def _change(costs: LinkCosts, size: float, d: int, e: int) -> float:
    """Increase of a slot's message-time bound on device e if its neighbour is on d instead of the best."""
    best = size * costs.best_message[e] + costs.best_message_wait[e]
    return float(size * costs.links.message[d, e] + costs.links.message_wait[d, e] - best)


@njit
def _messages_with(
    plan: SlotOrder, costs: LinkCosts, state: DescentState, k: int, d: int, target: float
) -> float:
    """Lower bound on the message time c_m of slot k on device d; inf if a neighbour exceeds the target.

    Unassigned neighbours count with the best link of d.
    """
    # The slower passes on this device add to its slot alone, as its messages do.
    messages_s = costs.extra[plan.order[k, 0], d]
    for link in range(plan.first_link[k], plan.first_link[k + 1]):
        slot, size = plan.link_slot[link], costs.sizes[plan.link_edge[link]]
        if slot > k:
            messages_s += size * costs.best_message[d] + costs.best_message_wait[d]
            continue
        e, neighbour = state.at[slot], plan.order[slot, 0]
        messages_s += size * costs.links.message[d, e] + costs.links.message_wait[d, e]
        theirs = max(state.longest[neighbour], state.messages[slot] + _change(costs, size, d, e))
        if costs.compute[neighbour] + theirs + state.slowest[neighbour] > target:
            return np.inf
    return float(messages_s)


@njit
def _fits(plan: SlotOrder, costs: LinkCosts, state: DescentState, k: int, d: int, target: float) -> bool:
    """True if all stages affected by assigning device d to slot k stay within the target."""
    stage = plan.order[k, 0]
    alone_s = costs.compute[stage] + _ring_with(plan, costs, state, k, d)
    if alone_s + state.longest[stage] > target:
        return False
    return bool(alone_s + _messages_with(plan, costs, state, k, d, target) <= target)


@njit
def _assign(
    plan: SlotOrder, costs: LinkCosts, exchange: DeviceSymmetry, state: DescentState, k: int, d: int
) -> None:
    """Assign device d to slot k and save the previous bounds."""
    stage, first = plan.order[k, 0], plan.first_link[k]
    degree = state.old_messages.shape[1]
    state.old_slowest[k], state.old_longest[k, degree] = state.slowest[stage], state.longest[stage]
    state.slowest[stage] = _ring_with(plan, costs, state, k, d)
    messages_s = _messages_with(plan, costs, state, k, d, np.inf)
    state.messages[k], state.longest[stage] = messages_s, max(state.longest[stage], messages_s)
    for link in range(first, plan.first_link[k + 1]):
        slot, size = plan.link_slot[link], costs.sizes[plan.link_edge[link]]
        if slot < k:
            e, neighbour = state.at[slot], plan.order[slot, 0]
            state.old_messages[k, link - first] = state.messages[slot]
            state.old_longest[k, link - first] = state.longest[neighbour]
            state.messages[slot] += _change(costs, size, d, e)
            state.longest[neighbour] = max(state.longest[neighbour], state.messages[slot])
    state.at[k], state.used[d] = d, 1
    for level in range(len(exchange.group)):
        state.entered[level, exchange.group[level, d]] += 1


@njit
def _take_back(plan: SlotOrder, exchange: DeviceSymmetry, state: DescentState, k: int) -> None:
    """Undo the last assignment; assignments are undone in reverse order."""
    d, stage, first = state.at[k], plan.order[k, 0], plan.first_link[k]
    state.used[d] = 0
    for level in range(len(exchange.group)):
        state.entered[level, exchange.group[level, d]] -= 1
    for link in range(plan.first_link[k + 1] - 1, first - 1, -1):
        slot = plan.link_slot[link]
        if slot < k:
            state.messages[slot] = state.old_messages[k, link - first]
            state.longest[plan.order[slot, 0]] = state.old_longest[k, link - first]
    state.longest[stage] = state.old_longest[k, state.old_messages.shape[1]]
    state.slowest[stage] = state.old_slowest[k]


def descend(
    plan: SlotOrder,
    costs: LinkCosts,
    near: Ints,
    exchange: DeviceSymmetry,
    state: DescentState,
    target: float,
    limit: int,
    deadline: Deadline,
) -> tuple[int, int]:
    """Search for a mapping within the target; return the outcome and the number of devices tried.

    The search stops once more than `limit` devices were tried, or at the deadline. The mapping is stored in
    `state`, which must be new.
    """
    outcome, k, tried = PAUSED, 0, 0
    inputs = DescentInput(plan, costs, near, exchange)
    for _, until in slices(limit + 1, deadline):
        outcome, k, tried = _descend(inputs, state, target, limit, k, tried, until)
        if outcome != PAUSED:
            return outcome, tried
    return STOPPED, tried


@njit
def _next_device(inputs: DescentInput, state: DescentState, k: int, target: float) -> tuple[int, int]:
    """Next feasible device of a slot, or -1, and the number of devices tried."""
    plan, costs, near, exchange = inputs
    anchor, tried = plan.anchor[k], 0
    while state.position[k] < len(near):
        d = state.position[k]
        if anchor >= 0:
            d = near[state.at[anchor], d]
        state.position[k] += 1
        if state.used[d] == 0:
            tried += 1
            if _may_take(plan, exchange, state, k, d) and _fits(plan, costs, state, k, d, target):
                return d, tried
    return -1, tried


@njit_nogil
def _descend(
    inputs: DescentInput, state: DescentState, target: float, limit: int, k: int, tried: int, until: int
) -> tuple[int, int, int]:
    """Continue the search at slot k until `until` devices were tried; return outcome, slot and tries."""
    plan, costs, _, exchange = inputs
    n = len(plan.order)
    while 0 <= k < n:
        if tried >= until:
            return PAUSED, k, tried
        taken, count = _next_device(inputs, state, k, target)
        tried += count
        if tried > limit:
            return STOPPED, k, tried
        if taken >= 0:
            _assign(plan, costs, exchange, state, k, taken)
            k += 1
            if k < n:
                state.position[k] = 0
        else:
            k -= 1
            if k >= 0:
                _take_back(plan, exchange, state, k)
    return (FOUND if k == n else NONE), k, tried


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
    """Try targets within the interval, several at a time, until the interval is closed or time is up."""
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
    starts = start or (
        random_map(stages, replicas, problem.network.devices, seed),
        consecutive_map(stages, replicas),
        p2p_map(stages, replicas),
    )
    values = [problem.value_s(mapping) for mapping in starts]
    best = int(np.argmin(values))
    bound = lower_bound_s(problem, until)
    best_start = SearchResult(starts[best], values[best], bound)
    return _Interval(best_start, min(bound, best_start.value_s))


def _learn(
    problem: MappingProblem,
    interval: _Interval,
    order: Ints,
    target: float,
    outcome: int,
    devices: Ints,
    tried: int,
) -> None:
    """Narrow the interval by the outcome of a target.

    A target whose search ended without a proof counts as infeasible (Section V-B).
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
